"""Checks JSON values against the types with which the link's messages and rows are declared (``messages``, ``rows``,
``framegate.proxy.auth.auth_requests``).

A declaration is read once (``schema_of``); ``Schema.fault`` then checks values, without an object or an exception for a right one. Compiled, because
control checks every closed row, and a hundred rows of a list in 1 ms.
"""

import abc
import dataclasses
import functools
import types
import typing
from typing import Any, Final, cast

_PLAIN: Final[frozenset[object]] = frozenset((bool, dict, float, int, str, type(None)))
_MISSING: Final = object()


class MessageError(Exception):
    """A message is not as declared; the text names the key."""


class Schema(abc.ABC):
    """One declared type."""

    @abc.abstractmethod
    def fault(self, value: object) -> str:
        """The fault of a value, after the path to it, as in ``.lost.bytes must be int, not str``; empty: the value is right."""


class _Any(Schema):
    def fault(self, value: object) -> str:
        return ""


class _Plain(Schema):
    """A value of one of these JSON types; where a float is declared, an int is right too."""

    def __init__(self, names: list[type]) -> None:
        self._text: Final = " or ".join("null" if item is type(None) else item.__name__ for item in names)
        self._types: Final = frozenset((*names, int) if float in names else names)

    def fault(self, value: object) -> str:
        return "" if type(value) in self._types else f" must be {self._text}, not {_kind(value)}"


class _Word(Schema):
    def __init__(self, words: tuple[Any, ...]) -> None:
        self._words: Final = words

    def fault(self, value: object) -> str:
        return "" if value in self._words else f" must be {' or '.join(map(str, self._words))}, not {value!r:.100}"


class _Nullable(Schema):
    def __init__(self, schema: Schema) -> None:
        self._schema: Final = schema

    def fault(self, value: object) -> str:
        return "" if value is None else self._schema.fault(value)


class _List(Schema):
    def __init__(self, item: Schema) -> None:
        self._item: Final = item

    def fault(self, value: object) -> str:
        if type(value) is not list:
            return f" must be a list, not {_kind(value)}"
        schema = self._item
        for index, item in enumerate(cast(list[object], value)):
            fault = schema.fault(item)
            if fault:
                return f"[{index}]{fault}"
        return ""


class _Map(Schema):
    def __init__(self, item: Schema) -> None:
        self._item: Final = item

    def fault(self, value: object) -> str:
        if type(value) is not dict:
            return f" must be an object, not {_kind(value)}"
        schema = self._item
        for name, item in cast(dict[str, object], value).items():
            fault = schema.fault(item)
            if fault:
                return f".{name}{fault}"
        return ""


class _Fields(Schema):
    """An object with these keys and no others."""

    def __init__(self, schemas: dict[str, Schema], optional: frozenset[str]) -> None:
        self._required: Final = [(name, schema) for name, schema in schemas.items() if name not in optional]
        self._names: Final = frozenset(schemas) - optional
        self._optional: Final = {name: schemas[name] for name in optional}

    def fault(self, value: object) -> str:
        if type(value) is not dict:
            return f" must be an object, not {_kind(value)}"
        row = cast(dict[str, object], value)
        for name, schema in self._required:
            item = row.get(name, _MISSING)
            if item is _MISSING:
                return f".{name} is missing"
            fault = schema.fault(item)
            if fault:
                return f".{name}{fault}"
        return "" if len(row) == len(self._required) else self._rest_fault(row)

    def _rest_fault(self, row: dict[str, object]) -> str:
        for name, item in row.items():
            if name not in self._names:
                schema = self._optional.get(name)
                fault = " is not known" if schema is None else schema.fault(item)
                if fault:
                    return f".{name}{fault}"
        return ""


def check(name: str, declared: Any, value: object) -> None:
    """Compare a value with its declaration; raises MessageError, whose text begins with ``name``, if it is not as declared."""
    fault = schema_of(declared).fault(value)
    if fault:
        raise MessageError(f"{name}{fault}")


@functools.cache
def schema_of(declared: Any) -> Schema:
    """Read a declaration: a ``TypedDict`` or a dataclass, a type of JSON, bytes (in hexadecimal), lists and dicts by str of them, a ``Literal``, or
    one of them and ``None``. Call it when the schema is needed, not at import: a processor needs few of them, and starts faster. Raises TypeError:
    anything else.
    """
    if declared is Any:
        return _Any()
    if typing.is_typeddict(declared) or dataclasses.is_dataclass(declared):
        hints = typing.get_type_hints(declared)
        return _Fields({name: schema_of(hint) for name, hint in hints.items()}, getattr(declared, "__optional_keys__", frozenset()))
    if declared in _PLAIN:
        return _Plain([declared])
    if declared is bytes:
        return _Plain([str])
    return _generic(declared)


def _generic(declared: Any) -> Schema:
    origin, parts = typing.get_origin(declared), typing.get_args(declared)
    if origin is typing.Literal:
        return _Word(parts)
    if origin is list:
        return _List(schema_of(parts[0]))
    if origin is dict and parts[0] is str:
        return _Map(schema_of(parts[1]))
    if origin is types.UnionType or origin is typing.Union:
        return _union(declared, [part for part in parts if part is not type(None)], len(parts))
    raise TypeError(f"no JSON value is declared as {declared}")


def _union(declared: Any, others: list[Any], count: int) -> Schema:
    if all(part in _PLAIN for part in others):
        return _Plain([*others, type(None)] if len(others) < count else others)
    if len(others) == 1:
        return _Nullable(schema_of(others[0]))
    raise TypeError(f"a value cannot say which of {declared} it is")


def _kind(value: object) -> str:
    return "null" if value is None else type(value).__name__
