"""What TLS asks of its keys: files that can be read and fit together, versions, ciphers and a curve that OpenSSL has, names that are hosts."""

import re
from typing import Final

from framegate.control.configuration.document import Document, Path, entries
from framegate.control.configuration.files import (
    authority_fault,
    cipher_fault,
    curve_fault,
    exposure_warning,
    host_warning,
    identity_fault,
    readable_file,
    revocation_fault,
    revocation_warning,
    validity_warning,
)
from framegate.proxy.auth.certificates import pin_fault
from framegate.proxy.config.tls import ListenerTls, NamedCertificate, UpstreamTls

__all__ = ["listener_tls_rules", "upstream_tls_rules"]

_HOST: Final = re.compile(r"(\*\.)?([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z][a-z0-9-]{0,62}\.?", re.IGNORECASE)
_MAX_HOST: Final = 253
_MAX_PROTOCOL: Final = 255


def listener_tls_rules(document: Document, path: Path, tls: ListenerTls) -> None:
    """Of ``listeners[].tls``."""
    _identity(document, path, tls)
    _clients(document, path, tls)
    if tls.client_auth in ("requested", "required") and tls.client_ca is None:
        document.add((*path, "client_auth"), "needs client_ca: the authorities that clients' certificates must chain to")
    for place, section in ((path, tls), *entries((*path, "certificates"), tls.certificates)):
        for name in ("client_ca", "crl"):
            if tls.client_auth == "none" and getattr(section, name):
                document.warn((*place, name), "has no effect: client_auth is none, no client is asked for a certificate")
    _handshake(document, path, tls)
    _certificates(document, (*path, "certificates"), tls)


def upstream_tls_rules(document: Document, path: Path, tls: UpstreamTls) -> None:
    """Of ``upstreams[].tls``."""
    _authorities(document, (*path, "ca"), tls.ca)
    _identity(document, path, tls)
    for name, other in (("certificate", "key"), ("key", "certificate")):
        if getattr(tls, name) is not None and getattr(tls, other) is None:
            document.add((*path, name), f"needs {other} beside it")
    for entry, pin in entries((*path, "pins"), tls.pins):
        document.add(entry, pin_fault(pin))


def _handshake(document: Document, path: Path, tls: ListenerTls) -> None:
    """Versions, ciphers, the curve, ALPN."""
    least, most = tls.min_version, tls.max_version
    if least > most:
        key = "min_version" if (*path, "min_version") in document.texts else "max_version"
        document.add((*path, key), f"leaves no version: the lowest is {least}, the highest {most}")
    if tls.ciphers is not None:
        document.add((*path, "ciphers"), cipher_fault(tls.ciphers))
        if least == "1.3":
            document.warn((*path, "ciphers"), "has no effect: min_version is 1.3, and TLS 1.3 has ciphers of its own")
    if tls.curve is not None:
        document.add((*path, "curve"), curve_fault(tls.curve))
    for entry, name in entries((*path, "alpn"), tls.alpn):
        if not name.isascii() or not 0 < len(name) <= _MAX_PROTOCOL:
            document.add(entry, f"must be 1 to {_MAX_PROTOCOL} ASCII characters")


def _certificates(document: Document, path: Path, tls: ListenerTls) -> None:
    first: dict[str, Path] = {}
    for entry, item in entries(path, tls.certificates):
        _identity(document, entry, item)
        _clients(document, entry, item)
        if item.crl and item.client_ca is None:
            document.add((*entry, "crl"), "needs client_ca beside it; those of the listener's authorities stand beside these")
        if not item.names:
            document.add((*entry, "names"), "needs at least one host")
        for place, name in entries((*entry, "names"), item.names):
            host = name.lower().rstrip(".")
            if not _HOST.fullmatch(name) or len(host) > _MAX_HOST:
                document.add(place, "is no host that a client can ask for: broker.example.org, or *.example.org; never a number")
                continue
            document.once(place, host, first)
            if document.files:
                document.warn(place, host_warning(item.certificate, name))


def _identity(document: Document, path: Path, tls: ListenerTls | NamedCertificate | UpstreamTls) -> None:
    certificate, key = (readable_file(document, (*path, name), getattr(tls, name)) for name in ("certificate", "key"))
    if certificate is not None and key is not None and (fault := identity_fault(certificate, key)) is not None:
        document.add((*path, fault[0]), fault[1])
    if certificate is not None:
        document.warn((*path, "certificate"), validity_warning(certificate))
    if key is not None:
        document.warn((*path, "key"), exposure_warning(key))


def _clients(document: Document, path: Path, tls: ListenerTls | NamedCertificate) -> None:
    """The authorities of clients' certificates, and what they revoked."""
    _authorities(document, (*path, "client_ca"), tls.client_ca)
    for entry, value in entries((*path, "crl"), tls.crl):
        lists = readable_file(document, entry, value)
        if lists is not None:
            document.add(entry, revocation_fault(lists))
            document.warn(entry, revocation_warning(lists))


def _authorities(document: Document, path: Path, value: str | None) -> None:
    authorities = readable_file(document, path, value)
    if authorities is not None:
        document.add(path, authority_fault(authorities))
        document.warn(path, validity_warning(authorities, all_of_them=True))
