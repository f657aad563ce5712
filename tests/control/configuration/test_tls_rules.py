"""Rules of TLS: what would fail at the start, or for clients, is found at its key."""

import datetime
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa, x25519

from framegate.control.configuration.document import Fault, document_of
from framegate.control.configuration.load import judge
from framegate.control.configuration.tls_rules import exposure_warning, identity_fault, validity_warning
from framegate.control.demo.certificates import Certificates, create
from tests.fakes.certificates import Authority
from tests.fakes.configuration import put

PIN = "sha256/" + "A" * 43 + "="


def found(data: dict[str, Any]) -> tuple[list[Fault], list[Fault]]:
    findings = judge(document_of(data), machine=True)
    return [fault for fault in findings.faults if "tls" in fault.key], [fault for fault in findings.warnings if "tls" in fault.key]


def certificate(made: Certificates, *names: str, **more: Any) -> dict[str, Any]:
    return {"names": list(names), "certificate": str(made.server), "key": str(made.server_key), **more}


def test_everything_at_once_without_a_fault(data: dict[str, Any], made: Certificates, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    lists = [authority.revocations()]
    leaf = authority.leaf("named", hosts=("b", "*.c"))
    identity = {"certificate": leaf[0], "key": leaf[1]}
    data["listeners"][0]["tls"] |= {
        "client_ca": str(authority.path),
        "crl": lists,
        "max_version": "1.3",
        "ciphers": "ECDHE+AESGCM",
        "curve": "prime256v1",
        "alpn": ["kafka"],
        "certificates": [certificate(made, "Localhost."), {"names": ["b", "*.c"], **identity, "client_ca": str(authority.path), "crl": lists}],
    }
    data["upstreams"][0]["tls"]["pins"] = [PIN]
    assert found(data) == ([], [])


def test_a_host_that_its_certificate_does_not_have_is_a_warning(data: dict[str, Any], made: Certificates, tmp_path: Path) -> None:
    good = ("a.example.org", "x.b.example.org", "*.b.example.org", "C.example.org.")
    leaf = Authority(tmp_path).leaf("named", hosts=("a.example.org", "*.b.example.org", "c.example.org"))
    entry = {"names": [*good, "b.example.org", "*.example.org"], "certificate": leaf[0], "key": leaf[1]}
    data["listeners"][0]["tls"]["certificates"] = [entry]
    faults, warnings = found(data)
    assert faults == []
    assert [fault.key for fault in warnings] == [f"listeners[0].tls.certificates[0].names[{number}]" for number in (4, 5)]
    assert warnings[0].reason.startswith("is no name of named.crt, which has a.example.org, *.b.example.org, c.example.org")


def test_a_certificate_without_other_names_has_its_common_name(data: dict[str, Any], tmp_path: Path) -> None:
    leaf = Authority(tmp_path).leaf("plain.example.org", hosts=(), addresses=())
    data["listeners"][0]["tls"]["certificates"] = [{"names": ["plain.example.org"], "certificate": leaf[0], "key": leaf[1]}]
    assert found(data) == ([], [])


def faulty(data: dict[str, Any], cases: Iterable[tuple[str, object, str, str]]) -> list[object]:
    """The cases that go wrong: key of ``listeners[0].tls`` and value, the key of the only fault, a part of its reason."""
    wrong = []
    for place, value, key, words in cases:
        faults, _ = found(put(data, f"listeners.0.tls.{place}", value))
        if [(fault.key, words in fault.reason) for fault in faults] != [(f"listeners[0].tls.{key}", True)]:
            wrong.append((place, value, faults))
    return wrong


def test_what_openssl_would_refuse_is_a_fault(data: dict[str, Any]) -> None:
    cases: list[tuple[str, object, str, str]] = [
        ("max_version", "1.1", "max_version", "must be '1.2' or '1.3'"),
        ("ciphers", "NONSENSE", "ciphers", "names no cipher"),
        ("ciphers", "ECDHE+AESGCM:aNULL@SECLEVEL=0", "ciphers", "do not prove who we are: ADH-"),
        ("ciphers", "eNULL:@SECLEVEL=0", "ciphers", "do not encrypt"),
        ("curve", "ed25519000", "curve", "is no group"),
        ("alpn", [""], "alpn[0]", "1 to 255 ASCII"),
        ("alpn", ["x" * 256], "alpn[0]", "1 to 255 ASCII"),
        ("crl", ["/none"], "crl[0]", "cannot be read"),
        ("crl", ["/etc/hostname"], "crl[0]", "holds no revocation list"),
    ]
    assert faulty(data, cases) == []
    data["listeners"][0]["tls"]["min_version"] = "1.3"
    assert faulty(data, [("max_version", "1.2", "min_version", "leaves no version: the lowest is 1.3, the highest 1.2")]) == []


def test_names_that_no_client_asks_for_or_that_are_there_twice_are_faults(data: dict[str, Any], made: Certificates) -> None:
    def case(names: list[str], place: int, words: str) -> tuple[str, object, str, str]:
        return "certificates", [certificate(made, *names)], f"certificates[0].names[{place}]", words

    wrong = [case(names, len(names) - 1, "is no host") for names in (["127.0.0.1"], ["a", "*.*.b"], ["*"], ["a b"], ["x" * 64])]
    twice = case(["a.b", "A.b."], 1, "is already used by listeners[0].tls.certificates[0].names[0]")
    assert faulty(data, [*wrong, twice]) == []


def test_what_a_certificate_for_hosts_needs(data: dict[str, Any], made: Certificates, tmp_path: Path) -> None:
    lists = Authority(tmp_path).revocations()
    entry = certificate(made, crl=[lists]) | {"key": str(made.client_key)}
    data["listeners"][0]["tls"]["certificates"] = [entry]
    assert [fault.key.removeprefix("listeners[0].tls.certificates[0].") for fault in found(data)[0]] == ["crl", "key", "names"]


def test_a_revocation_list_that_has_ended_is_a_warning(data: dict[str, Any], tmp_path: Path) -> None:
    lists = Authority(tmp_path).revocations(ends=-datetime.timedelta(days=1))
    faults, warnings = found(put(data, "listeners.0.tls.crl", [lists]))
    assert faults == []
    assert [fault.key for fault in warnings] == ["listeners[0].tls.crl[0]"]
    assert "every client of its authority is refused" in warnings[0].reason


def test_tls_keys_without_effect_are_warnings(data: dict[str, Any], made: Certificates, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    data["listeners"][0]["tls"] |= {
        "client_auth": "none",
        "min_version": "1.3",
        "ciphers": "ECDHE+AESGCM",
        "certificates": [certificate(made, "localhost", client_ca=str(authority.path))],
    }
    faults, warnings = found(data)
    assert faults == []
    keys = [fault.key.removeprefix("listeners[0].tls.") for fault in warnings]
    assert keys == ["certificates[0].client_ca", "ciphers", "client_ca"]


def test_a_key_of_another_type_is_distinguished_from_no_key(tmp_path: Path) -> None:
    made = create(tmp_path)
    mismatch = "is not the key of the certificate server.crt: it is of another type (RSA, EC, Ed25519)"
    unfit = "is of a type that signs nothing in TLS; RSA, EC and Ed25519 do"
    path = tmp_path / "other.key"
    for key, reason in (
        (rsa.generate_private_key(65537, 2048), mismatch),
        (ed25519.Ed25519PrivateKey.generate(), mismatch),
        (x25519.X25519PrivateKey.generate(), unfit),
        (ec.generate_private_key(ec.SECP384R1()), "is not the key of the certificate server.crt"),
    ):
        path.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
        assert identity_fault(str(made.server), str(path)) == ("key", reason)


def test_a_file_without_pem_is_a_fault_of_its_own_key(tmp_path: Path) -> None:
    made = create(tmp_path)
    rubbish = tmp_path / "rubbish"
    rubbish.write_text("rubbish")
    for pair, fault in (((rubbish, made.server_key), ("certificate", "no certificate")), ((made.server, rubbish), ("key", "no private key"))):
        which, reason = identity_fault(*map(str, pair)) or ("", "")
        assert (which, f"{fault[1]} in PEM form" in reason) == (fault[0], True)


def test_an_encrypted_key_is_refused_without_asking_anybody(tmp_path: Path) -> None:
    made = create(tmp_path)
    key = ec.generate_private_key(ec.SECP256R1())
    locked = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"secret"))
    (tmp_path / "locked").write_bytes(locked)
    fault = identity_fault(str(made.server), str(tmp_path / "locked"))
    assert fault == ("key", "is encrypted; framegate reads keys without a password only")


NOW = datetime.datetime.now(datetime.UTC)


def pem(begin: datetime.datetime, end: datetime.datetime, key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | None = None) -> bytes:
    """A certificate that signed itself, for so long."""
    key = key or ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "x")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), begin, end)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def test_a_certificate_that_openssl_will_not_take_is_the_fault_of_the_certificate(tmp_path: Path) -> None:
    key = rsa.generate_private_key(65537, 1024)
    (tmp_path / "weak.crt").write_bytes(pem(NOW, NOW + datetime.timedelta(days=1), key))
    plain = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (tmp_path / "weak.key").write_bytes(plain)
    fault = identity_fault(str(tmp_path / "weak.crt"), str(tmp_path / "weak.key"))
    assert fault == ("certificate", "is refused by OpenSSL: ee key too small")


DAY = datetime.timedelta(days=1)
GOOD = (NOW - DAY, NOW + DAY)
OLD = (NOW - 3 * DAY, NOW - DAY)
OLDER = (NOW - 5 * DAY, NOW - 2 * DAY)
NEW = (NOW + DAY, NOW + 2 * DAY)


def day(moment: datetime.datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def test_a_certificate_outside_its_time_is_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "x.crt"
    old, older, new = f"expired on {day(OLD[1])}", f"expired on {day(OLDER[1])}", f"is not valid before {day(NEW[0])}"
    for times, chain, authorities in (
        ([GOOD], None, None),
        ([OLD], old, old),
        ([GOOD, OLD, OLDER], older, None),
        ([OLD, OLDER], older, old),
        ([NEW], new, new),
        ([NEW, GOOD], new, None),
    ):
        path.write_bytes(b"".join(pem(*item) for item in times))
        assert (validity_warning(str(path)), validity_warning(str(path), all_of_them=True)) == (chain, authorities)


def test_a_secret_for_everybody_is_a_warning_and_in_a_pod_only_if_it_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret"
    secret.touch()
    for mode, here, in_a_pod in ((0o600, False, False), (0o640, False, False), (0o444, True, False), (0o602, True, True), (0o646, True, True)):
        secret.chmod(mode)
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        assert (exposure_warning(str(secret)) is not None) is here, oct(mode)
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
        assert (exposure_warning(str(secret)) is not None) is in_a_pod, oct(mode)
