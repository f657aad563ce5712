"""Schemas: what a declaration takes and refuses, and what it says then."""

import dataclasses
from typing import Any, Literal, NotRequired, Optional, TypedDict

import pytest

from framegate.proxy.server.schema import MessageError, check, schema_of


class Inner(TypedDict):
    size: int


class Base(TypedDict):
    name: str
    note: NotRequired[str]


class Row(Base):
    many: list[Inner]
    by_name: dict[str, int]
    inner: Inner | None


@dataclasses.dataclass
class Made:
    name: str
    salt: bytes
    size: int | None = None


RIGHT: dict[str, Any] = {"name": "n", "many": [{"size": 1}], "by_name": {"a": 1}, "inner": None}


TAKEN: list[tuple[Any, object]] = [
    (int, 5),
    (str, ""),
    (bool, True),
    (float, 5),
    (float, 5.5),
    (dict, {"any": "thing"}),
    (None | int, None),
    (Optional[str], "x"),  # noqa: UP045
    (str | int, 5),
    (Any, object()),
    (list[str | int], ["a", 1]),
    (dict[str, Any], {"a": None}),
    (Literal["a", "b"], "b"),
    (Inner | None, {"size": 1}),
    (Row, RIGHT),
    (Row, {**RIGHT, "note": "here", "inner": {"size": 0}}),
    (Made, {"name": "n", "salt": "00ff", "size": None}),
]
REFUSED: list[tuple[Any, object, str]] = [
    (int, "5", " must be int, not str"),
    (int, True, " must be int, not bool"),
    (bool, 1, " must be bool, not int"),
    (float, True, " must be float, not bool"),
    (int | None, "x", " must be int or null, not str"),
    (str | int, None, " must be str or int, not null"),
    (list[int], {}, " must be a list, not dict"),
    (list[int], [1, None], "[1] must be int, not null"),
    (dict[str, int], [], " must be an object, not list"),
    (dict[str, int], {"a": 1, "b": "x"}, ".b must be int, not str"),
    (Literal["a", "b"], "c", " must be a or b, not 'c'"),
    (Inner | None, 5, " must be an object, not int"),
    (Row, None, " must be an object, not null"),
    (Row, {}, ".name is missing"),
    (Row, {**RIGHT, "many": [{"size": 1}, {}]}, ".many[1].size is missing"),
    (Row, {**RIGHT, "inner": {"size": None}}, ".inner.size must be int, not null"),
    (Row, {**RIGHT, "note": 5}, ".note must be str, not int"),
    (Row, {**RIGHT, "nota": "x", "notb": "y"}, ".nota is not known"),
    (Made, {"name": "n", "salt": b"", "size": 1}, ".salt must be str, not bytes"),
    (Made, {"name": "n", "salt": ""}, ".size is missing"),
]


def test_what_is_declared_is_taken_and_anything_else_is_refused_with_the_way_to_it() -> None:
    faults = [(declared, value, schema_of(declared).fault(value)) for declared, value in TAKEN]
    assert [each for each in faults if each[2]] == []
    wrong = [(declared, value, fault) for declared, value, text in REFUSED if (fault := schema_of(declared).fault(value)) != text]
    assert wrong == []


def test_a_check_raises_with_the_name() -> None:
    check("row", Inner, {"size": 1})
    with pytest.raises(MessageError, match=r"^row\.size is missing$"):
        check("row", Inner, {})


def test_what_json_has_not_cannot_be_declared() -> None:
    for declared in (tuple[int, int], dict[int, str], Inner | Base, list[set[int]]):
        with pytest.raises(TypeError):
            schema_of(declared)
