"""What a JSON value must look like, as the types say with which the link's messages and rows are declared (``messages``, ``rows``).

A declaration is read once (``shape_of``); ``Shape.fault`` then judges values, without an object or an exception for one that is right. Compiled:
control has it judge every closed row, and a hundred rows of a list within a slice of 1 ms.
"""

import abc
import types
import typing
from typing import Any, Final, cast

__all__ = ["Shape", "shape_of"]

_PLAIN: Final[frozenset[object]] = frozenset((bool, dict, float, int, str, type(None)))
_MISSING: Final = object()


class Shape(abc.ABC):
    """One declared type."""

    @abc.abstractmethod
    def fault(self, value: object) -> str:
        """What is wrong with a value, behind the path that leads to it, as in ``.lost.bytes must be int, not str``; empty when nothing is."""


class _Any(Shape):
    def fault(self, value: object) -> str:
        return ""


class _Plain(Shape):
    """One of some types of JSON, whatever is in it; a number that may be a fraction may be whole."""

    def __init__(self, names: list[type]) -> None:
        self._text: Final = " or ".join("null" if item is type(None) else item.__name__ for item in names)
        self._types: Final = frozenset((*names, int) if float in names else names)

    def fault(self, value: object) -> str:
        return "" if type(value) in self._types else f" must be {self._text}, not {_kind(value)}"


class _Word(Shape):
    """One of some words."""

    def __init__(self, words: tuple[Any, ...]) -> None:
        self._words: Final = words

    def fault(self, value: object) -> str:
        return "" if value in self._words else f" must be {' or '.join(map(str, self._words))}, not {value!r:.100}"


class _Nullable(Shape):
    def __init__(self, shape: Shape) -> None:
        self._shape: Final = shape

    def fault(self, value: object) -> str:
        return "" if value is None else self._shape.fault(value)


class _List(Shape):
    def __init__(self, item: Shape) -> None:
        self._item: Final = item

    def fault(self, value: object) -> str:
        if type(value) is not list:
            return f" must be a list, not {_kind(value)}"
        shape = self._item
        for index, item in enumerate(cast(list[object], value)):
            fault = shape.fault(item)
            if fault:
                return f"[{index}]{fault}"
        return ""


class _Map(Shape):
    def __init__(self, item: Shape) -> None:
        self._item: Final = item

    def fault(self, value: object) -> str:
        if type(value) is not dict:
            return f" must be an object, not {_kind(value)}"
        shape = self._item
        for name, item in cast(dict[str, object], value).items():
            fault = shape.fault(item)
            if fault:
                return f".{name}{fault}"
        return ""


class _Fields(Shape):
    """An object with certain keys, and no others."""

    def __init__(self, required: list[tuple[str, Shape]], optional: dict[str, Shape]) -> None:
        self._required: Final = required
        self._names: Final = frozenset(name for name, _ in required)
        self._optional: Final = optional

    def fault(self, value: object) -> str:
        if type(value) is not dict:
            return f" must be an object, not {_kind(value)}"
        row = cast(dict[str, object], value)
        for name, shape in self._required:
            item = row.get(name, _MISSING)
            if item is _MISSING:
                return f".{name} is missing"
            fault = shape.fault(item)
            if fault:
                return f".{name}{fault}"
        return "" if len(row) == len(self._required) else self._rest_fault(row)

    def _rest_fault(self, row: dict[str, object]) -> str:
        for name, item in row.items():
            if name not in self._names:
                shape = self._optional.get(name)
                fault = " is not known" if shape is None else shape.fault(item)
                if fault:
                    return f".{name}{fault}"
        return ""


def shape_of(declared: Any) -> Shape:
    """Read a declaration: a ``TypedDict``, a type of JSON, lists and dicts by str of them, a ``Literal``, ``None`` beside any of them.

    Raises:
        TypeError: anything else.
    """
    if declared is Any:
        return _Any()
    if typing.is_typeddict(declared):
        return _fields(declared)
    if declared in _PLAIN:
        return _Plain([declared])
    return _generic(declared)


def _fields(declared: Any) -> Shape:
    shapes = {name: shape_of(hint) for name, hint in typing.get_type_hints(declared).items()}
    required = [(name, shape) for name, shape in shapes.items() if name in declared.__required_keys__]
    return _Fields(required, {name: shape for name, shape in shapes.items() if name in declared.__optional_keys__})


def _generic(declared: Any) -> Shape:
    origin, parts = typing.get_origin(declared), typing.get_args(declared)
    if origin is typing.Literal:
        return _Word(parts)
    if origin is list:
        return _List(shape_of(parts[0]))
    if origin is dict and parts[0] is str:
        return _Map(shape_of(parts[1]))
    if origin is types.UnionType or origin is typing.Union:
        return _union(declared, [part for part in parts if part is not type(None)], len(parts))
    raise TypeError(f"no JSON value is declared as {declared}")


def _union(declared: Any, others: list[Any], count: int) -> Shape:
    if all(part in _PLAIN for part in others):
        return _Plain([*others, type(None)] if len(others) < count else others)
    if len(others) == 1:
        return _Nullable(shape_of(others[0]))
    raise TypeError(f"nobody could say which of {declared} a value is meant to be")


def _kind(value: object) -> str:
    return "null" if value is None else type(value).__name__
