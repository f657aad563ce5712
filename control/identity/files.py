"""The responder of a listener, built from the contents of its files, which the rotation has read already."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from framegate.control.files import FileError, read_file
from framegate.control.identity.auth_responder import AuthResponder
from framegate.control.identity.password_checks import PasswordChecks
from framegate.control.identity.users import Users
from framegate.control.identity.users_file import UsersFileError, parse_users
from framegate.proxy.auth.messages import ApiVersionsAnswer
from framegate.proxy.config.sasl import ListenerSasl, TokenConfig

if TYPE_CHECKING:
    from framegate.control.identity.tokens import Tokens

__all__ = ["MAX_BYTES", "IdentityFileError", "files_of", "listener_answers", "read_files"]

MAX_BYTES: Final = 64 << 20
"""Of one file."""


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
    """What is in files now, by path.

    Raises:
        IdentityFileError: one cannot be read.
    """
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
    """The responder of a listener.

    Args:
        sasl: of its configuration.
        contents: what is in its files, by path.
        apis: see ``AuthResponder``.
        before: the previous responder; its objects are kept for files that are not among the contents.
        checks: of passwords, that outlast the file.

    Raises:
        IdentityFileError: a file is not what it should be.
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
