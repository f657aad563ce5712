"""What the code knows of a key, in the type of its field: ``idle_ms: Annotated[int, Key("ms", (0, 30 * DAY))] = 600_000``.

The field's name, type and default are the key's; ``Key`` adds what Python's types cannot say; what a key means stands in
``control/configuration/manual.yaml`` (``framegate explain KEY``). ``keys`` is asked by control's validation (units, ranges, paths) and by the manual.
The link needs nothing of it: ``model_from_wire`` follows the types.
"""

import dataclasses
import functools
import types
import typing
from typing import Any, Literal, NamedTuple, TypeVar

__all__ = ["Key", "Unit", "field_types", "keys", "model_from_wire"]

Unit = Literal["", "bytes", "bytes/s", "ms", "ns", "percent", "share", "path", "address"]
Model = TypeVar("Model")


class Key(NamedTuple):
    """What a field's name, type and default leave open.

    Attributes:
        unit: what a number counts (``ns``: an instant, since 1970), or what a text names: a file or folder, or an address. Each entry of a list
            or mapping has it.
        range: the least and the most, both included; none: every value of the type, as far as the rules between keys let it.
        live: whether it can be changed while framegate runs, over the API; else a change of the file needs a restart.
    """

    unit: Unit = ""
    range: tuple[float, float] | None = None
    live: bool = False

    @property
    def least(self) -> float:
        """The lower end of a range that is there."""
        assert self.range is not None, "a key without a range takes any value"
        return self.range[0]

    @property
    def most(self) -> float:
        """The upper end."""
        assert self.range is not None, "a key without a range takes any value"
        return self.range[1]

    def takes(self, value: float) -> bool:
        """Whether a number is in the range."""
        return self.range is None or self.range[0] <= value <= self.range[1]


@functools.cache
def field_types(model: type) -> dict[str, Any]:
    """The types of a model's fields, without their ``Key``."""
    return typing.get_type_hints(model)


@functools.cache
def keys(model: type) -> dict[str, Key]:
    """The ``Key`` of each field of a model; a field without one takes any value of its type."""
    hints = typing.get_type_hints(model, include_extras=True)
    return {name: next((item for item in getattr(hint, "__metadata__", ()) if isinstance(item, Key)), Key()) for name, hint in hints.items()}


def model_from_wire(model: type[Model], row: dict[str, Any]) -> Model:
    """A model out of JSON-ready values, the inverse of ``dataclasses.asdict``.

    Raises:
        TypeError: a wrong shape, as a field too many or too few. The values themselves were validated by the sender.
    """
    hints = field_types(typing.cast(type, model))
    if set(row) != set(hints):
        raise TypeError(f"not the fields of {model.__name__}: {', '.join(sorted(set(row) ^ set(hints)))}")
    return model(**{name: _value(hint, row[name]) for name, hint in hints.items()})


def _value(hint: Any, value: Any) -> Any:
    origin = typing.get_origin(hint)
    if origin is types.UnionType:
        return None if value is None else _value(next(item for item in typing.get_args(hint) if item is not types.NoneType), value)
    if origin is tuple:
        return tuple(_value(typing.get_args(hint)[0], item) for item in value)
    return model_from_wire(typing.cast(type[Any], hint), value) if dataclasses.is_dataclass(hint) else value
