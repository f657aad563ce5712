"""Certificates, keys and authorities: the files that a configuration names, and what is in them when framegate starts.

All processors serve the contents that control read, judged and sent to them at its start, whenever they are started themselves. Files that are
replaced later are handled in ``framegate.control.rotation``.

``cryptography`` takes 45 ms and 16 MiB to load, so it is loaded only in processes that read a configuration or renewed files and then end (``child``,
``framegate.control.rotation.validator``).
"""

import contextlib
import dataclasses
import re
import typing
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from framegate.control.configuration.document import ConfigurationError, Fault
from framegate.proxy.config.key import Key, keys
from framegate.proxy.config.model import ProxyConfig
from framegate.proxy.config.tls import ListenerTls, UpstreamTls
from framegate.proxy.errors import ConfigError
from framegate.proxy.server.rows import Store, listener_owner, upstream_owner

if TYPE_CHECKING:
    from cryptography import x509

MAX_BYTES: Final = 16 * 1024 * 1024  # of all files together: they go to each processor in one message
_SHORT: Final = 16
_NO_END: Final = 253_402_300_799.0  # the last second of the year 9999, as RFC 5280 has it
_REVOCATIONS: Final = re.compile(b"-----BEGIN X509 CRL-----.*?-----END X509 CRL-----", re.DOTALL)


@dataclasses.dataclass(frozen=True, slots=True)
class CertificateFacts:
    """One certificate, or one revocation list."""

    # subject, issuer: in RFC 4514 form; the subject of a list is empty, that of a certificate may be
    subject: str
    issuer: str
    names: tuple[str, ...]  # the alternative names, as ``DNS:…``, ``IP:…``, ``URI:…``, ``email:…`` or ``other:…``, sorted
    serial: str  # in hexadecimal
    fingerprint: str  # SHA-256 of its DER form, in hexadecimal
    # begins, ends: seconds since 1970
    begins: float
    ends: float


class TlsFile(NamedTuple):
    """A file that a section of the configuration names: the section's owner, as in ``framegate.proxy.server.rows``, the whole key, as in
    ``listeners[0].tls.key``, and its last part.
    """

    owner: str
    key: str
    name: str
    path: str


def tls_sections(config: ProxyConfig) -> dict[str, tuple[str, ListenerTls | UpstreamTls]]:
    """Every section of TLS with its key, by owner."""
    found: dict[str, tuple[str, ListenerTls | UpstreamTls]] = {}
    for index, listener in enumerate(config.listeners):
        if listener.tls is not None:
            found[listener_owner(listener.name)] = f"listeners[{index}].tls", listener.tls
    for index, upstream in enumerate(config.upstreams):
        if upstream.tls is not None:
            found[upstream_owner(upstream.name)] = f"upstreams[{index}].tls", upstream.tls
    return found


def tls_files(config: ProxyConfig) -> list[TlsFile]:
    """All files that are named, in the order of the configuration; a file is there once for each key that names it."""
    return [TlsFile(owner, *found) for owner, (key, section) in tls_sections(config).items() for found in named_paths(section, key)]


def named_paths(section: Any, key: str = "") -> Iterator[tuple[str, str, str]]:
    """Every file and folder that a section of the configuration names: the whole key (``key`` is the section's), its last name, the path."""
    return ((where, name, value) for where, name, said, value in _leaves(section, key) if said.unit == "path" and value is not None)


def named_here(config: ProxyConfig) -> dict[tuple[str, str], str]:
    """The files, folders, Unix sockets and handlers that a configuration names: for the last name of a key and its value, the whole key."""
    return {
        (name, value): where
        for where, name, said, value in _leaves(config)
        if isinstance(value, str) and (said.unit == "path" or name == "handler" or (said.unit == "address" and value.startswith("unix:")))
    }


def _leaves(section: Any, key: str = "") -> Iterator[tuple[str, str, Key, Any]]:
    """Every value of a section and of those in it: its whole key, the last name, what is said of it, and the value."""
    for name, said in keys(typing.cast(type, type(section))).items():
        value, within = getattr(section, name), f"{key}.{name}" if key else name
        for place, item in enumerate(value) if isinstance(value, tuple) else [(-1, value)]:
            where = within if place < 0 else f"{within}[{place}]"
            if dataclasses.is_dataclass(item):
                yield from _leaves(item, where)
            else:
                yield where, name, said, item


def read_tls_files(config: ProxyConfig) -> dict[str, str]:
    """The contents of the files that a configuration names, by path; each character stands for one byte (Latin-1). Raises ConfigurationError: one
    cannot be read, they are too large, or they do not fit together: a file changed since it was validated.
    """
    files: dict[str, bytes] = {}
    faults: list[Fault] = []
    left = MAX_BYTES
    for _, key, _, path in tls_files(config):
        if path in files:
            continue
        try:
            with open(path, "rb") as file:
                files[path] = file.read(left + 1)
        except OSError as error:
            faults.append(Fault(0, key, path, f"cannot be read: {error.strerror or error}"))
            continue
        left -= len(files[path])
        if left < 0:
            raise ConfigurationError([Fault(0, key, path, f"certificates, keys and authorities have more than {MAX_BYTES >> 20} MiB together")])
    faults = faults or _context_faults(config, files)
    if faults:
        raise ConfigurationError(faults)
    return {path: content.decode("latin-1") for path, content in files.items()}


def _context_faults(config: ProxyConfig, files: dict[str, bytes]) -> list[Fault]:
    """Faults when the contexts are built that the processors will build."""
    if not files:
        return []
    from framegate.proxy.network.tls_context import server_store, upstream_context  # it loads OpenSSL

    faults = []
    for key, tls in tls_sections(config).values():
        try:
            if isinstance(tls, ListenerTls):
                server_store(tls, files)
            else:
                upstream_context(tls, files)
        except ConfigError as error:
            faults.append(Fault(0, key, "", str(error)))
    return faults


def describe_files(files: Mapping[str, str]) -> dict[str, list[CertificateFacts]]:
    """The certificates or revocation lists in files, by path; an empty list for a file with neither, or that only OpenSSL can read."""
    return {path: _described(content.encode("latin-1")) for path, content in files.items()}


def _described(pem: bytes) -> list[CertificateFacts]:
    for read in (describe, describe_revocations):
        with contextlib.suppress(ValueError):
            return read(pem)
    return []


def first_stores(config: ProxyConfig, files: Mapping[str, str], certificates: Mapping[str, list[CertificateFacts]]) -> dict[str, Store]:
    """The store of each owner at the start."""
    named = tls_files(config)
    return {
        owner: Store(1, shown_of(section, certificates), {item.path: files[item.path] for item in named if item.owner == owner})
        for owner, (_, section) in tls_sections(config).items()
    }


def identities(section: ListenerTls | UpstreamTls) -> list[tuple[str, str]]:
    """The files of the certificates that peers may be shown, with the first of the hosts that each is for; "" is for all other hosts."""
    own = [] if section.certificate is None else [("", section.certificate)]
    others = section.certificates if isinstance(section, ListenerTls) else ()
    return own + [(item.names[0], item.certificate) for item in others]


def shown_of(section: ListenerTls | UpstreamTls, certificates: Mapping[str, list[CertificateFacts]]) -> str:
    """The short fingerprint of the certificate that is shown to peers who ask for no other host; empty: none."""
    return next((short_fingerprint(certificates[path][0].fingerprint) for host, path in identities(section) if not host and certificates[path]), "")


def validity_of(owner: str, section: ListenerTls | UpstreamTls, certificates: Mapping[str, list[CertificateFacts]]) -> dict[str, tuple[float, float]]:
    """From when to when each readable certificate is valid that peers may be shown: by owner, or ``OWNER/HOST`` with the first of its hosts; and the
    section's revocation list that ends first, as ``OWNER/crl``.
    """
    shown = {f"{owner}/{host}" if host else owner: certificates[path][0] for host, path in identities(section) if certificates[path]}
    lists = [facts for path in revocation_lists(section) for facts in certificates[path]]
    found = {**shown, f"{owner}/crl": min(lists, key=lambda facts: facts.ends)} if lists else shown
    return {name: (facts.begins, facts.ends) for name, facts in found.items()}


def revocation_lists(section: ListenerTls | UpstreamTls) -> list[str]:
    """The files of revocation lists that a section names."""
    if not isinstance(section, ListenerTls):
        return []
    return [*section.crl, *(path for item in section.certificates for path in item.crl)]


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
    except (
        x509.ExtensionNotFound,
        x509.DuplicateExtension,
        ValueError,
    ):  # an authority made by others may have broken extensions, which do not matter
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
    """The DNS names of the first certificate of a PEM file, in lower case; if it has none, its common name, as clients read it then. Raises
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
