"""Files of TLS as they are found: good, ended, about to end, of another key, out of order, incomplete, without names."""

import datetime
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

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


@pytest.mark.parametrize(("left", "level"), [(13, "warning"), (15, "ok")])
def test_what_ends_soon_is_told(authority: Authority, left: int, level: str) -> None:
    found = listening(*authority.leaf("server", lifetime=(-YEAR, left * DAY)), client_auth="required", client_ca=str(authority.path))
    assert [item.level for item in found if "the certificate CN=server" in item.found] == [level]


def _other_key(folder: Path) -> tuple[str, str]:
    authority = Authority(folder)
    return authority.leaf("server")[0], authority.leaf("other")[1]


def _out_of_order(folder: Path) -> tuple[str, str]:
    made = Intermediate(folder)
    return made.leaf(made.root, made.pem)


def _for_clients(folder: Path) -> tuple[str, str]:
    made = Intermediate(folder)
    return made.leaf(made.pem, made.root, usage=ExtendedKeyUsageOID.CLIENT_AUTH)


@pytest.mark.parametrize(
    ("make", "words", "advice"),
    [
        (lambda folder: Authority(folder).leaf("old", lifetime=(-YEAR, -DAY)), "old.crt expired on", "put a new one in its place"),
        (lambda folder: Authority(folder).leaf("early", lifetime=(DAY, YEAR)), "is not valid before", "look at the clocks"),
        (_other_key, "key values mismatch", "look again, it changed a moment ago"),
        (_out_of_order, "is no chain: certificate 1 was not made by certificate 2", "the leaf first"),
        (_for_clients, "failed in a handshake on trial", "extended key usage"),
        (
            lambda folder: Authority(folder).leaf("weak", key=rsa.generate_private_key(65537, 1024)),
            "ee key too small",
            "look again, it changed a moment ago",
        ),
    ],
)
def test_what_the_validator_refuses_is_a_fault_with_what_to_do(
    tmp_path: Path, make: Callable[[Path], tuple[str, str]], words: str, advice: str
) -> None:
    (found,) = [item for item in listening(*make(tmp_path)) if item.level == "fault"]
    assert (words in found.found, advice in found.advice) == (True, True), found


def test_a_whole_chain_is_good_with_or_without_its_root(tmp_path: Path) -> None:
    made = Intermediate(tmp_path)
    assert bad(listening(*made.leaf(made.pem), client_auth="required", client_ca=str(tmp_path / "root.crt"))) == []
    assert bad(listening(*made.leaf(made.pem, made.root))) == []


def test_a_chain_that_lacks_who_made_it_is_told_with_what_to_write(tmp_path: Path) -> None:
    """Whether clients know that authority cannot be seen from here."""
    made = Intermediate(tmp_path)
    found = [item for item in listening(*made.leaf(), client_auth="required", client_ca=str(tmp_path / "root.crt")) if item.level != "ok"]
    assert [(item.level, "ends below CN=between, which no file here" in item.found) for item in found] == [("unknown", True)]
    assert "write its certificate at the end of" in found[0].advice
    (tmp_path / "ca.crt").write_bytes(made.pem)  # as cert-manager lays it
    assert bad(listening(*made.leaf())) == []


def test_a_certificate_without_names_is_told(authority: Authority) -> None:
    found = listening(*authority.leaf("server", hosts=(), addresses=()), client_auth="required", client_ca=str(authority.path))
    assert [(level, "has no DNS name or address" in words) for level, words in bad(found)] == [("warning", True)]


def test_a_weak_key_that_openssl_takes_is_told(authority: Authority) -> None:
    found = listening(*authority.leaf("server", key=ec.generate_private_key(ec.SECP224R1())), client_auth="required", client_ca=str(authority.path))
    assert any(level == "warning" and "its key is on the curve secp224r1" in words for level, words in bad(found))


@pytest.mark.parametrize(("left", "expected"), [(2 * DAY, ["warning"]), (YEAR, ["ok"])])
def test_a_revocation_list_that_ends_soon_is_told(authority: Authority, left: datetime.timedelta, expected: list[str]) -> None:
    lists = authority.revocations(ends=left)
    found = listening(*authority.leaf("server"), client_auth="required", client_ca=str(authority.path), crl=(lists,))
    assert [item.level for item in found if "the revocation list" in item.found] == expected


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


def test_a_file_that_is_gone_by_now_is_told(authority: Authority) -> None:
    certificate, key = authority.leaf("server")
    os.unlink(key)
    found = listening(certificate, key)
    assert [(item.level, item.subject) for item in found] == [("fault", "listeners[0].tls.key")]


@pytest.mark.parametrize("spoil", [lambda pem: b"", lambda pem: pem[:-60], lambda pem: b"\xff" * 500])
def test_no_secret_is_in_what_is_said_of_a_broken_key(authority: Authority, spoil: Callable[[bytes], bytes]) -> None:
    certificate, key = authority.leaf("server")
    secret = Path(key).read_bytes().splitlines()[1].decode()
    Path(key).write_bytes(spoil(Path(key).read_bytes()))
    found = listening(certificate, key)
    assert levels(found) == ["fault"]
    assert all(secret not in str(item) for item in found)


YEAR_S = 365 * DAY_S


@pytest.mark.parametrize(
    ("life_s", "left_s", "soon"),
    [
        (YEAR_S, 14 * DAY_S - 1, True),
        (YEAR_S, 14 * DAY_S, False),
        (YEAR_S, 14 * DAY_S + 1, False),
        (DAY_S, DAY_S / 4 - 1, True),  # of a service mesh: made anew at half of its life
        (DAY_S, DAY_S / 4, False),
        (YEAR_S, -1, True),
    ],
)
def test_what_ends_soon_is_measured_by_its_life(life_s: float, left_s: float, soon: bool) -> None:
    now = 1e9
    assert ends_soon(now + left_s - life_s, now + left_s, now) is soon


@pytest.mark.parametrize(
    ("left_s", "words"),
    [
        (3 * DAY_S, "ends in 3 days"),
        (47 * 3600, "ends in 47 hours"),
        (0, "ends in 0 hours"),
        (-3600, "ended 1 hour ago"),
        (-9 * DAY_S, "ended 9 days ago"),
    ],
)
def test_the_time_left_in_words(left_s: float, words: str) -> None:
    assert days(1e9 + left_s, 1e9) == words


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (rsa.generate_private_key(65537, 1024), "its RSA key has 1024 bits"),
        (rsa.generate_private_key(65537, 2048), None),
        (ec.generate_private_key(ec.SECP224R1()), "its key is on the curve secp224r1, of 224 bits"),
        (ec.generate_private_key(ec.SECP256R1()), None),
        (dsa.generate_private_key(2048), "DSA"),
    ],
)
def test_weak_keys(authority: Authority, key: rsa.RSAPrivateKey, words: str | None) -> None:
    found = weakness(x509.load_pem_x509_certificate(authority.leaf_pem("x", key=key)[0]))
    assert (found is None) == (words is None)
    assert words is None or words in (found or "")


class Signed:
    """As a certificate is read; ``cryptography`` makes none with SHA-1."""

    def __init__(self, hash_name: str, *, by_itself: bool = False) -> None:
        class Hash:
            name = hash_name

        self.signature_hash_algorithm = Hash()
        self.subject, self.issuer = "a", "a" if by_itself else "b"

    def public_key(self) -> object:
        return ec.generate_private_key(ec.SECP256R1()).public_key()


@pytest.mark.parametrize(
    ("name", "by_itself", "weak"), [("sha1", False, True), ("md5", False, True), ("sha256", False, False), ("sha1", True, False)]
)
def test_a_weak_signature_counts_but_on_a_root_of_its_own(name: str, by_itself: bool, weak: bool) -> None:
    assert (weakness(Signed(name, by_itself=by_itself)) is not None) is weak  # type: ignore[arg-type]
