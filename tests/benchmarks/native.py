"""The C programs, compiled on first use and again when their source changes; and throw-away certificates."""

import datetime
import hashlib
import ipaddress
import subprocess
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes, CertificateIssuerPublicKeyTypes

SOURCES = Path(__file__).resolve().parent / "native"
FLAGS = ("-std=gnu11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra")


def build(name: str, cache: Path) -> Path:
    """The program `native/<name>.c`, compiled. Raises RuntimeError: it does not compile; the compiler's words are in the message."""
    sources = [SOURCES / f"{name}.c", *sorted(SOURCES.glob("*.h"))]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources) + " ".join(FLAGS).encode()).hexdigest()[:12]
    program = cache / f"{name}-{digest}"
    if not program.exists():
        cache.mkdir(parents=True, exist_ok=True)
        command = ["cc", *FLAGS, "-o", str(program), str(sources[0]), "-lssl", "-lcrypto"]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{name}.c does not compile (on Debian: apt-get install gcc libc6-dev libssl-dev):\n{done.stdout}")
    return program


@dataclass(frozen=True, slots=True)
class Certificate:
    """PEM files: the certificate, its key, both in one (HAProxy wants it so)."""

    certificate: Path
    key: Path
    both: Path


def make_certificate(folder: Path, kind: str = "ecdsa", *, name: str = "", issuer: Certificate | None = None) -> Certificate:
    """A certificate for localhost and 127.0.0.1, good for two days.

    Args:
        folder: where its files go.
        kind: of its key: `ecdsa` (P-256) or `rsa` (2048 bits).
        name: of its subject and its files; `localhost` and `kind` without.
        issuer: who signs it; None: it does so itself, and may sign others.
    """
    key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
    key = rsa.generate_private_key(65537, 2048) if kind == "rsa" else ec.generate_private_key(ec.SECP256R1())
    subject = signer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name or "localhost")])
    signing_key: CertificateIssuerPrivateKeyTypes = key
    if issuer is not None:
        signer = x509.load_pem_x509_certificate(issuer.certificate.read_bytes()).subject
        loaded = serialization.load_pem_private_key(issuer.key.read_bytes(), None)
        assert isinstance(loaded, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey), "it was made here"
        signing_key = loaded
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(signer).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - datetime.timedelta(hours=1)).not_valid_after(now + datetime.timedelta(days=2))
    for extension, critical in _extensions(key.public_key(), signing_key.public_key(), signs=issuer is None):
        builder = builder.add_extension(extension, critical=critical)
    certificate = builder.sign(signing_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    secret = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    stem = name or kind
    result = Certificate(folder / f"{stem}.crt", folder / f"{stem}.key", folder / f"{stem}.pem")
    result.certificate.write_bytes(certificate)
    result.key.write_bytes(secret)
    result.both.write_bytes(certificate + secret)
    for path in (result.key, result.both):
        path.chmod(0o600)
    return result


def _extensions(
    key: CertificateIssuerPublicKeyTypes, signer: CertificateIssuerPublicKeyTypes, *, signs: bool
) -> list[tuple[x509.ExtensionType, bool]]:
    """What strict verification, Python's default from 3.13, asks for."""
    others = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only", "decipher_only")
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.IPv4Address("127.0.0.1"))])
    found: list[tuple[x509.ExtensionType, bool]] = [
        (names, False),
        (x509.BasicConstraints(ca=signs, path_length=None), True),
        (x509.KeyUsage(digital_signature=True, key_cert_sign=signs, crl_sign=signs, **dict.fromkeys(others, False)), True),
        (x509.SubjectKeyIdentifier.from_public_key(key), False),
    ]
    if not signs:
        found.append((x509.AuthorityKeyIdentifier.from_issuer_public_key(signer), False))
    return found
