"""What an authenticator has to ask somebody else, and what it is told: credentials and checks are the control process's, which may hash, read files
and take its time; a processor may not.

A question and its answer hold only text, bytes and numbers, so that they can go over the link. What is secret is in no ``repr``.
"""

import abc
from dataclasses import dataclass, field
from typing import Final

from proxy.auth.messages import ApiVersionsAnswer
from proxy.auth.wire import Reader, Writer
from proxy.network.authenticator import Waker

__all__ = [
    "Accepted",
    "Answer",
    "CheckPassword",
    "CheckToken",
    "CredentialSource",
    "Inquiry",
    "KnownApis",
    "Question",
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
    """What will be understood once the client is known, as told to who asks in a version of ApiVersions? Answer: ``KnownApis``."""

    version: int


@dataclass(frozen=True, slots=True)
class WantCredential:
    """What is stored of a user for a SCRAM mechanism? Answer: ``ScramCredential``, for users that there are and for those that there are not."""

    mechanism: str
    user: str


@dataclass(frozen=True, slots=True)
class CheckPassword:
    """Is that the user's password? Answer: ``Accepted`` or ``Refused``."""

    user: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class CheckToken:
    """Is that token good, and whose is it? Answer: ``Accepted`` or ``Refused``."""

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


Question = SupportedApis | WantCredential | CheckPassword | CheckToken | WantSecret | WantScramKeys


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
    """What is stored of a password (RFC 5802, 3): enough to check who knows it, not enough to be him.

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
        reason: for the log; the peer is told no more than its mechanism tells everybody.
        scope: that a token lacks, which its owner is told.
    """

    reason: str
    scope: str = ""


@dataclass(frozen=True, slots=True)
class Secret:
    """A password or a token."""

    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class ScramKeys:
    """Who has them can prove that it knows the password, for this salt and count only, and see that the server does (RFC 5802, 3)."""

    client_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Unavailable:
    """The question cannot be answered: a file that cannot be read, a queue that is full. ``reason`` is for the log."""

    reason: str


Answer = KnownApis | ScramCredential | Accepted | Refused | Secret | ScramKeys | Unavailable


class Inquiry:
    """One question of one authenticator, until it is answered or given up.

    Attributes:
        question: what is asked.
        peer: the address of the client that it is about; empty: of none.
        answer: what was said, once it was.
        is_cancelled: nobody waits for it any more.
    """

    def __init__(self, question: Question, waker: Waker, peer: str = "") -> None:
        self.question: Final = question
        self.peer: Final = peer
        self.answer: Answer | None = None
        self.is_cancelled: bool = False
        self._waker: Waker | None = waker

    def settle(self, answer: Answer) -> None:
        """Answer it. Only in the selector's thread; a second answer, and one to who has given up, is passed over."""
        waker = self._waker
        if waker is None:
            return
        self._waker = None
        self.answer = answer
        waker.wake()

    def cancel(self) -> None:
        """Nobody waits for it any more. Harmless twice."""
        self.is_cancelled = self.is_cancelled or self.answer is None
        self._waker = None


class CredentialSource(abc.ABC):
    """Whom an authenticator asks. One for all the channels of a processor; in the selector's thread."""

    @abc.abstractmethod
    def ask(self, inquiry: Inquiry) -> None:
        """Have it settled, at once or later. Does not block and does not raise: what cannot be asked is ``Unavailable``."""

    @abc.abstractmethod
    def forget(self, inquiry: Inquiry) -> None:
        """It was cancelled before it was settled: what is not asked yet need not be."""
