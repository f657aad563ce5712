"""The interface of SASL mechanisms: from a message to the next one, without I/O and time. Look-ups are auth requests with a later response."""

import abc
import re
from dataclasses import dataclass, field
from typing import Final, TypeVar

from framegate.proxy.auth.auth_requests import AuthRequest, AuthResponse, Unavailable
from framegate.proxy.errors import AuthenticationError, InternalError

A = TypeVar("A")
_ESCAPED: Final = re.compile(r"(?:[^=,\0]|=2C|=3D)+")


class RefusalError(AuthenticationError):
    """The mechanism fails. ``told``: a text for the peer; empty: it only gets to know the failure."""

    def __init__(self, reason: str, *, told: str = "") -> None:
        super().__init__(reason)
        self.told: Final = told


@dataclass(frozen=True, slots=True)
class Reply:
    """Send this to the peer."""

    token: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Ask:
    """Send this auth request, and ``resume`` with the response."""

    auth_request: AuthRequest


Next = Reply | Ask


class Mechanism(abc.ABC):
    """One side of one exchange. ``complete``: no further message of the peer is expected; a last ``Reply`` still has to be sent."""

    def __init__(self) -> None:
        self.complete: bool = False

    @abc.abstractmethod
    def evaluate(self, token: bytes) -> Next | None:
        """Take a message of the peer. Returns the next action; None: none, if a client is complete. Raises RefusalError: the message is refused."""

    def resume(self, answer: AuthResponse) -> Next:
        """Take the response to an ``Ask``; raises RefusalError if it is a refusal, or ``Unavailable``."""
        raise InternalError(f"{type(self).__name__} has asked for nothing")


class ServerMechanism(Mechanism):
    """The server's side: it finds out the principal."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: str = ""  # the reason for a refusal that the client has to confirm
        self.user: str = ""  # the name that the client gave, as it is; empty: none yet. Nothing of it is proved.
        self.principal: str = ""  # the result, once ``complete``
        self.lifetime_ms: int | None = None  # of the credential; None: unlimited


class ClientMechanism(Mechanism):
    """The client's side: it proves a principal. ``secrets``: what it sent or could have sent; never logged, even if the server repeats it."""

    def __init__(self) -> None:
        super().__init__()
        self.secrets: tuple[bytes, ...] = ()

    @abc.abstractmethod
    def begin(self) -> Next:
        """The first message."""


def expect(kind: type[A], answer: AuthResponse) -> A:
    """The response, which must be of a kind. Raises RefusalError: it is ``Unavailable``; InternalError: it is of another kind."""
    if isinstance(answer, kind):
        return answer
    if isinstance(answer, Unavailable):
        raise RefusalError(f"cannot be checked: {answer.reason}")
    raise InternalError(f"a {type(answer).__name__} where a {kind.__name__} was asked for")


def escape_name(name: str) -> str:
    """A name with escaped commas and equal signs (RFC 5801)."""
    return name.replace("=", "=3D").replace(",", "=2C")


def unescape_name(text: str) -> str:
    """The inverse of ``escape_name``; raises RefusalError if the text is not such a name."""
    if not _ESCAPED.fullmatch(text):
        raise RefusalError("a name that is empty, or has a comma, an equal sign or a NUL that is not escaped")
    return text.replace("=2C", ",").replace("=3D", "=")
