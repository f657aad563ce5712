import datetime
import pathlib

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa, x25519

from framegate.control.configuration.files import exposure_warning, identity_fault, validity_warning
from framegate.control.demo.certificates import create


def test_a_key_of_another_type_than_the_certificates_is_told_apart_from_no_key(tmp_path: pathlib.Path) -> None:
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


def test_files_that_are_no_pem_are_told_apart(tmp_path: pathlib.Path) -> None:
    made = create(tmp_path)
    rubbish = tmp_path / "rubbish"
    rubbish.write_text("rubbish")
    certificate = identity_fault(str(rubbish), str(made.server_key))
    key = identity_fault(str(made.server), str(rubbish))
    assert certificate is not None
    assert certificate[0] == "certificate"
    assert "no certificate in PEM form" in certificate[1]
    assert key is not None
    assert key[0] == "key"
    assert "no private key in PEM form" in key[1]


def test_an_encrypted_key_is_refused_without_asking_anybody(tmp_path: pathlib.Path) -> None:
    made = create(tmp_path)
    key = ec.generate_private_key(ec.SECP256R1())
    locked = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"secret"))
    (tmp_path / "locked").write_bytes(locked)
    fault = identity_fault(str(made.server), str(tmp_path / "locked"))
    assert fault == ("key", "is encrypted; framegate reads keys without a password only")


NOW = datetime.datetime.now(datetime.UTC)


def pem(begin: datetime.datetime, end: datetime.datetime, key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | None = None) -> str:
    key = key or ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "x")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), begin, end)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


def test_a_certificate_that_openssl_will_not_take_is_the_fault_of_the_certificate(tmp_path: pathlib.Path) -> None:
    key = rsa.generate_private_key(65537, 1024)
    (tmp_path / "weak.crt").write_text(pem(NOW, NOW + datetime.timedelta(days=1), key))
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


@pytest.mark.parametrize(
    ("times", "chain", "authorities"),
    [
        ([GOOD], None, None),
        ([OLD], f"expired on {day(OLD[1])}", f"expired on {day(OLD[1])}"),
        ([GOOD, OLD, OLDER], f"expired on {day(OLDER[1])}", None),
        ([OLD, OLDER], f"expired on {day(OLDER[1])}", f"expired on {day(OLD[1])}"),
        ([NEW], f"is not valid before {day(NEW[0])}", f"is not valid before {day(NEW[0])}"),
        ([NEW, GOOD], f"is not valid before {day(NEW[0])}", None),
    ],
    ids=range(6),  # not the texts: they have the minute in them, and two that collect the tests must find the same
)
def test_a_certificate_outside_its_time_is_a_warning(
    tmp_path: pathlib.Path, times: list[tuple[datetime.datetime, datetime.datetime]], chain: str | None, authorities: str | None
) -> None:
    (tmp_path / "x.crt").write_text("".join(pem(*item) for item in times))
    assert validity_warning(str(tmp_path / "x.crt")) == chain
    assert validity_warning(str(tmp_path / "x.crt"), all_of_them=True) == authorities


@pytest.mark.parametrize(
    ("mode", "here", "in_a_pod"), [(0o600, False, False), (0o640, False, False), (0o444, True, False), (0o602, True, True), (0o646, True, True)]
)
def test_a_secret_for_everybody_is_told_but_not_that_a_pods_own_container_may_read_it(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, mode: int, here: bool, in_a_pod: bool
) -> None:
    secret = tmp_path / "secret"
    secret.touch()
    secret.chmod(mode)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert (exposure_warning(str(secret)) is not None) is here
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert (exposure_warning(str(secret)) is not None) is in_a_pod
