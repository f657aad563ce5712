"""Files of TLS as they are found: good, ended, about to end, of another key, out of order, incomplete, without names."""

import datetime
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID

from control.doctor.certificates import look
from control.doctor.finding import Finding
from control.doctor.surroundings import Surroundings
from proxy.config.tls import ListenerTls, NamedCertificate, UpstreamTls
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


def test_what_has_ended_or_not_begun_is_a_fault(authority: Authority) -> None:
    ended = listening(*authority.leaf("old", lifetime=(-YEAR, -DAY)), client_ca=str(authority.path), client_auth="required")
    ((level, words),) = bad(ended)
    assert (level, "old.crt expired on" in words) == ("fault", True)
    early = listening(*authority.leaf("early", lifetime=(DAY, YEAR)), client_ca=str(authority.path), client_auth="required")
    ((level, words),) = bad(early)
    assert (level, "is not valid before" in words) == ("fault", True)


def test_a_key_of_another_certificate_is_a_fault(authority: Authority) -> None:
    """As a rule it is told by ``framegate check``, and nothing of the configuration is looked at; here it came since."""
    (found,) = listening(authority.leaf("server")[0], authority.leaf("other")[1])
    assert (found.level, found.subject, "key values mismatch" in found.found) == ("fault", "listeners[0].tls", True)


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


def test_the_authority_beside_a_certificate_is_known_as_cert_manager_lays_it(tmp_path: Path) -> None:
    made = Intermediate(tmp_path)
    (tmp_path / "ca.crt").write_bytes(made.pem)
    assert bad(listening(*made.leaf())) == []


def test_a_chain_out_of_order_is_a_fault(tmp_path: Path) -> None:
    made = Intermediate(tmp_path)
    found = listening(*made.leaf(made.root, made.pem))
    assert any(level == "fault" and "is no chain: certificate 1 was not made by certificate 2" in words for level, words in bad(found))


def test_a_certificate_for_clients_only_cannot_serve(tmp_path: Path) -> None:
    made = Intermediate(tmp_path)
    found = [item for item in listening(*made.leaf(made.pem, made.root, usage=ExtendedKeyUsageOID.CLIENT_AUTH)) if item.level != "ok"]
    assert [(item.level, "failed in a handshake on trial" in item.found) for item in found] == [("fault", True)]
    assert "extended key usage" in found[0].advice


def test_a_certificate_without_names_is_told(authority: Authority) -> None:
    found = listening(*authority.leaf("server", hosts=(), addresses=()), client_auth="required", client_ca=str(authority.path))
    assert [(level, "has no DNS name or address" in words) for level, words in bad(found)] == [("warning", True)]


def test_a_weak_key_is_told(authority: Authority) -> None:
    """OpenSSL refuses an RSA key of 1024 bits as ours; one on a small curve it takes."""
    found = listening(*authority.leaf("server", key=rsa.generate_private_key(65537, 1024)))
    assert [(level, "ee key too small" in words) for level, words in bad(found)] == [("fault", True)]
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
