"""What certificates and revocation lists say: subject, issuer, names, begin and end.

``cryptography`` takes 45 ms and 16 MiB to load, so it is loaded only in processes that read a configuration or renewed files and then end (``child``,
``framegate.control.rotation.validator``).
"""

import dataclasses
import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from cryptography import x509

__all__ = [
    "CertificateFacts",
    "describe",
    "describe_revocations",
    "facts_from_row",
    "facts_of",
    "hosts",
    "revocations",
    "short_fingerprint",
]

_SHORT: Final = 16
_NO_END: Final = 253_402_300_799.0  # the last second of the year 9999, as RFC 5280 has it
_REVOCATIONS: Final = re.compile(b"-----BEGIN X509 CRL-----.*?-----END X509 CRL-----", re.DOTALL)


@dataclasses.dataclass(frozen=True, slots=True)
class CertificateFacts:
    """One certificate, or one revocation list.

    Attributes:
        subject, issuer: in RFC 4514 form; the subject of a list is empty, that of a certificate may be.
        names: the alternative names, as ``DNS:…``, ``IP:…``, ``URI:…``, ``email:…`` or ``other:…``, sorted.
        serial: in hexadecimal.
        fingerprint: SHA-256 of its DER form, in hexadecimal.
        begins, ends: seconds since 1970.
    """

    subject: str
    issuer: str
    names: tuple[str, ...]
    serial: str
    fingerprint: str
    begins: float
    ends: float


def short_fingerprint(fingerprint: str) -> str:
    """The first 16 digits, as they are shown."""
    return fingerprint[:_SHORT]


def describe(pem: bytes) -> list[CertificateFacts]:
    """All certificates of a PEM file, in order; other contents are ignored. Raises ValueError: there is none, or one is broken."""
    from cryptography import x509

    return [facts_of(item) for item in x509.load_pem_x509_certificates(pem)]


def facts_of(certificate: "x509.Certificate") -> CertificateFacts:
    """The facts of one certificate. Raises ValueError: a part of it is broken."""
    from cryptography.hazmat.primitives import hashes

    return CertificateFacts(
        subject=certificate.subject.rfc4514_string(),
        issuer=certificate.issuer.rfc4514_string(),
        names=_names(certificate),
        serial=f"{certificate.serial_number:x}",
        fingerprint=certificate.fingerprint(hashes.SHA256()).hex(),
        begins=certificate.not_valid_before_utc.timestamp(),
        ends=certificate.not_valid_after_utc.timestamp(),
    )


def facts_from_row(row: dict[str, Any]) -> CertificateFacts:
    """The inverse of ``dataclasses.asdict``, out of JSON."""
    return CertificateFacts(**{**row, "names": tuple(row["names"])})


def _names(certificate: "x509.Certificate") -> tuple[str, ...]:
    from cryptography import x509

    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (x509.ExtensionNotFound, x509.DuplicateExtension, ValueError):  # of an authority others made nothing else is wanted
        return ()
    return tuple(sorted({_name(item) for item in extension.value}))


def _name(name: "x509.GeneralName") -> str:
    """A name as text; names that mean the same give the same text."""
    from cryptography import x509

    if isinstance(name, x509.DNSName):
        return f"DNS:{name.value.lower()}"
    if isinstance(name, x509.IPAddress):
        return f"IP:{name.value}"
    if isinstance(name, x509.UniformResourceIdentifier):
        return f"URI:{name.value}"
    if isinstance(name, x509.RFC822Name):
        return f"email:{name.value}"
    if isinstance(name, x509.DirectoryName):
        return f"directory:{name.value.rfc4514_string()}"
    if isinstance(name, x509.OtherName):
        return f"other:{name.type_id.dotted_string}:{name.value.hex()}"
    assert isinstance(name, x509.RegisteredID), "there are no other kinds"
    return f"id:{name.value.dotted_string}"


def hosts(pem: bytes) -> list[str]:
    """The DNS names of the first certificate of a PEM file, in lower case; if it has none, its common name, as clients read it then.

    Raises:
        ValueError: there is none, or it is broken.
    """
    from cryptography import x509

    leaf = x509.load_pem_x509_certificates(pem)[0]
    try:
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(x509.DNSName)
    except x509.ExtensionNotFound:
        names = [str(item.value) for item in leaf.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)]
    return [name.lower() for name in names]


def revocations(pem: bytes) -> "list[x509.CertificateRevocationList]":
    """The revocation lists of a PEM file. Raises ValueError: one is broken."""
    from cryptography import x509

    return [x509.load_pem_x509_crl(block) for block in _REVOCATIONS.findall(pem)]


def describe_revocations(pem: bytes) -> list[CertificateFacts]:
    """All revocation lists of a PEM file, in order; a list without an end ends with the calendar. Raises ValueError: one is broken."""
    from cryptography.hazmat.primitives import hashes

    return [
        CertificateFacts(
            subject="",
            issuer=item.issuer.rfc4514_string(),
            names=(),
            serial="",
            fingerprint=item.fingerprint(hashes.SHA256()).hex(),
            begins=item.last_update_utc.timestamp(),
            ends=_NO_END if item.next_update_utc is None else item.next_update_utc.timestamp(),
        )
        for item in revocations(pem)
    ]
