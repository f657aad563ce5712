"""Questions and answers of authenticators (``proxy.auth.auth_requests``) as rows of the link: the fields of their classes, which are the schema;
bytes
are written in hexadecimal. Many hold secrets: a row is checked without a word of what is in it, and is in no log.
"""

import dataclasses
import typing
from typing import Any, Final, cast

from framegate.proxy.auth.auth_requests import AuthRequest, AuthResponse
from framegate.proxy.server.schema import MessageError, check

__all__ = ["answer_from_row", "check_answer", "question_from_row", "row_of"]

_QUESTIONS: Final[dict[str, Any]] = {each.__name__: each for each in typing.get_args(AuthRequest)}
_ANSWERS: Final[dict[str, Any]] = {each.__name__: each for each in typing.get_args(AuthResponse)}


def row_of(item: AuthRequest | AuthResponse) -> tuple[str, dict[str, Any]]:
    """Its kind and its row."""
    values = {field.name: getattr(item, field.name) for field in dataclasses.fields(item)}
    return type(item).__name__, {name: value.hex() if isinstance(value, bytes) else value for name, value in values.items()}


def question_from_row(kind: str, row: dict[str, Any]) -> AuthRequest:
    """The question of a row.

    Raises:
        MessageError: it is none.
    """
    return cast(AuthRequest, _made("question", _QUESTIONS, kind, row))


def answer_from_row(kind: str, row: dict[str, Any]) -> AuthResponse:
    """The answer of a row; see ``question_from_row``."""
    return cast(AuthResponse, _made("answer", _ANSWERS, kind, row))


def check_answer(kind: str, row: dict[str, Any]) -> None:
    """Compare the row of an answer with its class, before its question is taken; see ``question_from_row``."""
    _declared("answer", _ANSWERS, kind, row)


def _declared(what: str, classes: dict[str, Any], kind: str, row: dict[str, Any]) -> Any:
    if kind not in classes:
        raise MessageError(f"no {what} of the kind {kind:.100}")
    check(kind, classes[kind], row)
    return classes[kind]


def _made(what: str, classes: dict[str, Any], kind: str, row: dict[str, Any]) -> object:
    made = _declared(what, classes, kind, row)
    in_hex = {field.name for field in dataclasses.fields(made) if field.type is bytes}
    try:
        return made(**{name: bytes.fromhex(value) if name in in_hex else value for name, value in row.items()})
    except (TypeError, ValueError):
        raise MessageError(f"{kind} has a field that cannot be read") from None
