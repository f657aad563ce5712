"""Certificates for this machine or a webhook: an authority, a server and a client, valid for a day by default."""

import dataclasses
import datetime
import ipaddress
import os
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFETIME: Final = datetime.timedelta(days=1)
_SKEW: Final = datetime.timedelta(minutes=5)
_NO_USAGE: Final = dict.fromkeys(
    ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only", "decipher_only"), False
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Certificates:
    """Paths of the PEM files. Keys are PKCS#8, not encrypted, mode 0600."""

    ca: Path
    server: Path
    server_key: Path
    client: Path
    client_key: Path


def create(
    directory: Path, lifetime: datetime.timedelta = _LIFETIME, hosts: tuple[str, ...] = ("localhost",), owner: str = "framegate demo"
) -> Certificates:
    """Write an authority's certificate, and a server's and a client's that it signed, into the directory, which is made when missing. The server's
    names are ``hosts``, ``127.0.0.1`` and ``::1``. The authority's key is never written. Subjects begin with ``owner``.
    """
    directory.mkdir(parents=True, exist_ok=True)
    authority_key = ec.generate_private_key(ec.SECP256R1())
    (directory / "ca.crt").write_bytes(_certificate(owner, "authority", authority_key.public_key(), authority_key, lifetime))
    for name, usage in (("server", ExtendedKeyUsageOID.SERVER_AUTH), ("client", ExtendedKeyUsageOID.CLIENT_AUTH)):
        key = ec.generate_private_key(ec.SECP256R1())
        addresses = [x509.IPAddress(ipaddress.ip_address(text)) for text in ("127.0.0.1", "::1")]
        extensions = x509.ExtendedKeyUsage([usage]), x509.SubjectAlternativeName([*map(x509.DNSName, hosts), *addresses])
        (directory / f"{name}.crt").write_bytes(_certificate(owner, name, key.public_key(), authority_key, lifetime, *extensions))
        pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        with os.fdopen(os.open(directory / f"{name}.key", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(pem)
    files = {f"{name}_key" if kind == "key" else name: directory / f"{name}.{kind}" for name in ("server", "client") for kind in ("crt", "key")}
    return Certificates(ca=directory / "ca.crt", **files)


def _certificate(
    owner: str,
    name: str,
    key: ec.EllipticCurvePublicKey,
    authority_key: ec.EllipticCurvePrivateKey,
    lifetime: datetime.timedelta,
    *extensions: x509.ExtensionType,
) -> bytes:
    signs = name == "authority"
    subject, issuer = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{owner} {one}")]) for one in (name, "authority"))
    now = datetime.datetime.now(datetime.UTC)
    usage = x509.KeyUsage(digital_signature=True, key_cert_sign=signs, crl_sign=signs, **_NO_USAGE)
    builder = x509.CertificateBuilder(issuer, subject, key, x509.random_serial_number(), now - _SKEW, now + lifetime)
    builder = builder.add_extension(x509.BasicConstraints(ca=signs, path_length=0 if signs else None), critical=True)
    builder = builder.add_extension(usage, critical=True)
    identifiers = x509.SubjectKeyIdentifier.from_public_key(key), x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    for extension in (*identifiers, *extensions):
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(authority_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
