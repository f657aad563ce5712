"""The four messages of SCRAM (RFC 5802, 7), read strictly and written.

    client-first   n,[a=authzid],n=user,r=nonce[,extensions]
    server-first   r=nonce,s=salt,i=iterations[,extensions]
    client-final   c=binding,r=nonce[,extensions],p=proof
    server-final   v=signature[,extensions]   or   e=error

A message that begins with ``m=`` has a mandatory extension (5.1). None is supported, so it is refused.
"""

import base64
import binascii
import re
from dataclasses import dataclass, field
from typing import Final

from framegate.proxy.auth.mechanism import RefusalError, escape_name, unescape_name

GS2_HEADER: Final = "n,,"
_NONCE: Final = re.compile(r"[\x21-\x2b\x2d-\x7e]+")
MAX_EXTENSIONS: Final = 128  # in a message; all are ignored
_EXTENSION: Final = re.compile(r"[A-Za-z]+=[^,\0]+")
_COUNT: Final = re.compile(r"[1-9][0-9]{0,9}")


@dataclass(frozen=True, slots=True)
class ClientFirst:
    """The user, and the client's half of the nonce."""

    user: str
    nonce: str
    authorization: str = ""
    gs2_header: str = GS2_HEADER  # as it was written; the final message repeats it
    bare: str = ""  # the message without the header, as it was written
    extensions: tuple[str, ...] = ()  # each ``key=value``

    @classmethod
    def of(cls, user: str, nonce: str, *, extensions: tuple[str, ...] = ()) -> "ClientFirst":
        bare = ",".join((f"n={escape_name(user)}", f"r={nonce}", *extensions))
        return cls(user, nonce, bare=bare, extensions=extensions)

    @classmethod
    def read(cls, message: bytes) -> "ClientFirst":
        text = _text(message)
        flag, _, behind = text.partition(",")
        authorization, *fields = behind.split(",")
        header = f"{flag},{authorization},"
        if flag != "n":
            raise RefusalError("channel binding is asked for; there is none" if flag.startswith(("p=", "y")) else "no client-first message")
        if authorization and not authorization.startswith("a="):
            raise RefusalError("no client-first message: its authorization id")
        user, nonce = _first(fields, "n=", "r=", what="client-first")
        return cls(
            unescape_name(user),
            _nonce(nonce),
            unescape_name(authorization[2:]) if authorization else "",
            header,
            text[len(header) :],
            _extensions(fields[2:]),
        )

    def write(self) -> bytes:
        return (self.gs2_header + self.bare).encode()


@dataclass(frozen=True, slots=True)
class ServerFirst:
    """The whole nonce, and the parameters for the keys of the password."""

    nonce: str
    salt: bytes
    iterations: int
    text: str = ""

    @classmethod
    def of(cls, nonce: str, salt: bytes, iterations: int) -> "ServerFirst":
        return cls(nonce, salt, iterations, f"r={nonce},s={base64.b64encode(salt).decode()},i={iterations}")

    @classmethod
    def read(cls, message: bytes) -> "ServerFirst":
        text = _text(message)
        fields = text.split(",")
        nonce, salt, iterations = _first(fields, "r=", "s=", "i=", what="server-first")
        if not _COUNT.fullmatch(iterations):
            raise RefusalError("no server-first message: its count of iterations")
        _extensions(fields[3:])
        return cls(_nonce(nonce), _base64(salt), int(iterations), text)

    def write(self) -> bytes:
        return self.text.encode()


@dataclass(frozen=True, slots=True)
class ClientFinal:
    """The proof. ``unproven``: the message before it, as it was written."""

    binding: bytes
    nonce: str
    proof: bytes = field(repr=False, default=b"")
    unproven: str = ""

    @classmethod
    def of(cls, gs2_header: str, nonce: str) -> "ClientFinal":
        """Make a message without a proof, which is computed from ``unproven``."""
        binding = gs2_header.encode()
        return cls(binding, nonce, unproven=f"c={base64.b64encode(binding).decode()},r={nonce}")

    @classmethod
    def read(cls, message: bytes) -> "ClientFinal":
        text = _text(message)
        unproven, comma, proof = text.rpartition(",p=")
        fields = unproven.split(",")
        if not comma:
            raise RefusalError("no client-final message: no proof")
        binding, nonce = _first(fields, "c=", "r=", what="client-final")
        _extensions(fields[2:])
        return cls(_base64(binding), _nonce(nonce), _base64(proof), unproven)

    def write(self, proof: bytes) -> bytes:
        return f"{self.unproven},p={base64.b64encode(proof).decode()}".encode()


@dataclass(frozen=True, slots=True)
class ServerFinal:
    """The server's proof that it knows the user, or its error."""

    signature: bytes = field(repr=False, default=b"")
    error: str = ""

    @classmethod
    def read(cls, message: bytes) -> "ServerFinal":
        first, *rest = _text(message).split(",")
        _extensions(rest)
        if first.startswith("e=") and len(first) > 2:
            return cls(error=first[2:])
        if not first.startswith("v="):
            raise RefusalError("no server-final message")
        return cls(_base64(first[2:]))

    def write(self) -> bytes:
        return f"v={base64.b64encode(self.signature).decode()}".encode()


def _text(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise RefusalError("the message is not UTF-8") from None


def _first(fields: list[str], *names: str, what: str) -> list[str]:
    """The values of the fields that must come first, in the order of ``names``."""
    if fields and fields[0].startswith("m="):
        raise RefusalError(f"the {what} message has a mandatory extension, which nobody understands")
    if len(fields) < len(names) or not all(text.startswith(name) and len(text) > 2 for name, text in zip(names, fields, strict=False)):
        raise RefusalError(f"no {what} message: its fields do not begin with {', '.join(names)}")  # do not quote them: they may be a password
    return [text[2:] for text, _ in zip(fields, names, strict=False)]


def _extensions(fields: list[str]) -> tuple[str, ...]:
    if len(fields) > MAX_EXTENSIONS:
        raise RefusalError(f"{len(fields)} extensions, more than {MAX_EXTENSIONS}")
    if not all(_EXTENSION.fullmatch(text) for text in fields):
        raise RefusalError("an extension that is none")
    return tuple(fields)


def _nonce(text: str) -> str:
    if not _NONCE.fullmatch(text):
        raise RefusalError("a nonce with characters that none has")
    return text


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise RefusalError("a value that is not base64") from None
