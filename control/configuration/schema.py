"""A document's keys and values become the model's: names, units, ranges and types, every fault collected.

Two walks over the classes of ``proxy.config.model``: ``convert`` renames (``idle`` to ``idle_ms``), reads units, refuses unknown keys and checks
ranges; ``build`` judges types, words and missing keys, and builds the model. By hand: the five types that fields have need no library, and a
general one (pydantic) took 50 ms of the time to start and 8 MiB of the control process.
"""

import dataclasses
import difflib
import functools
import types
import typing
from typing import Any, Final, Literal

from control.configuration.document import Document, Path, show
from control.configuration.units import format_duration_ms, format_size, parse_duration_ms, parse_size
from proxy.config.model import GIB, KIB, MAX_INT32, ProxyConfig

__all__ = ["RANGES", "SIZES", "build", "convert"]

_MINUTE: Final = 60_000
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR
_TIB: Final = 1024 * GIB

SIZES: Final = frozenset({"size", "max_receive_size", "budget", "segment_size", "flush_size", "queue_size", "max_frame_bytes", "min_rate"})
RANGES: Final[dict[tuple[str, str], tuple[float, float]]] = {
    ("ProxyConfig", "processors"): (0, 64),
    ("ListenerTimeouts", "handshake_ms"): (100, 10 * _MINUTE),
    ("ListenerTimeouts", "idle_ms"): (0, 30 * _DAY),
    ("ListenerTimeouts", "stall_ms"): (1000, _HOUR),
    ("ListenerTimeouts", "half_close_ms"): (0, _HOUR),
    ("ListenerConfig", "max_receive_size"): (1, MAX_INT32),
    ("ListenerConfig", "max_connections"): (0, 10_000_000),
    ("ListenerConfig", "backlog"): (1, 65_535),
    ("ListenerConfig", "min_rate"): (0, GIB),
    ("UpstreamTimeouts", "connect_ms"): (10, 10 * _MINUTE),
    ("UpstreamConfig", "max_receive_size"): (1, MAX_INT32),
    ("TapRule", "max_frame_bytes"): (0, MAX_INT32),
    ("TapRule", "sample_connections"): (0.0, 1.0),
    ("TapConfig", "budget"): (KIB * KIB, 1024 * _TIB),
    ("TapConfig", "max_age_ms"): (0, 3650 * _DAY),
    ("TapConfig", "segment_size"): (64 * KIB, 4 * GIB),
    ("TapConfig", "segment_age_ms"): (1000, _DAY),
    ("TapConfig", "flush_size"): (4 * KIB, 64 * KIB * KIB),
    ("TapConfig", "flush_ms"): (1, 10_000),
    ("TapConfig", "queue_size"): (64 * KIB, 4 * GIB),
    ("MemoryPoolConfig", "size"): (64 * KIB, 1024 * _TIB),
    ("DrainConfig", "timeout_ms"): (0, _HOUR),
    ("DrainConfig", "quiet_ms"): (0, 10 * _MINUTE),
    ("OtlpConfig", "interval_ms"): (100, _HOUR),
}
_MISSING: Final = object()


def file_key(field: str) -> str:
    """The key in the file of a field: a time is written with its unit, so ``idle_ms`` is ``idle`` there."""
    return field.removesuffix("_ms")


@functools.cache
def hints(model: type) -> dict[str, Any]:
    """The types of a model's fields."""
    return typing.get_type_hints(model)


def convert(document: Document) -> dict[str, Any]:
    """The document with the model's names, values in bytes and milliseconds. Values that are wrong are left out and named in ``document.faults``."""
    return _model(document, ProxyConfig, document.data, ())


def _model(document: Document, model: type, data: dict[str, Any], path: Path) -> dict[str, Any]:
    fields = {file_key(field.name): field.name for field in dataclasses.fields(model)}
    result: dict[str, Any] = {}
    for key, value in data.items():
        entry = (*path, str(key))
        field = fields.get(str(key))
        if field is None:
            near = difflib.get_close_matches(str(key), fields, 1)
            advice = f"did you mean {near[0]}?" if near else f"known here: {', '.join(sorted(fields))}"
            document.add(entry, f"is not a known key; {advice}", "" if not isinstance(value, str | int | float) else value)
            continue
        converted = _value(document, model, field, hints(model)[field], value, entry)
        if converted is not _MISSING:
            result[field] = converted
    return result


def _value(document: Document, model: type, field: str, hint: Any, value: Any, path: Path) -> Any:
    if value is None:
        return None if type(None) in typing.get_args(hint) else _MISSING
    hint = _present(hint)
    if dataclasses.is_dataclass(hint):
        if isinstance(value, dict):
            return _model(document, typing.cast(type, hint), value, path)
        document.add(path, "must be a mapping of keys to values", value)
        return _MISSING
    if typing.get_origin(hint) is tuple:
        if isinstance(value, list | tuple):
            items = (_value(document, model, field, typing.get_args(hint)[0], item, (*path, index)) for index, item in enumerate(value))
            return [item for item in items if item is not _MISSING]
        document.add(path, "must be a list", value)
        return _MISSING
    return _scalar(document, model, field, hint, value, path)


def _present(hint: Any) -> Any:
    """The type of an optional field's value that is there."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return next(item for item in typing.get_args(hint) if item is not type(None))
    return hint


def _scalar(document: Document, model: type, field: str, hint: Any, value: Any, path: Path) -> Any:
    if hint is str or typing.get_origin(hint) is Literal:
        return document.texts.get(path, value)
    if isinstance(value, bool):
        document.add(path, "must be a number")
        return _MISSING
    try:
        if field.endswith("_ms"):
            value = parse_duration_ms(document.texts.get(path, ""))
        elif field in SIZES and not isinstance(value, int):
            value = parse_size(document.texts.get(path, ""))
    except ValueError as error:
        document.add(path, f"is {error}", None if path in document.texts else value)
        return _MISSING
    return value if _in_range(document, model, field, value, path) else _MISSING


def _in_range(document: Document, model: type, field: str, value: Any, path: Path) -> bool:
    bounds = RANGES.get((model.__name__, field))
    if bounds is None or not isinstance(value, int | float) or bounds[0] <= value <= bounds[1]:
        return True
    low, high = (_show_bound(field, bound) for bound in bounds)
    document.add(path, f"must be from {low} to {high}")
    return False


def _show_bound(field: str, bound: float) -> str:
    if field.endswith("_ms"):
        return format_duration_ms(int(bound)) if bound else "0"
    if field in SIZES:
        return f"{int(bound)} bytes" if bound in (0, 1, MAX_INT32) else format_size(int(bound))
    return str(bound)


def build(document: Document, values: dict[str, Any]) -> ProxyConfig | None:
    """The model of converted values; None when one is missing or of a wrong type, then ``document.faults`` says which.

    What is missing here because it was wrong is not named again.
    """
    found = len(document.faults)
    named = {(fault.line, fault.key) for fault in document.faults}
    config = _built(document, ProxyConfig, values, ())
    document.faults[found:] = [fault for fault in document.faults[found:] if (fault.line, fault.key) not in named]
    return None if config is _MISSING else typing.cast(ProxyConfig, config)


def _built(document: Document, model: type, values: dict[str, Any], path: Path) -> Any:
    """An instance of a model; ``_MISSING`` after faults."""
    arguments: dict[str, Any] = {}
    for field in dataclasses.fields(model):
        entry = (*path, file_key(field.name))
        if field.name in values:
            arguments[field.name] = _judged(document, hints(model)[field.name], values[field.name], entry)
        elif field.default is dataclasses.MISSING:
            document.add(entry, "is required", "")
            arguments[field.name] = _MISSING
    return _MISSING if _MISSING in arguments.values() else model(**arguments)


def _judged(document: Document, hint: Any, value: Any, path: Path) -> Any:
    """A converted value, none of which is empty where that is not allowed, as its field's type; ``_MISSING`` after faults."""
    if value is None:
        return None
    hint = _present(hint)
    if dataclasses.is_dataclass(hint):
        return _built(document, typing.cast(type, hint), value, path)
    if typing.get_origin(hint) is tuple:
        item_hint = typing.get_args(hint)[0]
        items = tuple(_judged(document, item_hint, item, (*path, index)) for index, item in enumerate(value))
        return _MISSING if _MISSING in items else items
    try:
        return _typed(hint, value)
    except ValueError as error:
        document.add(path, str(error), None if path in document.texts else show(value))
        return _MISSING


def _typed(hint: Any, value: Any) -> Any:
    """A scalar as a word of its list, text, or a number. Raises ValueError with what it must be."""
    if typing.get_origin(hint) is Literal:
        *words, last = map(repr, typing.get_args(hint))
        if value not in typing.get_args(hint):
            raise ValueError(f"must be {', '.join(words)} or {last}" if words else f"must be {last}")
        return value
    if hint is str:
        if not isinstance(value, str):
            raise ValueError("must be text")
        return value
    try:
        number = hint(value)
    except (OverflowError, TypeError, ValueError):
        number = None
    if number is None or (isinstance(value, float) and number != value):
        raise ValueError("must be a whole number" if hint is int else "must be a number")
    return number
