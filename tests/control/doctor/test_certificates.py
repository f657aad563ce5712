"""TLS files: good, ended, about to end, with another key, out of order, incomplete, without names."""

import datetime
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import dsa, ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID

from framegate.control.doctor.certificates import DAY_S, days, ends_soon, look, weakness
from framegate.control.doctor.finding import Finding
from framegate.control.doctor.surroundings import Surroundings
from framegate.proxy.config.tls import ListenerTls, NamedCertificate, UpstreamTls
from tests.fakes.certificates import YEAR, Authority, Intermediate
from tests.fakes.surroundings import config_of, levels

DAY = datetime.timedelta(days=1)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def listening(certificate: str, key: str, **keys: Any) -> list[Finding]:
    return list(look(Surroundings(config=config_of(listener={"tls": ListenerTls(certificate=certificate, key=key, **keys)}))))


def bad(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(item.level, item.found) for item in findings if item.level != "ok"]


def test_good_files_are_good_and_shown_with_their_days(authority: Authority) -> None:
    found = listening(*authority.leaf("server"), client_auth="required", client_ca=str(authority.path))
    assert bad(found) == []
    assert [item.figures.get("days") for item in found if "days" in item.figures] == [pytest.approx(365, abs=0.1)] * 2
    assert any("DNS:localhost, IP:127.0.0.1" in item.found for item in found)
    assert any("an authority known here" in item.found for item in found)


def test_nothing_of_tls_is_nothing_and_no_configuration_is_not_known() -> None:
    assert levels(look(Surroundings(config=config_of()))) == ["ok"]
    assert levels(look(Surroundings())) == ["unknown"]


def test_a_certificate_or_revocation_list_that_ends_soon_is_a_warning(authority: Authority) -> None:
    def found(left: datetime.timedelta, revoked: datetime.timedelta) -> list[str]:
        leaf, lists = authority.leaf("server", lifetime=(-YEAR, left)), authority.revocations(ends=revoked)
        findings = listening(*leaf, client_auth="required", client_ca=str(authority.path), crl=(lists,))
        return [item.level for part in ("the certificate CN=server", "the revocation list") for item in findings if part in item.found]

    assert found(13 * DAY, YEAR) == ["warning", "ok"]
    assert found(15 * DAY, 2 * DAY) == ["ok", "warning"]


def _other_key(folder: Path) -> tuple[str, str]:
    authority = Authority(folder)
    return authority.leaf("server")[0], authority.leaf("other")[1]


def _out_of_order(folder: Path) -> tuple[str, str]:
    made = Intermediate(folder)
    return made.chain(made.root, made.pem)


def _for_clients(folder: Path) -> tuple[str, str]:
    made = Intermediate(folder)
    return made.chain(made.pem, made.root, usage=ExtendedKeyUsageOID.CLIENT_AUTH)


REFUSED: list[tuple[Callable[[Path], tuple[str, str]], str, str]] = [
    (lambda folder: Authority(folder).leaf("old", lifetime=(-YEAR, -DAY)), "old.crt expired on", "put a new one in its place"),
    (lambda folder: Authority(folder).leaf("early", lifetime=(DAY, YEAR)), "is not valid before", "look at the clocks"),
    (_other_key, "key values mismatch", "look again, it changed a moment ago"),
    (_out_of_order, "is no chain: certificate 1 was not made by certificate 2", "the leaf first"),
    (_for_clients, "failed in a test handshake", "extended key usage"),
    (
        lambda folder: Authority(folder).leaf("weak", key=rsa.generate_private_key(65537, 1024)),
        "ee key too small",
        "look again, it changed a moment ago",
    ),
]


def test_what_the_validator_refuses_is_a_fault_with_what_to_do(tmp_path: Path) -> None:
    wrong = []
    for number, (make, words, advice) in enumerate(REFUSED):
        (tmp_path / str(number)).mkdir()
        (found,) = [item for item in listening(*make(tmp_path / str(number))) if item.level == "fault"]
        wrong += [(words, found)] * (words not in found.found or advice not in found.advice)
    assert wrong == []


def test_a_whole_chain_is_good_with_or_without_its_root(tmp_path: Path) -> None:
    made = Intermediate(tmp_path)
    assert bad(listening(*made.chain(made.pem), client_auth="required", client_ca=str(tmp_path / "root.crt"))) == []
    assert bad(listening(*made.chain(made.pem, made.root))) == []


def test_a_chain_that_lacks_an_authority_is_unknown_with_what_to_write(tmp_path: Path) -> None:
    """Whether clients know that authority cannot be seen from here."""
    made = Intermediate(tmp_path)
    found = [item for item in listening(*made.chain(), client_auth="required", client_ca=str(tmp_path / "root.crt")) if item.level != "ok"]
    assert [(item.level, "ends below CN=between, which no file here" in item.found) for item in found] == [("unknown", True)]
    assert "write its certificate at the end of" in found[0].advice
    (tmp_path / "ca.crt").write_bytes(made.pem)  # as cert-manager lays it
    assert bad(listening(*made.chain())) == []


def test_a_certificate_without_names_and_a_weak_key_that_openssl_takes_are_warnings(authority: Authority) -> None:
    for options, words in (
        ({"hosts": (), "addresses": ()}, "has no DNS name or address"),
        ({"key": ec.generate_private_key(ec.SECP224R1())}, "its key is on the curve secp224r1"),
    ):
        found = bad(listening(*authority.leaf("server", **options), client_auth="required", client_ca=str(authority.path)))
        assert [level for level, text in found if words in text] == ["warning"]


def test_a_revocation_list_that_ended_is_a_fault(authority: Authority) -> None:
    lists = authority.revocations(ends=-DAY)
    found = listening(*authority.leaf("server"), client_auth="required", client_ca=str(authority.path), crl=(lists,))
    assert [(level, "has a revocation list that ended on" in words) for level, words in bad(found)] == [("fault", True)]


def test_every_certificate_of_a_listener_and_an_upstream_is_looked_at(authority: Authority) -> None:
    (first, key), (second, second_key), (third, third_key) = (authority.leaf(name) for name in ("first", "second", "third"))
    named = NamedCertificate(names=("b.example.org",), certificate=second, key=second_key)
    tls = ListenerTls(certificate=first, key=key, certificates=(named,), client_auth="required", client_ca=str(authority.path))
    upstream = {"tls": UpstreamTls(ca=str(authority.path), certificate=third, key=third_key)}
    found = list(look(Surroundings(config=config_of(listener={"tls": tls}, upstream=upstream))))
    assert bad(found) == []
    for path in (first, second, third):
        assert any(item.found.startswith(f"{path}: the certificate") for item in found)
    assert {item.subject for item in found} == {"listener/in (listeners[0].tls)", "upstream/up (upstreams[0].tls)"}


def test_a_file_that_was_deleted_meanwhile_is_a_fault(authority: Authority) -> None:
    certificate, key = authority.leaf("server")
    os.unlink(key)
    found = listening(certificate, key)
    assert [(item.level, item.subject) for item in found] == [("fault", "listeners[0].tls.key")]


def test_no_finding_about_a_broken_key_has_a_secret(authority: Authority) -> None:
    certificate, key = authority.leaf("server")
    pem = Path(key).read_bytes()
    secret = pem.splitlines()[1].decode()
    for spoiled in (b"", pem[:-60], b"\xff" * 500):
        Path(key).write_bytes(spoiled)
        found = listening(certificate, key)
        assert levels(found) == ["fault"]
        assert secret not in str(found)


YEAR_S = 365 * DAY_S


def test_what_ends_soon_is_measured_by_its_life_and_shown_in_days_or_hours() -> None:
    now = 1e9
    for life_s, left_s, soon in (
        (YEAR_S, 14 * DAY_S - 1, True),
        (YEAR_S, 14 * DAY_S, False),
        (YEAR_S, 14 * DAY_S + 1, False),
        (DAY_S, DAY_S / 4 - 1, True),  # of a service mesh, which renews it after half of its life
        (DAY_S, DAY_S / 4, False),
        (YEAR_S, -1, True),
    ):
        assert ends_soon(now + left_s - life_s, now + left_s, now) is soon, (life_s, left_s)
    words = {3 * DAY_S: "ends in 3 days", 47 * 3600: "ends in 47 hours", 0: "ends in 0 hours"}
    words |= {-3600: "ended 1 hour ago", -9 * DAY_S: "ended 9 days ago"}
    assert {left_s: days(now + left_s, now) for left_s in words} == words


def test_weak_keys(authority: Authority) -> None:
    keys: list[tuple[Any, str | None]] = [
        (rsa.generate_private_key(65537, 1024), "its RSA key has 1024 bits"),
        (rsa.generate_private_key(65537, 2048), None),
        (ec.generate_private_key(ec.SECP224R1()), "its key is on the curve secp224r1, of 224 bits"),
        (ec.generate_private_key(ec.SECP256R1()), None),
        (dsa.generate_private_key(2048), "its key is for DSA"),
    ]
    for key, words in keys:
        found = weakness(x509.load_pem_x509_certificate(authority.leaf_pem("x", key=key)[0]))
        assert found is words is None or str(found).startswith(str(words)), (found, words)


def test_a_weak_signature_counts_but_not_of_a_root_on_itself() -> None:
    """``cryptography`` makes no certificate with SHA-1."""
    key = ec.generate_private_key(ec.SECP256R1()).public_key()
    for name, issuer, weak in (("sha1", "b", True), ("md5", "b", True), ("sha256", "b", False), ("sha1", "a", False)):
        signed = SimpleNamespace(signature_hash_algorithm=SimpleNamespace(name=name), subject="a", issuer=issuer, public_key=lambda: key)
        assert (weakness(cast("x509.Certificate", signed)) is not None) is weak, (name, issuer)
