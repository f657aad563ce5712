"""Pins: an upstream's certificate must have one of certain public keys, whatever authority vouches for it (RFC 7469 2.4 for how a key is named)."""

import base64
import binascii
import hashlib
from collections.abc import Iterable
from typing import Final

from framegate.proxy.errors import AuthenticationError
from framegate.proxy.network.authenticator import Authenticator, AuthenticatorFactory
from framegate.proxy.network.certificate import SEQUENCE, elements, only
from framegate.proxy.network.transport import Identity

__all__ = ["PinnedAuthenticators", "key_pin", "pin_fault"]

_PREFIX: Final = "sha256/"
_VERSION: Final = 0xA0
_BEFORE_KEY: Final = 5  # serial number, signature, issuer, validity, subject


def key_pin(certificate: bytes) -> str:
    """The pin of a certificate's public key: ``sha256/`` and the base64 of the SHA-256 of its SubjectPublicKeyInfo.

    Args:
        certificate: in DER form.

    Raises:
        AuthenticationError: it cannot be read.
    """
    signed = next((item.content for item in elements(only(certificate))), b"")
    fields = [item for item in elements(signed) if item.tag != _VERSION]
    if len(fields) <= _BEFORE_KEY or fields[_BEFORE_KEY].tag != SEQUENCE:
        raise AuthenticationError("the certificate cannot be read: it has no public key")
    return _PREFIX + base64.b64encode(hashlib.sha256(fields[_BEFORE_KEY].encoded).digest()).decode("ascii")


def pin_fault(pin: str) -> str | None:
    """Why a text is no pin, or None."""
    if not pin.startswith(_PREFIX):
        return f"must be {_PREFIX} and the base64 of the SHA-256 of a public key"
    try:
        size = len(base64.b64decode(pin.removeprefix(_PREFIX), validate=True))
    except (binascii.Error, ValueError):
        return "is no base64"
    return None if size == hashlib.sha256().digest_size else f"has {size} bytes, and a SHA-256 has {hashlib.sha256().digest_size}"


class PinnedAuthenticators(AuthenticatorFactory):
    """Refuses a certificate with another key; a certificate with one of the keys goes on to another factory."""

    def __init__(self, pins: Iterable[str], factory: AuthenticatorFactory) -> None:
        self._pins: Final = frozenset(pins)
        self._factory: Final = factory

    def make(self, identity: Identity) -> Authenticator:
        if identity.certificate is None:
            raise AuthenticationError("there is no certificate, and its key is pinned")
        pin = key_pin(identity.certificate)
        if pin not in self._pins:
            raise AuthenticationError(f"the certificate {identity.subject!r} has the key {pin}, which is none of pins")
        return self._factory.make(identity)
