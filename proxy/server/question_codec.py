"""Between questions and answers (``proxy.auth.questions``) and their rows on the link (``question_rows``)."""

import dataclasses
from typing import Any, Final, cast

from proxy.auth import questions
from proxy.auth.questions import Answer, Question
from proxy.server.protocol import MessageError
from proxy.server.question_rows import ANSWERS, QUESTIONS

__all__ = ["answer_from_row", "question_from_row", "row_of"]

_CLASSES: Final = {kind: getattr(questions, kind) for kind in (*QUESTIONS, *ANSWERS)}
_BYTES: Final = {kind: frozenset(field.name for field in dataclasses.fields(made) if field.type is bytes) for kind, made in _CLASSES.items()}


def row_of(item: Question | Answer) -> tuple[str, dict[str, Any]]:
    """Its kind and its row."""
    return type(item).__name__, {field.name: _packed(getattr(item, field.name)) for field in dataclasses.fields(item)}


def question_from_row(kind: str, row: dict[str, Any]) -> Question:
    """The question of a row that was judged.

    Raises:
        MessageError: all the same it is none.
    """
    return cast(Question, _made(kind, row))


def answer_from_row(kind: str, row: dict[str, Any]) -> Answer:
    """The answer of a row that was judged; see ``question_from_row``."""
    return cast(Answer, _made(kind, row))


def _packed(value: object) -> object:
    return value.hex() if isinstance(value, bytes) else value


def _made(kind: str, row: dict[str, Any]) -> object:
    in_hex = _BYTES[kind]
    try:
        return _CLASSES[kind](**{name: bytes.fromhex(value) if name in in_hex else value for name, value in row.items()})
    except (TypeError, ValueError):
        raise MessageError(f"{kind} has a field that cannot be read") from None
