"""Rules of TLS: files that can be read and fit together, versions, ciphers and a curve that OpenSSL has, names that are hosts."""

import os
import re
import ssl
import stat
import time
from collections.abc import Callable
from typing import Final, TypeVar

from framegate.control.configuration.document import Document, Path, entries
from framegate.control.configuration.tls_files import describe, describe_revocations, hosts
from framegate.proxy.auth.certificates import pin_fault
from framegate.proxy.config.tls import ListenerTls, NamedCertificate, UpstreamTls

HOST: Final = re.compile(r"(\*\.)?([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z][a-z0-9-]{0,62}\.?", re.IGNORECASE)
"""A host name, or a pattern of host names, that a client can ask for."""
_MAX_HOST: Final = 253
_MAX_PROTOCOL: Final = 255
Found = TypeVar("Found")
EXPOSED: Final = "can be read or written by everybody"  # the beginning of the warning of ``exposure_warning``


def listener_tls_rules(document: Document, path: Path, tls: ListenerTls) -> None:
    """Check ``listeners[].tls``."""
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
    """Check ``upstreams[].tls``."""
    _authorities(document, (*path, "ca"), tls.ca)
    _identity(document, path, tls)
    for name, other in (("certificate", "key"), ("key", "certificate")):
        if getattr(tls, name) is not None and getattr(tls, other) is None:
            document.add((*path, name), f"needs {other} beside it")
    for entry, pin in entries((*path, "pins"), tls.pins):
        document.add(entry, pin_fault(pin))


def _handshake(document: Document, path: Path, tls: ListenerTls) -> None:
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
            if not HOST.fullmatch(name) or len(host) > _MAX_HOST:
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


def readable_fault(path: str) -> str | None:
    """Why a file cannot be read, or None. It must be a regular file: several processes read it, and a pipe can be read once."""
    try:
        mode = os.stat(path).st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            return "cannot be read: it is no ordinary file"
        with open(path, "rb") as file:
            file.read(1)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return None


def readable_file(document: Document, path: Path, value: str | None) -> str | None:
    """The path of a file if it can be read, else None, with a fault if files are looked at."""
    if value is None or not document.files:
        return None
    reason = readable_fault(value)
    document.add(path, reason)
    return value if reason is None else None


def exposure_warning(path: str) -> str | None:
    """Whether everybody may read or write a file with a secret in it. In a pod only writing counts: nobody else has access to framegate's container,
    and of a mounted Secret, which belongs to root, framegate itself reads as everybody.
    """
    wrong = stat.S_IWOTH if "KUBERNETES_SERVICE_HOST" in os.environ else stat.S_IROTH | stat.S_IWOTH
    return f"{EXPOSED} on this machine; chmod 600" if os.stat(path).st_mode & wrong else None


def authority_fault(path: str) -> str | None:
    """Why a file has no authorities, or None."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        return f"holds no certificate in PEM form ({error.reason or error})"
    return None


def revocation_fault(path: str) -> str | None:
    """Why a file has no revocation list, or None."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    reason = ""
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        reason = f" ({error.reason or error})"
    return None if context.cert_store_stats()["crl"] else f"holds no revocation list in PEM form{reason}"


def revocation_warning(path: str) -> str | None:
    """Whether a revocation list of a file has ended; None also if the file cannot be read."""
    ended = [item.ends for item in _read(path, describe_revocations) if item.ends <= time.time()]
    return f"expired on {_day(min(ended))}: every client of its authority is refused" if ended else None


def _read(path: str, describe: Callable[[bytes], list[Found]]) -> list[Found]:
    """The contents of a file; nothing if it cannot be read or is broken, which is a fault of its own."""
    try:
        with open(path, "rb") as file:
            return describe(file.read())
    except (OSError, ValueError):
        return []


def cipher_fault(ciphers: str) -> str | None:
    """Why OpenSSL does not take a list of ciphers, or None."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.set_ciphers(ciphers)
    except ssl.SSLError:
        return "names no cipher that OpenSSL has for TLS 1.2 (openssl ciphers -v prints them)"
    weak = [item["name"] for item in context.get_ciphers() if item["strength_bits"] == 0 or item["auth"] == "auth-null"]
    return f"names ciphers that do not encrypt, or do not prove who we are: {', '.join(weak)}" if weak else None


def curve_fault(curve: str) -> str | None:
    """Why OpenSSL does not take a curve, or None."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).set_ecdh_curve(curve)
    except (ValueError, ssl.SSLError):
        return "is no group for a key exchange that OpenSSL has, such as prime256v1, secp384r1 or X25519"
    return None


def identity_fault(certificate: str, key: str) -> tuple[str, str] | None:
    """The fault of a readable pair of files: ``("certificate" or "key", reason)``, or None."""
    reason = authority_fault(certificate)
    if reason is not None:
        return "certificate", reason
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key, password=_refuse_password)
    except _EncryptedKeyError:
        return "key", "is encrypted; framegate reads keys without a password only"
    except ssl.SSLError as error:
        reason = error.reason or ""
        if reason == "KEY_VALUES_MISMATCH":
            return "key", f"is not the key of the certificate {os.path.basename(certificate)}"
        if reason in ("NO_CERTIFICATE_ASSIGNED", "KEY_TYPE_MISMATCH"):  # OpenSSL keeps one certificate for each type of key
            return "key", f"is not the key of the certificate {os.path.basename(certificate)}: it is of another type (RSA, EC, Ed25519)"
        if reason == "UNKNOWN_CERTIFICATE_TYPE":
            return "key", "is of a type that signs nothing in TLS; RSA, EC and Ed25519 do"
        if reason.endswith(("_TOO_SMALL", "_TOO_WEAK")):
            return "certificate", f"is refused by OpenSSL: {reason.lower().replace('_', ' ')}"
        return "key", f"is no private key in PEM form ({error.reason or error})"
    return None


def host_warning(path: str, host: str) -> str | None:
    """Whether a file's certificate lacks a host, or a pattern of hosts; None also if the file cannot be read."""
    found = _read(path, lambda pem: [hosts(pem)])
    names, wanted = found[0] if found else [], host.lower().rstrip(".")
    if not found or wanted in names or f"*.{wanted.partition('.')[2]}" in names:
        return None
    return f"is no name of {os.path.basename(path)}, which has {', '.join(names) or 'none'}: clients that verify it refuse it"


def validity_warning(path: str, *, all_of_them: bool = False) -> str | None:
    """Whether a file's certificate has ended or not begun; None also if the file cannot be read. ``all_of_them``: it has authorities, one of which is
    enough; otherwise a chain, of which each is needed.
    """
    found, now = _read(path, describe), time.time()
    ended = [item.ends for item in found if item.ends <= now]
    early = [item.begins for item in found if item.begins > now]
    if ended and (not all_of_them or len(ended) == len(found)):
        return f"expired on {_day(max(ended) if all_of_them else min(ended))}"
    if early and (not all_of_them or len(early) == len(found)):
        return f"is not valid before {_day(min(early) if all_of_them else max(early))}"
    return None


def _day(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(moment))


class _EncryptedKeyError(Exception):
    """The key file asks for a password."""


def _refuse_password() -> str:
    raise _EncryptedKeyError
