"""Throw-away certificates: an authority, a server and a client, for this machine only, and for a day if nobody says otherwise."""

import dataclasses
import datetime
import ipaddress
import os
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

__all__ = ["Certificates", "create"]

_LIFETIME = datetime.timedelta(days=1)
_SKEW = datetime.timedelta(minutes=5)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Certificates:
    """Where the PEM files lie. Keys are PKCS#8, not encrypted, mode 0600."""

    ca: Path
    server: Path
    server_key: Path
    client: Path
    client_key: Path


def create(directory: Path, lifetime: datetime.timedelta = _LIFETIME) -> Certificates:
    """Write an authority's certificate, and a server's and a client's that it signed, into the directory, which is made when missing.

    The server's names are ``localhost``, ``127.0.0.1`` and ``::1``. The authority's key is never written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority = _certificate("framegate demo authority", authority_key.public_key(), None, authority_key, None, lifetime)
    (directory / "ca.crt").write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    for name, usage in (("server", ExtendedKeyUsageOID.SERVER_AUTH), ("client", ExtendedKeyUsageOID.CLIENT_AUTH)):
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _certificate(f"framegate demo {name}", key.public_key(), usage, authority_key, authority, lifetime)
        (directory / f"{name}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        _write_key(directory / f"{name}.key", key)
    return Certificates(
        ca=directory / "ca.crt",
        server=directory / "server.crt",
        server_key=directory / "server.key",
        client=directory / "client.crt",
        client_key=directory / "client.key",
    )


def _certificate(
    name: str,
    public_key: ec.EllipticCurvePublicKey,
    usage: x509.ObjectIdentifier | None,
    authority_key: ec.EllipticCurvePrivateKey,
    authority: x509.Certificate | None,
    lifetime: datetime.timedelta,
) -> x509.Certificate:
    """One certificate; without an authority it signs itself and may sign others."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    signs = authority is None
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if authority is None else authority.subject)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + lifetime)
        .add_extension(x509.BasicConstraints(ca=signs, path_length=0 if signs else None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .add_extension(_key_usage(signs=signs), critical=True)
    )
    if usage is not None:
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        addresses = [x509.IPAddress(ipaddress.ip_address(text)) for text in ("127.0.0.1", "::1")]
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost"), *addresses]), critical=False)
    return builder.sign(authority_key, hashes.SHA256())


def _key_usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(pem)
