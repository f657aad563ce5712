"""Throw-away certificates: an authority, and leaves it signed, as PEM files. They pass OpenSSL's strict verification, Python's default from 3.13."""

import datetime
import ipaddress
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

YEAR: Final = datetime.timedelta(days=365)


class Authority:
    """Signs leaves into a folder.

    Attributes:
        path: the authority's own certificate.
    """

    def __init__(self, folder: Path, name: str = "test authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = self._builder(self._name, self._key.public_key(), signs=True)
        self.path = folder / f"{name.replace(' ', '-')}.crt"
        self.path.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def leaf(self, name: str, *, hosts: tuple[str, ...] = ("localhost",), addresses: tuple[str, ...] = ("127.0.0.1",)) -> tuple[str, str]:
        """A certificate for ``CN=name,O=Test``: paths of certificate and key."""
        certificate, private = self._folder / f"{name}.crt", self._folder / f"{name}.key"
        pem, key = self.leaf_pem(name, hosts=hosts, addresses=addresses)
        certificate.write_bytes(pem)
        private.write_bytes(key)
        return str(certificate), str(private)

    def leaf_pem(
        self,
        name: str,
        *,
        hosts: tuple[str, ...] = ("localhost",),
        addresses: tuple[str, ...] = ("127.0.0.1",),
        begins: datetime.timedelta = -YEAR,
        ends: datetime.timedelta = YEAR,
    ) -> tuple[bytes, bytes]:
        """The same, as PEM; valid from so long from now to so long from now."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Test"), x509.NameAttribute(NameOID.COMMON_NAME, name)])
        names: list[x509.GeneralName] = [x509.DNSName(host) for host in hosts]
        names += [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
        builder = self._builder(subject, key.public_key(), signs=False, begins=begins, ends=ends)
        signed = builder.add_extension(x509.SubjectAlternativeName(names), critical=False).sign(self._key, hashes.SHA256())
        private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        return signed.public_bytes(serialization.Encoding.PEM), private

    def _builder(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePublicKey,
        *,
        signs: bool,
        begins: datetime.timedelta = -YEAR,
        ends: datetime.timedelta = YEAR,
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        names = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only", "decipher_only")
        other_uses = dict.fromkeys(names, False)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + begins)
            .not_valid_after(now + ends)
            .add_extension(x509.BasicConstraints(ca=signs, path_length=None), critical=True)
            .add_extension(x509.KeyUsage(digital_signature=True, key_cert_sign=signs, crl_sign=signs, **other_uses), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
