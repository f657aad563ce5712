"""Identities from certificates: the names that become principals, and the public keys (pins) that an upstream's certificate may have.

Alternative names are those of RFC 5280, 4.2.1.6: URIs (such as a SPIFFE id), DNS names and e-mail addresses. A pin is that of RFC 7469, 2.4. OpenSSL
hands a verified certificate over in DER form, and the standard library reads none.
"""

import base64
import binascii
import hashlib
from collections.abc import Iterable
from typing import Final, Literal

from framegate.proxy.auth.mapping_rules import MappingRules
from framegate.proxy.config.tls import NameSource
from framegate.proxy.errors import AuthenticationError
from framegate.proxy.network.authenticator import ANONYMOUS, Authenticator, AuthenticatorFactory, HandshakeAuthenticator
from framegate.proxy.network.certificate import OCTETS, OID, SEQUENCE, Element, elements, only
from framegate.proxy.network.transport import Identity

NameKind = Literal["uri", "dns", "email"]

_TAGS: Final[dict[NameKind, int]] = {"email": 0x81, "dns": 0x82, "uri": 0x86}
_EXTENSIONS: Final = 0xA3
_SUBJECT_ALTERNATIVE_NAME: Final = b"\x55\x1d\x11"  # 2.5.29.17
_PIN_PREFIX: Final = "sha256/"
_VERSION: Final = 0xA0
_BEFORE_KEY: Final = 5  # serial number, signature, issuer, validity, subject
_NO_CERTIFICATE: Final = HandshakeAuthenticator(ANONYMOUS)


def _fields(certificate: bytes) -> list[Element]:
    signed = next((item.content for item in elements(only(certificate))), b"")
    return list(elements(signed))


def alternative_names(certificate: bytes, kind: NameKind) -> list[str]:
    """The alternative names of one kind in a certificate in DER form, in its order. Raises AuthenticationError: it cannot be read, or a name has
    characters that are not allowed.
    """
    wanted = _TAGS[kind]
    names: list[str] = []
    for tag, name, _ in elements(_names_extension(certificate)):
        if tag != wanted:
            continue
        if not name or not all(0x20 < byte < 0x7F for byte in name):
            raise AuthenticationError(f"the certificate has a {kind} name with characters that none has: {name!r}")
        names.append(name.decode("ascii"))
    return names


def _names_extension(certificate: bytes) -> bytes:
    """The elements of the extension with the alternative names; empty without it."""
    for tag, content, _ in _fields(certificate):
        if tag == _EXTENSIONS:
            for extension in elements(only(content)):
                fields = list(elements(extension.content))
                if len(fields) >= 2 and fields[0][:2] == (OID, _SUBJECT_ALTERNATIVE_NAME) and fields[-1].tag == OCTETS:
                    return only(fields[-1].content)
    return b""


class MappedAuthenticators(AuthenticatorFactory):
    """The principal is the first name that a rule matches, and ``ANONYMOUS`` without a certificate. A certificate without such a name is refused: a
    client that shows one does not want to be anonymous.
    """

    def __init__(self, rules: MappingRules, source: NameSource = "subject") -> None:
        """rules: map names to principals. source: which names: the subject's distinguished name, or the alternative names of one kind."""
        self._rules: Final = rules
        self._source: Final[NameSource] = source

    def make(self, identity: Identity) -> HandshakeAuthenticator:
        names = self._names(identity)
        if names is None:
            return _NO_CERTIFICATE
        for name in names:
            principal = self._rules.apply(name)
            if principal:
                return HandshakeAuthenticator(principal)
            if principal is not None:
                raise AuthenticationError(f"the rules map the {self._source} name {name!r} to an empty one")
        if not names:
            raise AuthenticationError(f"the certificate has no {self._source} name")
        raise AuthenticationError(f"no rule matches the {self._source} name {', '.join(map(repr, names))}")

    def _names(self, identity: Identity) -> list[str] | None:
        if self._source == "subject":
            if identity.subject is None:
                return None
            return [identity.subject] if identity.subject else []
        return None if identity.certificate is None else alternative_names(identity.certificate, self._source)


def key_pin(certificate: bytes) -> str:
    """The pin of the public key of a certificate in DER form: ``sha256/`` and the base64 of the SHA-256 of its SubjectPublicKeyInfo. Raises
    AuthenticationError: it cannot be read.
    """
    fields = [item for item in _fields(certificate) if item.tag != _VERSION]
    if len(fields) <= _BEFORE_KEY or fields[_BEFORE_KEY].tag != SEQUENCE:
        raise AuthenticationError("the certificate cannot be read: it has no public key")
    return _PIN_PREFIX + base64.b64encode(hashlib.sha256(fields[_BEFORE_KEY].encoded).digest()).decode("ascii")


def pin_fault(pin: str) -> str | None:
    """Why a text is not a pin; None: it is one."""
    if not pin.startswith(_PIN_PREFIX):
        return f"must be {_PIN_PREFIX} and the base64 of the SHA-256 of a public key"
    try:
        size = len(base64.b64decode(pin.removeprefix(_PIN_PREFIX), validate=True))
    except (binascii.Error, ValueError):
        return "is no base64"
    return None if size == hashlib.sha256().digest_size else f"has {size} bytes, and a SHA-256 has {hashlib.sha256().digest_size}"


class PinnedAuthenticators(AuthenticatorFactory):
    """Refuses a certificate with another public key; otherwise another factory makes the authenticator."""

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
