"""Throw-away certificates: an authority, leaves it signed and those it revoked, an authority below another, as PEM files.

They pass OpenSSL's strict verification, Python's default from 3.13.
"""

import datetime
import ipaddress
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

YEAR: Final = datetime.timedelta(days=365)
PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


class Authority:
    """Signs leaves into a folder."""

    def __init__(self, folder: Path, name: str = "test authority", issuer: "Authority | None" = None) -> None:
        self._folder = folder
        self._lists = 0
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        signer = issuer or self
        builder = signer._builder(self._name, self._key.public_key(), signs=True)
        self.path = folder / f"{name.replace(' ', '-')}.crt"  # the authority's own certificate
        self.path.write_bytes(builder.sign(signer._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def leaf(self, name: str, **leaf: Any) -> tuple[str, str]:
        """As ``leaf_pem``: paths of certificate and key."""
        certificate, private = self._folder / f"{name}.crt", self._folder / f"{name}.key"
        pem, key = self.leaf_pem(name, **leaf)
        certificate.write_bytes(pem)
        private.write_bytes(key)
        private.chmod(0o600)
        return str(certificate), str(private)

    def leaf_pem(
        self,
        name: str,
        *,
        hosts: tuple[str, ...] = ("localhost",),
        addresses: tuple[str, ...] = ("127.0.0.1",),
        uris: tuple[str, ...] = (),
        lifetime: tuple[datetime.timedelta, datetime.timedelta] = (-YEAR, YEAR),
        key: PrivateKey | None = None,
        organization: str = "Test",
        usage: x509.ObjectIdentifier | None = None,
    ) -> tuple[bytes, bytes]:
        """A certificate for ``CN=name,O=organization``: as PEM, and its key. ``lifetime``: from now."""
        key = key or ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization), x509.NameAttribute(NameOID.COMMON_NAME, name)])
        names: list[x509.GeneralName] = [x509.DNSName(host) for host in hosts]
        names += [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
        names += [x509.UniformResourceIdentifier(uri) for uri in uris]
        builder = self._builder(subject, key.public_key(), signs=False, lifetime=lifetime)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        if usage is not None:
            builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        signed = builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        return signed, key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())

    def revocations(self, *certificates: str, begins: datetime.timedelta = -2 * YEAR, ends: datetime.timedelta = YEAR) -> str:
        """A list of the certificates that are revoked: the path of its file. ``begins``, ``ends``: from now."""
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateRevocationListBuilder().issuer_name(self._name).last_update(now + begins).next_update(now + ends)
        builder = builder.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        builder = builder.add_extension(x509.CRLNumber(1), critical=False)
        for path in certificates:
            serial = x509.load_pem_x509_certificate(Path(path).read_bytes()).serial_number
            revoked = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now - YEAR).build()
            builder = builder.add_revoked_certificate(revoked)
        self._lists += 1
        file = self.path.with_name(f"{self.path.stem}-{self._lists}.crl")
        file.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        return str(file)

    def _builder(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePublicKey | rsa.RSAPublicKey,
        *,
        signs: bool,
        lifetime: tuple[datetime.timedelta, datetime.timedelta] = (-YEAR, YEAR),
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
            .not_valid_before(now + lifetime[0])
            .not_valid_after(now + lifetime[1])
            .add_extension(x509.BasicConstraints(ca=signs, path_length=None), critical=True)
            .add_extension(x509.KeyUsage(digital_signature=True, key_cert_sign=signs, crl_sign=signs, **other_uses), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )


class Intermediate(Authority):
    """An authority below a root, which is in ``root.crt``. ``root`` and ``pem`` are their certificates."""

    def __init__(self, folder: Path) -> None:
        root = Authority(folder, "root")
        super().__init__(folder, "between", root)
        self.root, self.pem = root.path.read_bytes(), self.path.read_bytes()

    def chain(self, *behind: bytes, **leaf: Any) -> tuple[str, str]:
        """A leaf with other certificates behind it, as of ``leaf``."""
        certificate, key = self.leaf("leaf", **leaf)
        with open(certificate, "ab") as file:
            file.write(b"".join(behind))
        return certificate, key
