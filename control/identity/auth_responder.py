"""Responses to auth requests. A failure is ``Unavailable``; its reason is not sent to a peer."""

import hmac
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from framegate.control.identity.password_checks import PasswordChecks
from framegate.control.identity.passwords import keys_of
from framegate.control.identity.secrets import SecretError, Secrets
from framegate.control.identity.users import Users
from framegate.proxy.auth.auth_requests import (
    AuthRequest,
    AuthResponse,
    CheckPassword,
    CheckToken,
    KnownApis,
    ScramKeys,
    Secret,
    SupportedApis,
    Unavailable,
    WantCredential,
    WantScramKeys,
    WantSecret,
)
from framegate.proxy.auth.messages import NONE, ApiVersionsAnswer

if TYPE_CHECKING:
    from framegate.control.identity.tokens import Tokens  # it loads what checks signatures, 10 MiB

__all__ = ["AuthResponder", "UnknownApisError"]


class UnknownApisError(Exception):
    """It is not known what an upstream understands; the text says why, for the log."""


class AuthResponder:
    """The responder for one listener, or for the upstreams. Any thread.

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
        """The users with passwords; None without a file of users."""
        return self._users

    @property
    def tokens(self) -> "Tokens | None":
        """Which tokens are good; None where none are taken."""
        return self._tokens

    def at_once(self, auth_request: AuthRequest, address: str) -> AuthResponse | None:
        """The answer, if it takes neither a hash nor a file; None: it may. ``address``: where the client is that it is about. Does not raise."""
        users = self._users
        if isinstance(auth_request, SupportedApis) or (isinstance(auth_request, WantCredential) and users is not None):
            return self.answer(auth_request, address)
        return self._checks.at_once(users, auth_request, address) if isinstance(auth_request, CheckPassword) and users is not None else None

    def answer(self, auth_request: AuthRequest, address: str = "") -> AuthResponse:
        """Answer a question. May take milliseconds and read files; does not raise."""
        try:
            return self._answer(auth_request, address)
        except (SecretError, UnknownApisError) as error:
            return Unavailable(str(error))
        except Exception as error:  # whatever it is, its words may hold what was asked
            return Unavailable(f"{type(error).__name__} where {type(auth_request).__name__} was to be answered")

    def _answer(self, auth_request: AuthRequest, address: str) -> AuthResponse:
        if isinstance(auth_request, SupportedApis):
            return KnownApis.of(self._apis(auth_request.version))
        if isinstance(auth_request, WantSecret):
            return Secret(self._secrets.read(auth_request.credential))
        if isinstance(auth_request, WantScramKeys):
            return self._scram_keys(auth_request)
        if isinstance(auth_request, CheckToken):
            return Unavailable("no tokens are taken") if self._tokens is None else self._tokens.check(auth_request.token, self._now_s())
        if self._users is None:
            return Unavailable("there is no file of users")
        if isinstance(auth_request, WantCredential):
            return self._users.credential(auth_request)
        return self._checks.check(self._users, auth_request, address)

    def _scram_keys(self, auth_request: WantScramKeys) -> ScramKeys:
        """Made of the password and what the server said, which are the same for a broker's every connection: the last of each are remembered, without
        the password. A thousand clients that come back at once would wait for a thousand times 4 ms and more.
        """
        secret = self._secrets.read(auth_request.credential)
        made_of = (auth_request.mechanism, auth_request.salt, auth_request.iterations, hmac.digest(self._own_key, secret.encode(), "sha256"))
        known = self._keys.get(auth_request.credential)
        if known is not None and known[0] == made_of:
            return known[1]
        keys = keys_of(auth_request.mechanism, secret, auth_request.salt, auth_request.iterations)
        self._keys[auth_request.credential] = made_of, keys
        return keys
