"""Auth requests: requests of an authenticator to the control process, which hashes passwords and reads files; and the responses.

They hold text, bytes and numbers only, so that they can go over the link. Secrets are not in their ``repr``.
"""

import abc
from dataclasses import dataclass, field
from typing import Final

from framegate.proxy.auth.messages import ApiVersionsAnswer
from framegate.proxy.auth.wire import Reader, Writer
from framegate.proxy.network.authenticator import Waker

# For clients.


@dataclass(frozen=True, slots=True)
class SupportedApis:
    """Asks which requests are supported after authentication, for a version of ApiVersions. Response: ``KnownApis``."""

    version: int


@dataclass(frozen=True, slots=True)
class WantCredential:
    """Asks for what is stored of a user for a SCRAM mechanism. Response: ``ScramCredential``, also for unknown users."""

    mechanism: str
    user: str


@dataclass(frozen=True, slots=True)
class CheckPassword:
    """Asks whether this is the user's password. Response: ``Accepted`` or ``Refused``."""

    user: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class CheckToken:
    """Asks whether this token is valid, and for which principal. Response: ``Accepted`` or ``Refused``."""

    token: str = field(repr=False)


# For upstreams. ``credential``: the name of a secret in the configuration.


@dataclass(frozen=True, slots=True)
class WantSecret:
    """Asks for a password or a token. Response: ``Secret``."""

    credential: str


@dataclass(frozen=True, slots=True)
class WantScramKeys:
    """Asks for the keys of a password for a SCRAM exchange. Response: ``ScramKeys``."""

    credential: str
    mechanism: str
    salt: bytes
    iterations: int


AuthRequest = SupportedApis | WantCredential | CheckPassword | CheckToken | WantSecret | WantScramKeys


@dataclass(frozen=True, slots=True)
class KnownApis:
    """The supported requests: an answer to ApiVersions of version 3, without its header."""

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
    """The stored form of a password (RFC 5802, 3): enough to check a client, not enough to log in."""

    salt: bytes
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    is_known: bool = True  # False for an unknown user, whose salt and iterations look like those of a known one
    lifetime_ms: int | None = None  # of the session; None: unlimited


@dataclass(frozen=True, slots=True)
class Accepted:
    """The client is ``principal`` for so many more milliseconds (None: unlimited). Below 0: the credential has expired."""

    principal: str
    lifetime_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """The password or token is wrong. ``reason``: for the log only; ``scope``: that a token lacks, sent to the client."""

    reason: str
    scope: str = ""


@dataclass(frozen=True, slots=True)
class Secret:
    """A password or a token."""

    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class ScramKeys:
    """Keys that prove knowledge of the password, for one salt and count of iterations, and verify the server (RFC 5802, 3)."""

    client_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Unavailable:
    """There is no response: a file cannot be read, or a queue is full. ``reason`` is for the log."""

    reason: str


AuthResponse = KnownApis | ScramCredential | Accepted | Refused | Secret | ScramKeys | Unavailable


class PendingAuth:
    """One request of one authenticator, until its response or ``cancel``."""

    def __init__(self, auth_request: AuthRequest, waker: Waker, peer: str = "") -> None:
        self.auth_request: Final = auth_request  # the request
        self.peer: Final = peer  # the address of the client; empty: it has none
        self.answer: AuthResponse | None = None  # the response, once it is there
        self.is_cancelled: bool = False  # the authenticator no longer waits
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
        """Complete it, now or later. Neither blocks nor raises: a request that cannot be sent is ``Unavailable``."""

    @abc.abstractmethod
    def forget(self, pending_auth: PendingAuth) -> None:
        """It was cancelled before it was complete; it need not be sent any more."""
