"""Requests of an authenticator to the control process, and the responses. The control process may hash passwords and read files; a processor may not.

Requests and responses hold text, bytes and numbers only, so that they can go over the link. Secrets are in no ``repr``.
"""

import abc
from dataclasses import dataclass, field
from typing import Final

from framegate.proxy.auth.messages import ApiVersionsAnswer
from framegate.proxy.auth.wire import Reader, Writer
from framegate.proxy.network.authenticator import Waker

__all__ = [
    "Accepted",
    "AuthRequest",
    "AuthResponse",
    "CheckPassword",
    "CheckToken",
    "CredentialSource",
    "KnownApis",
    "PendingAuth",
    "Refused",
    "ScramCredential",
    "ScramKeys",
    "Secret",
    "SupportedApis",
    "Unavailable",
    "WantCredential",
    "WantScramKeys",
    "WantSecret",
]


# What the side of clients asks.


@dataclass(frozen=True, slots=True)
class SupportedApis:
    """Which requests are supported after authentication, for a version of ApiVersions? Response: ``KnownApis``."""

    version: int


@dataclass(frozen=True, slots=True)
class WantCredential:
    """What is stored of a user for a SCRAM mechanism? Answer: ``ScramCredential``, for users that there are and for those that there are not."""

    mechanism: str
    user: str


@dataclass(frozen=True, slots=True)
class CheckPassword:
    """Is this the user's password? Response: ``Accepted`` or ``Refused``."""

    user: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class CheckToken:
    """Is this token valid, and for which principal? Response: ``Accepted`` or ``Refused``."""

    token: str = field(repr=False)


# What the side of upstreams asks. ``credential`` names what the configuration has.


@dataclass(frozen=True, slots=True)
class WantSecret:
    """A password, or a token. Answer: ``Secret``."""

    credential: str


@dataclass(frozen=True, slots=True)
class WantScramKeys:
    """The keys of a password for a SCRAM exchange. Answer: ``ScramKeys``."""

    credential: str
    mechanism: str
    salt: bytes
    iterations: int


AuthRequest = SupportedApis | WantCredential | CheckPassword | CheckToken | WantSecret | WantScramKeys


@dataclass(frozen=True, slots=True)
class KnownApis:
    """What will be understood: an answer to ApiVersions as of version 3, behind its header."""

    answer: bytes

    @classmethod
    def of(cls, answer: ApiVersionsAnswer) -> "KnownApis":
        writer = Writer()
        answer.write(writer, 3)
        return cls(writer.message())

    def read(self) -> ApiVersionsAnswer:
        return ApiVersionsAnswer.read(Reader(self.answer), 3)


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """The stored form of a password (RFC 5802, 3): enough to check a client, not enough to log in.

    Attributes:
        is_known: False for a user that there is not: salt and iterations then look like those of one that there is.
        lifetime_ms: of what the user proves with it; None: for ever.
    """

    salt: bytes
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    is_known: bool = True
    lifetime_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Accepted:
    """The client is ``principal`` for so many more milliseconds (None: for ever). They may be less than none: it was, and is no more."""

    principal: str
    lifetime_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """It is not.

    Attributes:
        reason: for the log; the peer gets the mechanism's standard text.
        scope: that a token lacks; sent to the client.
    """

    reason: str
    scope: str = ""


@dataclass(frozen=True, slots=True)
class Secret:
    """A password or a token."""

    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class ScramKeys:
    """Keys that prove knowledge of the password, for this salt and count only, and verify the server (RFC 5802, 3)."""

    client_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Unavailable:
    """The question cannot be answered: a file that cannot be read, a queue that is full. ``reason`` is for the log."""

    reason: str


AuthResponse = KnownApis | ScramCredential | Accepted | Refused | Secret | ScramKeys | Unavailable


class PendingAuth:
    """One request of one authenticator, until its response or ``cancel``.

    Attributes:
        question: what is asked.
        peer: the address of the client that it is about; empty: of none.
        answer: what was said, once it was.
        is_cancelled: the authenticator does not wait any more.
    """

    def __init__(self, auth_request: AuthRequest, waker: Waker, peer: str = "") -> None:
        self.auth_request: Final = auth_request
        self.peer: Final = peer
        self.answer: AuthResponse | None = None
        self.is_cancelled: bool = False
        self._waker: Waker | None = waker

    def complete(self, answer: AuthResponse) -> None:
        """Set the response. Only in the selector's thread; a second response, and one after ``cancel``, is ignored."""
        waker = self._waker
        if waker is None:
            return
        self._waker = None
        self.answer = answer
        waker.wake()

    def cancel(self) -> None:
        """Stop waiting. No effect when called again."""
        self.is_cancelled = self.is_cancelled or self.answer is None
        self._waker = None


class CredentialSource(abc.ABC):
    """Receives requests of authenticators. One for all channels of a processor; in the selector's thread."""

    @abc.abstractmethod
    def ask(self, pending_auth: PendingAuth) -> None:
        """Have it settled, at once or later. Does not block and does not raise: what cannot be asked is ``Unavailable``."""

    @abc.abstractmethod
    def forget(self, pending_auth: PendingAuth) -> None:
        """It was cancelled before it was settled: what is not asked yet need not be."""
