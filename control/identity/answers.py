"""Answers to all that authenticators ask. What fails is ``Unavailable``: what went wrong inside is in no answer of ours to a peer."""

import hmac
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from control.identity.password_checks import PasswordChecks
from control.identity.passwords import keys_of
from control.identity.secrets import SecretError, Secrets
from control.identity.users import Users
from proxy.auth.messages import NONE, ApiVersionsAnswer
from proxy.auth.questions import (
    Answer,
    CheckPassword,
    CheckToken,
    KnownApis,
    Question,
    ScramKeys,
    Secret,
    SupportedApis,
    Unavailable,
    WantCredential,
    WantScramKeys,
    WantSecret,
)

if TYPE_CHECKING:
    from control.identity.tokens import Tokens  # it loads what checks signatures, 10 MiB

__all__ = ["Answers", "UnknownApisError"]


class UnknownApisError(Exception):
    """It is not known what an upstream understands; the text says why, for the log."""


class Answers:
    """Who answers for one listener, or for the upstreams. Each may be asked in a thread of its own.

    ``apis`` says what the listener's upstream understands, to who asks in a version of ApiVersions, and raises ``UnknownApisError`` while it does not
    know.
    """

    def __init__(
        self,
        *,
        users: Users | None = None,
        tokens: "Tokens | None" = None,
        secrets: Secrets | None = None,
        apis: Callable[[int], ApiVersionsAnswer] = lambda version: ApiVersionsAnswer(NONE),
        now_s: Callable[[], float] = time.time,
        checks: PasswordChecks | None = None,
    ) -> None:
        self._users: Final = users
        self._tokens: Final = tokens
        self._secrets: Final = secrets or Secrets({})
        self._apis: Final = apis
        self._now_s: Final = now_s
        self._checks: Final = checks or PasswordChecks()
        self._own_key: Final = os.urandom(32)
        self._keys: Final[dict[str, tuple[tuple[str, bytes, int, bytes], ScramKeys]]] = {}  # by credential

    @property
    def users(self) -> Users | None:
        """Who may come in with a password; None where there is no file of users."""
        return self._users

    @property
    def tokens(self) -> "Tokens | None":
        """Which tokens are good; None where none are taken."""
        return self._tokens

    def at_once(self, question: Question, address: str) -> Answer | None:
        """The answer, if it takes neither a hash nor a file; None: it may. ``address``: where the client is that it is about. Does not raise."""
        users = self._users
        if isinstance(question, SupportedApis) or (isinstance(question, WantCredential) and users is not None):
            return self.answer(question, address)
        return self._checks.at_once(users, question, address) if isinstance(question, CheckPassword) and users is not None else None

    def answer(self, question: Question, address: str = "") -> Answer:
        """Answer a question. May take milliseconds and read files; does not raise."""
        try:
            return self._answer(question, address)
        except (SecretError, UnknownApisError) as error:
            return Unavailable(str(error))
        except Exception as error:  # whatever it is, its words may hold what was asked
            return Unavailable(f"{type(error).__name__} where {type(question).__name__} was to be answered")

    def _answer(self, question: Question, address: str) -> Answer:
        if isinstance(question, SupportedApis):
            return KnownApis.of(self._apis(question.version))
        if isinstance(question, WantSecret):
            return Secret(self._secrets.read(question.credential))
        if isinstance(question, WantScramKeys):
            return self._scram_keys(question)
        if isinstance(question, CheckToken):
            return Unavailable("no tokens are taken") if self._tokens is None else self._tokens.check(question.token, self._now_s())
        if self._users is None:
            return Unavailable("there is no file of users")
        if isinstance(question, WantCredential):
            return self._users.credential(question)
        return self._checks.check(self._users, question, address)

    def _scram_keys(self, question: WantScramKeys) -> ScramKeys:
        """Made of the password and what the server said, which are the same for a broker's every connection: the last of each are remembered, without
        the password. A thousand clients that come back at once would wait for a thousand times 4 ms and more.
        """
        secret = self._secrets.read(question.credential)
        made_of = (question.mechanism, question.salt, question.iterations, hmac.digest(self._own_key, secret.encode(), "sha256"))
        known = self._keys.get(question.credential)
        if known is not None and known[0] == made_of:
            return known[1]
        keys = keys_of(question.mechanism, secret, question.salt, question.iterations)
        self._keys[question.credential] = made_of, keys
        return keys
