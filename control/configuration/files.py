"""Certificates, keys, authorities and revocation lists: files that must be there, be PEM and fit together before anything starts."""

import os
import ssl
import stat
import time
from collections.abc import Callable
from typing import Final, TypeVar

from framegate.control.configuration.certificate import describe, describe_revocations, hosts
from framegate.control.configuration.document import Document, Path

__all__ = [
    "EXPOSED",
    "authority_fault",
    "cipher_fault",
    "curve_fault",
    "exposure_warning",
    "host_warning",
    "identity_fault",
    "readable_fault",
    "readable_file",
    "revocation_fault",
    "revocation_warning",
    "validity_warning",
]

Found = TypeVar("Found")
EXPOSED: Final = "can be read or written by everybody"
"""How a warning of a file with a secret in it begins."""


def readable_fault(path: str) -> str | None:
    """Why a file cannot be read, or None. It must be an ordinary one: a pipe can be read once, and several processes read it."""
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
    """The path of a file that can be read, or None, with a fault where it should be here."""
    if value is None or not document.files:
        return None
    reason = readable_fault(value)
    document.add(path, reason)
    return value if reason is None else None


def exposure_warning(path: str) -> str | None:
    """That everybody may read or write a file with a secret in it, or None. In a pod reading does not count: nobody else looks into framegate's
    container, and of a Secret that is mounted, which is root's, framegate itself is one of all.
    """
    wrong = stat.S_IWOTH if "KUBERNETES_SERVICE_HOST" in os.environ else stat.S_IROTH | stat.S_IWOTH
    return f"{EXPOSED} on this machine; chmod 600" if os.stat(path).st_mode & wrong else None


def authority_fault(path: str) -> str | None:
    """Why a file is no list of authorities, or None."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        return f"holds no certificate in PEM form ({error.reason or error})"
    return None


def revocation_fault(path: str) -> str | None:
    """Why a file holds no revocation list, or None."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    reason = ""
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        reason = f" ({error.reason or error})"
    return None if context.cert_store_stats()["crl"] else f"holds no revocation list in PEM form{reason}"


def revocation_warning(path: str) -> str | None:
    """Whether one of a readable file's revocation lists has ended; None when all is well, or the file is none of ours to judge."""
    ended = [item.ends for item in _read(path, describe_revocations) if item.ends <= time.time()]
    return f"expired on {_day(min(ended))}: every client of its authority is refused" if ended else None


def _read(path: str, describe: Callable[[bytes], list[Found]]) -> list[Found]:
    """What a file holds; nothing where it cannot be read or is broken, which is found elsewhere."""
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
    """What is wrong with a readable pair of files: ``("certificate" or "key", reason)``, or None."""
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
    """Whether a readable file's certificate lacks a host, or a pattern of hosts; None when it has it, or the file is none of ours to judge."""
    found = _read(path, lambda pem: [hosts(pem)])
    names, wanted = found[0] if found else [], host.lower().rstrip(".")
    if not found or wanted in names or f"*.{wanted.partition('.')[2]}" in names:
        return None
    return f"is no name of {os.path.basename(path)}, which has {', '.join(names) or 'none'}: clients that verify it refuse it"


def validity_warning(path: str, *, all_of_them: bool = False) -> str | None:
    """Whether a readable file's certificate has ended or not begun; None when all is well, or the file is none of ours to judge.

    Args:
        path: a PEM file.
        all_of_them: it holds authorities, one of which is enough; otherwise a chain, of which each is needed.
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
