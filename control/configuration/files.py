"""Certificates, keys and authorities: files that must be there, be PEM and fit together before anything starts."""

import os
import ssl

__all__ = ["authority_fault", "identity_fault", "readable_fault"]


def readable_fault(path: str) -> str | None:
    """Why a file cannot be read, or None."""
    try:
        with open(path, "rb") as file:
            file.read(1)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return None


def authority_fault(path: str) -> str | None:
    """Why a file is no list of authorities, or None."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        return f"holds no certificate in PEM form ({error.reason or error})"
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
        if error.reason == "KEY_VALUES_MISMATCH":
            return "key", f"is not the key of the certificate {os.path.basename(certificate)}"
        return "key", f"is no private key in PEM form ({error.reason or error})"
    return None


class _EncryptedKeyError(Exception):
    """The key file asks for a password."""


def _refuse_password() -> str:
    raise _EncryptedKeyError
