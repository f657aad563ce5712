"""What TLS asks of its keys: files that can be read and fit together, versions, ciphers and a curve that OpenSSL has, names that are hosts."""

import re
import typing
from typing import Any, Final

from control.configuration.document import Document, Path, key_of
from control.configuration.files import (
    authority_fault,
    cipher_fault,
    curve_fault,
    host_warning,
    identity_fault,
    readable_fault,
    revocation_fault,
    revocation_warning,
    validity_warning,
)
from control.configuration.values import Values, given, names_below
from proxy.auth.certificate_pins import pin_fault
from proxy.config.tls import ListenerTls, TlsVersion

__all__ = ["listener_tls_rules", "upstream_tls_rules"]

_HOST: Final = re.compile(r"(\*\.)?([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z][a-z0-9-]{0,62}\.?", re.IGNORECASE)
_VERSIONS: Final = typing.get_args(TlsVersion)
_MAX_HOST: Final = 253
_MAX_PROTOCOL: Final = 255


def listener_tls_rules(document: Document, path: Path, tls: object) -> None:
    """Of ``listeners[].tls``."""
    if not isinstance(tls, dict):
        return
    _identity(document, path, tls)
    _authorities(document, (*path, "client_ca"), tls.get("client_ca"))
    _revocations(document, path, tls)
    if tls.get("client_auth") in ("requested", "required") and tls.get("client_ca") is None and "client_ca" not in names_below(document, path):
        document.add((*path, "client_auth"), "needs client_ca: the authorities that clients' certificates must chain to")
    _without_effect(document, path, tls)
    _handshake(document, path, tls)
    _certificates(document, path, tls)


def upstream_tls_rules(document: Document, path: Path, tls: object) -> None:
    """Of ``upstreams[].tls``."""
    if not isinstance(tls, dict):
        return
    _authorities(document, (*path, "ca"), tls.get("ca"))
    named = [name for name in ("certificate", "key") if tls.get(name) is not None]
    if len(named) == 1:
        other = "key" if named[0] == "certificate" else "certificate"
        document.add((*path, named[0]), f"needs {other} beside it")
    _identity(document, path, tls)
    for index, pin in enumerate(_texts(tls.get("pins"))):
        _judge(document, (*path, "pins", index), pin_fault(pin))


def _without_effect(document: Document, path: Path, tls: Values) -> None:
    """What asks clients for something, where they are not asked for a certificate."""
    if given(tls, ListenerTls, "client_auth", document, path) != "none":
        return
    asked = [((*path, name), tls.get(name)) for name in ("client_ca", "crl")]
    for index, item in enumerate(_sections(tls.get("certificates"))):
        asked += [((*path, "certificates", index, name), item.get(name)) for name in ("client_ca", "crl")]
    for place, value in asked:
        if value:
            document.warn(place, "has no effect: client_auth is none, no client is asked for a certificate")


def _handshake(document: Document, path: Path, tls: Values) -> None:
    """Versions, ciphers, the curve, ALPN."""
    least, most = (given(tls, ListenerTls, name, document, path) for name in ("min_version", "max_version"))
    if least in _VERSIONS and most in _VERSIONS and least > most:
        document.add(
            (*path, "min_version" if "min_version" in tls else "max_version"), f"leaves no version: the lowest is {least}, the highest {most}"
        )
    if isinstance(ciphers := tls.get("ciphers"), str):
        _judge(document, (*path, "ciphers"), cipher_fault(ciphers))
        if least == "1.3":
            document.warn((*path, "ciphers"), "has no effect: min_version is 1.3, and TLS 1.3 has ciphers of its own")
    if isinstance(curve := tls.get("curve"), str):
        _judge(document, (*path, "curve"), curve_fault(curve))
    for index, name in enumerate(_texts(tls.get("alpn"))):
        if not name.isascii() or not 0 < len(name) <= _MAX_PROTOCOL:
            document.add((*path, "alpn", index), f"must be 1 to {_MAX_PROTOCOL} ASCII characters")


def _certificates(document: Document, path: Path, tls: Values) -> None:
    first: dict[str, Path] = {}
    for index, item in enumerate(_sections(tls.get("certificates"))):
        entry = (*path, "certificates", index)
        _identity(document, entry, item)
        _authorities(document, (*entry, "client_ca"), item.get("client_ca"))
        _revocations(document, entry, item)
        if item.get("crl") and item.get("client_ca") is None:
            document.add((*entry, "crl"), "needs client_ca beside it; those of the listener's authorities stand beside these")
        names = _texts(item.get("names"))
        if item.get("names") == []:
            document.add((*entry, "names"), "needs at least one host")
        for number, name in enumerate(names):
            place = (*entry, "names", number)
            if _host(document, place, name, first) and document.files and isinstance(item.get("certificate"), str):
                _warn(document, place, host_warning(item["certificate"], name))


def _host(document: Document, path: Path, name: str, first: dict[str, Path]) -> bool:
    """Whether it is one, and the first of that name."""
    host = name.lower().rstrip(".")
    if not _HOST.fullmatch(name) or len(host) > _MAX_HOST:
        document.add(path, "is no host that a client can ask for: broker.example.org, or *.example.org; never a number")
    elif host in first:
        document.add(path, f"is already a name of {key_of(first[host])} (line {document.line(first[host])})")
    else:
        first[host] = path
        return True
    return False


def _sections(value: Any) -> list[Values]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _texts(value: Any) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _judge(document: Document, path: Path, fault: str | None) -> None:
    if fault is not None:
        document.add(path, fault)


def _file(document: Document, path: Path, value: object) -> str | None:
    """The path of a file that can be read, or None, with a fault where it should be here."""
    if not isinstance(value, str) or not document.files:
        return None
    reason = readable_fault(value)
    if reason is not None:
        document.add(path, reason)
        return None
    return value


def _identity(document: Document, path: Path, tls: Values) -> None:
    certificate = _file(document, (*path, "certificate"), tls.get("certificate"))
    key = _file(document, (*path, "key"), tls.get("key"))
    if certificate is not None and key is not None:
        fault = identity_fault(certificate, key)
        if fault is not None:
            document.add((*path, fault[0]), fault[1])
    if certificate is not None:
        _warn(document, (*path, "certificate"), validity_warning(certificate))


def _authorities(document: Document, path: Path, value: object) -> None:
    authorities = _file(document, path, value)
    if authorities is not None:
        _judge(document, path, authority_fault(authorities))
        _warn(document, path, validity_warning(authorities, all_of_them=True))


def _revocations(document: Document, path: Path, tls: Values) -> None:
    for index, value in enumerate(_texts(tls.get("crl"))):
        entry = (*path, "crl", index)
        lists = _file(document, entry, value)
        if lists is not None:
            _judge(document, entry, revocation_fault(lists))
            _warn(document, entry, revocation_warning(lists))


def _warn(document: Document, path: Path, warning: str | None) -> None:
    if warning is not None:
        document.warn(path, warning)
