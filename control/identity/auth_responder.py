"""Responses to auth requests, and the responder of a listener, built from the contents of its files.

A failure is ``Unavailable``; its reason is not sent to a peer.
"""

import hmac
import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from framegate.control.files import FileError, read_file
from framegate.control.identity.password_checks import PasswordChecks
from framegate.control.identity.passwords import keys_of
from framegate.control.identity.secrets import SecretError, Secrets
from framegate.control.identity.users import Users
from framegate.control.identity.users_file import UsersFileError, parse_users
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
from framegate.proxy.config.sasl import ListenerSasl, TokenConfig

if TYPE_CHECKING:
    from framegate.control.identity.tokens import Tokens  # it loads what checks signatures, 10 MiB

MAX_BYTES: Final = 64 << 20  # of one file


class UnknownApisError(Exception):
    """The API versions of an upstream are not known; the text says why, for the log."""


class AuthResponder:
    """The responder for one listener, or for the upstreams. Any thread. ``apis`` returns the API versions of the listener's upstream for a version of
    ApiVersions, and raises ``UnknownApisError`` while they are unknown.
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
        self.users: Final = users  # None without a users file
        self.tokens: Final = tokens  # None: the listener takes no tokens
        self._secrets: Final = secrets or Secrets({})
        self._apis: Final = apis
        self._now_s: Final = now_s
        self._checks: Final = checks or PasswordChecks()
        self._own_key: Final = os.urandom(32)
        self._keys: Final[dict[str, tuple[tuple[str, bytes, int, bytes], ScramKeys]]] = {}  # by credential

    def at_once(self, auth_request: AuthRequest, address: str) -> AuthResponse | None:
        """The response, if it needs neither a hash nor a file; else None. ``address``: of the client. Does not raise."""
        users = self.users
        if isinstance(auth_request, SupportedApis) or (isinstance(auth_request, WantCredential) and users is not None):
            return self.answer(auth_request, address)
        return self._checks.at_once(users, auth_request, address) if isinstance(auth_request, CheckPassword) and users is not None else None

    def answer(self, auth_request: AuthRequest, address: str = "") -> AuthResponse:
        """Respond to a request. May take milliseconds and read files; does not raise."""
        try:
            return self._answer(auth_request, address)
        except (SecretError, UnknownApisError) as error:
            return Unavailable(str(error))
        except Exception as error:  # its text may have a part of the request, which may be secret
            return Unavailable(f"{type(error).__name__} where {type(auth_request).__name__} was to be answered")

    def _answer(self, auth_request: AuthRequest, address: str) -> AuthResponse:
        if isinstance(auth_request, SupportedApis):
            return KnownApis.of(self._apis(auth_request.version))
        if isinstance(auth_request, WantSecret):
            return Secret(self._secrets.read(auth_request.credential))
        if isinstance(auth_request, WantScramKeys):
            return self._scram_keys(auth_request)
        if isinstance(auth_request, CheckToken):
            return Unavailable("no tokens are taken") if self.tokens is None else self.tokens.check(auth_request.token, self._now_s())
        if self.users is None:
            return Unavailable("there is no file of users")
        if isinstance(auth_request, WantCredential):
            return self.users.credential(auth_request)
        return self._checks.check(self.users, auth_request, address)

    def _scram_keys(self, auth_request: WantScramKeys) -> ScramKeys:
        """The keys for the password and the server's salt and iterations, which are the same for all connections to a broker. The last keys of each
        credential are stored, without the password: otherwise a thousand clients that reconnect at once would wait for a thousand hashes of 4 ms.
        """
        secret = self._secrets.read(auth_request.credential)
        made_of = (auth_request.mechanism, auth_request.salt, auth_request.iterations, hmac.digest(self._own_key, secret.encode(), "sha256"))
        known = self._keys.get(auth_request.credential)
        if known is not None and known[0] == made_of:
            return known[1]
        keys = keys_of(auth_request.mechanism, secret, auth_request.salt, auth_request.iterations)
        self._keys[auth_request.credential] = made_of, keys
        return keys


class IdentityFileError(Exception):
    """A file that cannot be used. Attributes: ``path``, ``reason`` in words, without anything secret."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


def files_of(sasl: ListenerSasl) -> dict[str, str]:
    """The paths of all files that SASL of a listener needs, by kind, as in ``framegate.proxy.cells.FILE_KINDS``. Nothing ties one to another."""
    found = {"sasl": sasl.users, "jwks": None if sasl.tokens is None else sasl.tokens.jwks}
    return {kind: path for kind, path in found.items() if path is not None}


def read_files(paths: Iterable[str]) -> dict[str, bytes]:
    """What is in files now, by path. Raises IdentityFileError: one cannot be read."""
    found: dict[str, bytes] = {}
    for path in paths:
        try:
            found[path] = read_file(path, MAX_BYTES)
        except FileError as error:
            raise IdentityFileError(path, error.reason) from None
    return found


def listener_answers(
    sasl: ListenerSasl,
    contents: Mapping[str, bytes],
    apis: Callable[[int], ApiVersionsAnswer],
    before: AuthResponder | None = None,
    checks: PasswordChecks | None = None,
) -> AuthResponder:
    """The responder of a listener. ``before``: the previous responder; its objects are kept for files that are not among the contents. ``checks``: of
    passwords, that outlast the file. Raises IdentityFileError: a file is not what it should be.
    """
    users, tokens = (None, None) if before is None else (before.users, before.tokens)
    try:
        if sasl.users is not None and (before is None or sasl.users in contents):
            users = Users(parse_users(contents[sasl.users], sasl.users))
        if sasl.tokens is not None and (before is None or sasl.tokens.jwks in contents):
            tokens = _tokens(sasl.tokens, contents[sasl.tokens.jwks])
    except UsersFileError as error:
        line, reason = error.faults[0]
        raise IdentityFileError(error.path, f"is no file of users: line {line}: {reason}") from None
    return AuthResponder(users=users, tokens=tokens, apis=apis, checks=checks)


def _tokens(config: TokenConfig, keys: bytes) -> "Tokens":
    from framegate.control.identity.jwks import JwksError, parse_jwks  # late: only listeners with tokens need it
    from framegate.control.identity.tokens import TokenRules, Tokens

    rules = TokenRules(
        issuer=config.issuer,
        audience=config.audience,
        algorithms=config.algorithms,
        scopes=config.scopes,
        principal_claim=config.principal_claim,
        scope_claim=config.scope_claim,
        clock_skew_s=config.clock_skew_ms // 1000,
    )
    try:
        return Tokens(rules, parse_jwks(keys, config.jwks))
    except JwksError as error:
        raise IdentityFileError(error.path, f"is no file of keys: {'; '.join(error.faults)}") from None
