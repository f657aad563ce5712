"""What a listener's SASL is checked against, made of its files: of what was read of them, so that who watches them need not read twice."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from control.files import FileError, read_file
from control.identity.answers import Answers
from control.identity.password_checks import PasswordChecks
from control.identity.users import Users
from control.identity.users_file import UsersFileError, parse_users
from proxy.auth.messages import ApiVersionsAnswer
from proxy.config.sasl import ListenerSasl, TokenConfig

if TYPE_CHECKING:
    from control.identity.tokens import Tokens

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
    """The paths of all files that SASL of a listener needs, by kind, as in ``proxy.cells.FILE_KINDS``. Nothing ties one to another."""
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
    before: Answers | None = None,
    checks: PasswordChecks | None = None,
) -> Answers:
    """Who answers for a listener.

    Args:
        sasl: of its configuration.
        contents: what is in its files, by path.
        apis: see ``Answers``.
        before: who answered until now: of a file that is not among the contents it goes on.
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
    return Answers(users=users, tokens=tokens, apis=apis, checks=checks)


def _tokens(config: TokenConfig, keys: bytes) -> "Tokens":
    from control.identity.jwks import JwksError, parse_jwks  # here: who takes no tokens does without
    from control.identity.tokens import TokenRules, Tokens

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
