"""Rules 100 to 109 of Kafka's network layer, as far as they can apply (those about stores of the JVM do not)."""

import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from framegate.control.rotation.validator import answer, refusal_of
from framegate.proxy.config.model import ListenerConfig, ProxyConfig, UpstreamConfig, to_wire
from framegate.proxy.config.tls import ListenerTls, NamedCertificate, UpstreamTls
from tests.fakes.certificates import Authority

DAY = timedelta(days=1)
SERVER = ListenerTls(certificate="c", key="k")
CLIENT = UpstreamTls(ca="a", certificate="c", key="k")
Files = dict[str, bytes]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def files(authority: Authority, name: str = "server", **leaf: Any) -> Files:
    pem, key = authority.leaf_pem(name, **leaf)
    return {"c": pem, "k": key, "a": authority.path.read_bytes()}


def why(section: ListenerTls | UpstreamTls, old: Files, new: Files) -> str:
    found = refusal_of(section, old, new, time.time())
    return "" if found is None else f"{found.file}: {found.reason}"


@pytest.mark.parametrize("section", [SERVER, CLIENT, ListenerTls(certificate="c", key="k", client_auth="required", client_ca="a")])
def test_a_renewed_pair_is_good_and_may_have_more_names(authority: Authority, section: ListenerTls | UpstreamTls) -> None:
    old = files(authority)
    assert why(section, old, files(authority)) == ""
    assert why(section, old, files(authority, hosts=("localhost", "b.example.org"), addresses=("127.0.0.1", "::1"))) == ""


def test_a_name_that_is_lost_is_refused_and_allowed_by_its_switch_alone(authority: Authority) -> None:
    old, new = files(authority, hosts=("a", "b")), files(authority, hosts=("B",))
    assert why(SERVER, old, new) == "c: lacks names that the certificate in force has: DNS:a (lost_names)"
    assert "(lost_names)" in why(ListenerTls(certificate="c", key="k", changed_subject="allow"), old, new)
    assert why(ListenerTls(certificate="c", key="k", lost_names="allow"), old, new) == ""


def test_another_subject_is_refused_and_allowed_by_its_switch_alone(authority: Authority) -> None:
    old, new = files(authority, "one"), files(authority, "two")
    assert "'CN=two,O=Test', and the certificate in force 'CN=one,O=Test' (changed_subject)" in why(SERVER, old, new)
    assert "(changed_subject)" in why(ListenerTls(certificate="c", key="k", lost_names="allow"), old, new)
    assert why(ListenerTls(certificate="c", key="k", changed_subject="allow"), old, new) == ""


@pytest.mark.parametrize("name", ["SERVER one", " server one", "Server  ONE "])
def test_case_and_spaces_make_no_other_subject(authority: Authority, name: str) -> None:
    assert why(SERVER, files(authority, "server one"), files(authority, name)) == ""


def test_times_are_looked_at(authority: Authority) -> None:
    old = files(authority)
    assert why(SERVER, old, files(authority, lifetime=(-9 * DAY, -DAY))).startswith("c: expired on 2")
    assert why(SERVER, old, files(authority, lifetime=(DAY, 9 * DAY))).startswith("c: is not valid before 2")


def test_a_key_must_be_the_certificates(authority: Authority) -> None:
    old, new = files(authority), files(authority)
    assert why(SERVER, old, {**new, "k": old["k"]}) == "k: is not the key of the certificate"
    assert why(SERVER, old, {**new, "k": b"rubbish"}) == "k: holds no private key in PEM form, or one that is broken"
    assert why(SERVER, old, {**new, "c": b"rubbish"}) == "c: holds no certificate in PEM form, or one that is broken"
    assert why(SERVER, old, {**new, "c": b""}) == "c: holds no certificate in PEM form, or one that is broken"
    encrypted = b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIGjMF8GCSqGSIb3DQEFDTBSMDEGCSqGSIb3DQEFDDAkBBAn\n-----END ENCRYPTED PRIVATE KEY-----\n"
    assert why(SERVER, old, {**new, "k": encrypted}).startswith("k: ")


def test_a_chain_is_whole_and_in_order(authority: Authority, tmp_path: Path) -> None:
    old, new, other = files(authority), files(authority), files(Authority(tmp_path, "other"))
    whole = {**new, "c": new["c"] + new["a"]}
    assert why(SERVER, old, whole) == ""
    assert why(SERVER, old, {**new, "c": new["c"] + other["a"]}) == "c: is no chain: certificate 1 was not made by certificate 2"
    assert why(SERVER, old, {**new, "c": new["c"] + other["c"]}) == "c: is no chain: certificate 1 was not made by certificate 2"
    assert why(SERVER, {**old, "c": old["c"] + old["a"]}, new) == (
        "c: is no whole chain: it lacks CN=test authority, which came along with the certificate in force"
    )
    assert why(SERVER, {**old, "c": old["c"] + old["a"]}, other) == "", "another one made it"


def test_authorities_must_be_some_and_one_of_them_in_force(authority: Authority) -> None:
    old = files(authority)
    section = ListenerTls(certificate="c", key="k", client_auth="required", client_ca="a")
    assert why(section, old, {**files(authority), "a": b"rubbish"}) == "a: holds no certificate in PEM form, or one that is broken"
    ended = files(authority, lifetime=(-9 * DAY, -DAY))["c"]
    assert why(section, old, {**files(authority), "a": ended}).startswith("a: expired on")
    assert why(section, old, {**files(authority), "a": ended + old["a"]}) == ""
    assert why(UpstreamTls(ca="a"), old, {"a": b"rubbish"}) == "a: holds no certificate in PEM form, or one that is broken"
    assert why(UpstreamTls(ca="a"), old, {"a": old["a"]}) == ""


def test_certificates_for_certain_hosts_and_revocation_lists_are_judged_too(authority: Authority) -> None:
    section = ListenerTls(
        certificate="c",
        key="k",
        client_auth="required",
        client_ca="a",
        crl=("l",),
        certificates=(NamedCertificate(names=("*.Example.org",), certificate="c2", key="k2", client_ca="a2"),),
    )

    def made(name: str = "other", **leaf: Any) -> Files:
        pem, key = authority.leaf_pem(name, **leaf)
        return {**files(authority), "c2": pem, "k2": key, "a2": authority.path.read_bytes(), "l": Path(authority.revocations()).read_bytes()}

    old = made()
    assert why(section, old, made()) == ""
    assert why(section, old, {**made(), "k2": old["k2"]}) == "k2: is not the key of the certificate"
    assert why(section, old, made(lifetime=(-9 * DAY, -DAY))).startswith("c2: expired on")
    assert why(section, old, {**made(), "a2": b"rubbish"}).startswith("a2: holds no certificate")
    ended = Path(authority.revocations(ends=-DAY)).read_bytes()
    assert why(section, old, {**made(), "l": ended}).startswith("l: has a revocation list that ended on")
    broken = b"-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n"
    assert why(section, old, {**made(), "l": broken}) == "l: holds a revocation list that is broken"
    assert why(section, old, {**made(), "l": b""}) == "l: holds no revocation list in PEM form"


def test_a_revocation_list_is_its_authoritys_and_none_is_lost(tmp_path: Path) -> None:
    """Else every client of that authority would be refused."""
    for name in ("ours", "other", "namesake"):
        (tmp_path / name).mkdir()
    ours, other = (Authority(tmp_path / name, name) for name in ("ours", "other"))
    section = ListenerTls(certificate="c", key="k", client_auth="required", client_ca="a", crl=("l", "m"))
    lists = {authority: Path(authority.revocations()).read_bytes() for authority in (ours, other)}
    both = {**files(ours), "a": ours.path.read_bytes() + other.path.read_bytes(), "l": lists[ours], "m": lists[other]}
    assert why(section, both, {**both, "l": lists[other], "m": lists[ours]}) == "", "whichever file it is in"
    assert why(section, both, {**both, "l": lists[ours] + lists[other]}) == "", "twice is once"
    assert why(section, both, {**both, "l": lists[other]}) == "l: lacks the revocation list of CN=ours, which the one in force has"
    assert why(section, both, {**both, "m": lists[ours], "a": ours.path.read_bytes()}) == "", "with the authority its list may go"
    leaf, _ = ours.leaf_pem("leaf")
    assert why(section, both, {**both, "a": leaf}) == "a: holds no authority: no certificate in it may sign others"
    namesake = Authority(tmp_path / "namesake", "ours")
    forged = Path(namesake.revocations()).read_bytes()
    assert why(section, both, {**both, "l": forged}) == "l: has a revocation list of CN=ours that this authority did not sign"


def test_a_revocation_list_is_in_force_and_no_older_than_the_one_before(tmp_path: Path) -> None:
    """Whom the newer one revoked would come in again."""
    authority = Authority(tmp_path)
    section = ListenerTls(certificate="c", key="k", client_auth="required", client_ca="a", crl=("l",))

    def made(begins: timedelta) -> Files:
        return {**files(authority), "l": Path(authority.revocations(begins=begins)).read_bytes()}

    assert why(section, made(-2 * DAY), made(-DAY)) == ""
    assert why(section, made(-DAY), made(-DAY)) == ""
    assert "older than the one in force" in why(section, made(-DAY), made(-2 * DAY))
    assert why(section, made(-DAY), made(timedelta(hours=1))) == "l: has a revocation list that is not in force yet"


def test_which_certificates_only_the_new_lists_revoke_is_told(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ours")
    leaves = [authority.leaf(name)[0] for name in ("one", "two")]
    serials = [f"{x509.load_pem_x509_certificate(Path(path).read_bytes()).serial_number:x}" for path in leaves]
    section = ListenerTls(certificate="c", key="k", client_auth="required", client_ca="a", crl=("l",))
    listener = ListenerConfig(name="x", address="y", upstream="u", tls=section)
    config = to_wire(ProxyConfig(node="n", listeners=(listener,), upstreams=(UpstreamConfig(name="u", endpoints=("h:1",)),)))

    def made(*revoked: str) -> dict[str, str]:
        found = {**files(authority), "l": Path(authority.revocations(*revoked)).read_bytes()}
        return {path: content.decode("latin-1") for path, content in found.items()}

    for old, new, told in (([], leaves, sorted(serials)), (leaves[:1], leaves, serials[1:]), (leaves, leaves[:1], [])):
        found = answer({"config": config, "stores": {"listener/x": {"old": made(*old), "new": made(*new)}}})
        assert (found["refusals"], found["revoked"]) == ({}, {"listener/x": told})
