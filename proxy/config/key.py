"""The declaration of a key, in the type of its field: ``idle_ms: Annotated[int, Key("ms", (0, 30 * DAY))] = 600_000``.

The key has the name, type and default of the field; ``Key`` adds unit and range for control's validation and the manual. The meaning of a key is in
``control/configuration/manual.yaml`` (``framegate config explain KEY``). ``model_from_wire`` needs only the types.
"""

import dataclasses
import functools
import types
import typing
from typing import Any, Literal, NamedTuple, TypeVar

Unit = Literal["", "bytes", "bytes/s", "ms", "ns", "percent", "share", "path", "address"]
Effect = Literal["now", "new connections", "restart"]
"""When a changed value is in force: ``now`` also for open connections; ``new connections``: open ones keep the value that they were accepted under;
``restart``: only after framegate is restarted.
"""
Model = TypeVar("Model")


class Key(NamedTuple):
    """Further properties of a field."""

    # of a number (``ns``: an instant, since 1970), or the kind of a text: a path, or an address. It holds for each entry of a list or mapping.
    unit: Unit = ""
    range: tuple[float, float] | None = None  # the least and the greatest value, both included; None: every value of the type
    # when a changed value is in force; None: as of the section. Of a section or list it holds for adding and removing it as well.
    effect: Effect | None = None

    @property
    def least(self) -> float:
        assert self.range is not None, "a key without a range takes any value"
        return self.range[0]

    @property
    def most(self) -> float:
        assert self.range is not None, "a key without a range takes any value"
        return self.range[1]

    def takes(self, value: float) -> bool:
        return self.range is None or self.range[0] <= value <= self.range[1]


@functools.cache
def field_types(model: type) -> dict[str, Any]:
    """The types of a model's fields, without ``Key``."""
    return typing.get_type_hints(model)


@functools.cache
def keys(model: type) -> dict[str, Key]:
    """The ``Key`` of each field of a model; a field without one takes any value of its type."""
    hints = typing.get_type_hints(model, include_extras=True)
    return {name: next((item for item in getattr(hint, "__metadata__", ()) if isinstance(item, Key)), Key()) for name, hint in hints.items()}


@functools.cache
def _converted(model: type) -> dict[str, Any]:
    """The types of the fields whose JSON values are other values: sections and tuples."""
    return {name: hint for name, hint in field_types(model).items() if _is_converted(hint)}


def _is_converted(hint: Any) -> bool:
    parts = typing.get_args(hint) if typing.get_origin(hint) is types.UnionType else (hint,)
    return any(dataclasses.is_dataclass(part) or typing.get_origin(part) is tuple for part in parts)


def chosen(hint: Any, value: Any) -> Any:
    """The part of a union that a value is of: a section for a mapping, else the first type that is no section; never that of None."""
    parts = [part for part in typing.get_args(hint) if part is not types.NoneType]
    return next((part for part in parts if dataclasses.is_dataclass(part) == isinstance(value, dict)), parts[0])


def model_from_wire(model: type[Model], row: dict[str, Any]) -> Model:
    """A model from JSON values, the inverse of ``dataclasses.asdict``; raises TypeError if fields are missing or unknown. Validates no values."""
    hints = field_types(typing.cast(type, model))
    if set(row) != set(hints):
        raise TypeError(f"not the fields of {model.__name__}: {', '.join(sorted(set(row) ^ set(hints)))}")
    return model(**row | {name: _value(hint, row[name]) for name, hint in _converted(typing.cast(type, model)).items()})


def model_to_wire(value: Any) -> Any:
    """A model as JSON values: what ``dataclasses.asdict`` returns, without copies of the values, in a third of the time."""
    if isinstance(value, tuple):
        return tuple(map(model_to_wire, value))
    if not dataclasses.is_dataclass(value):
        return value
    return {name: model_to_wire(getattr(value, name)) for name in field_types(typing.cast(type, type(value)))}


def changed_model(before: Model, values: dict[str, Any]) -> Model:
    """A model with other values, JSON or finished, of some fields; raises TypeError as ``model_from_wire``."""
    hints = field_types(typing.cast(type, type(before)))
    if not values.keys() <= hints.keys():
        raise TypeError(f"not the fields of {type(before).__name__}: {', '.join(sorted(values.keys() - hints.keys()))}")
    changed = {name: _value(hints[name], value) for name, value in values.items()}
    return typing.cast(Model, dataclasses.replace(typing.cast(Any, before), **changed))


def _value(hint: Any, value: Any) -> Any:
    origin = typing.get_origin(hint)
    if origin is types.UnionType:
        return None if value is None else _value(chosen(hint, value), value)
    if origin is tuple:
        return tuple(_value(typing.get_args(hint)[0], item) for item in value)
    if dataclasses.is_dataclass(hint) and not dataclasses.is_dataclass(value):
        return model_from_wire(typing.cast(type[Any], hint), value)
    return value
