"""The interface of SASL mechanisms: from a message to the next one. No I/O and no time; look-ups are requests with a later response."""

import abc
import re
from dataclasses import dataclass, field
from typing import Final, TypeVar

from framegate.proxy.auth.auth_requests import AuthRequest, AuthResponse, Unavailable
from framegate.proxy.errors import AuthenticationError, InternalError

__all__ = [
    "Ask",
    "ClientMechanism",
    "Mechanism",
    "Next",
    "RefusalError",
    "Reply",
    "ServerMechanism",
    "escape_name",
    "expect",
    "printable",
    "unescape_name",
]

A = TypeVar("A")
_MAX_WORDS: Final = 200
_ESCAPED: Final = re.compile(r"(?:[^=,\0]|=2C|=3D)+")


class RefusalError(AuthenticationError):
    """The mechanism's end without success.

    Attributes:
        told: text for the peer, if it may get more than the failure; else empty.
    """

    def __init__(self, reason: str, *, told: str = "") -> None:
        super().__init__(reason)
        self.told: Final = told


@dataclass(frozen=True, slots=True)
class Reply:
    """Send this to the peer."""

    token: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask this, and ``resume`` with the answer."""

    auth_request: AuthRequest


Next = Reply | Ask


class Mechanism(abc.ABC):
    """One exchange, from the view of one of its sides.

    Attributes:
        complete: nothing more is expected of the peer; a last ``Reply`` still has to be sent.
    """

    def __init__(self) -> None:
        self.complete: bool = False

    @abc.abstractmethod
    def evaluate(self, token: bytes) -> Next | None:
        """What the peer said.

        Returns:
            What to do then; None: nothing, which is for a client that is complete.

        Raises:
            RefusalError: it cannot be.
        """

    def resume(self, answer: AuthResponse) -> Next:
        """What was asked for.

        Raises:
            RefusalError: it is a refusal, or ``Unavailable``.
        """
        raise InternalError(f"{type(self).__name__} has asked for nothing")


class ServerMechanism(Mechanism):
    """The server's side: it finds out the principal.

    Attributes:
        principal: the result, once ``complete``.
        lifetime_ms: for how long, from when that was answered; None: for ever.
        refused: why it is refused, of one that has been told and has yet to confirm it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.refused: str = ""
        self.principal: str = ""
        self.lifetime_ms: int | None = None


class ClientMechanism(Mechanism):
    """The client's side: it proves a principal.

    Attributes:
        secrets: what it showed, or could have: to be in no line of ours, even if the server says it again.
    """

    def __init__(self) -> None:
        super().__init__()
        self.secrets: tuple[bytes, ...] = ()

    @abc.abstractmethod
    def begin(self) -> Next:
        """The first message."""


def expect(kind: type[A], answer: AuthResponse) -> A:
    """The answer, which must be of a kind.

    Raises:
        RefusalError: there is none.
        InternalError: it is of another kind.
    """
    if isinstance(answer, kind):
        return answer
    if isinstance(answer, Unavailable):
        raise RefusalError(f"cannot be checked: {answer.reason}")
    raise InternalError(f"a {type(answer).__name__} where a {kind.__name__} was asked for")


def escape_name(name: str) -> str:
    """A name as RFC 5801 writes it in a message: without commas and equal signs."""
    return name.replace("=", "=3D").replace(",", "=2C")


def unescape_name(text: str) -> str:
    """The name that such a text is.

    Raises:
        RefusalError: it is none.
    """
    if not _ESCAPED.fullmatch(text):
        raise RefusalError("a name that is empty, or has a comma, an equal sign or a NUL that is not escaped")
    return text.replace("=2C", ",").replace("=3D", "=")


def printable(text: str) -> str:
    """A peer's text, made printable for the log."""
    return "".join(character if character.isprintable() else "?" for character in text[:_MAX_WORDS])
