"""A document's keys and values become the model's: names, units, ranges and types, every fault collected.

Three passes over the classes of ``proxy.config.model``: the walk here renames (``idle`` to ``idle_ms``), reads units, refuses unknown keys and
checks ranges; then pydantic's TypeAdapter over the same stdlib dataclasses judges types, words and missing keys, and builds the model.
"""

import dataclasses
import difflib
import functools
import time
import types
import typing
from typing import TYPE_CHECKING, Any, Final, Literal

from control.configuration.document import Document, Path, show
from control.configuration.units import format_duration_ms, format_size, parse_duration_ms, parse_instant_ns, parse_size
from proxy.config.model import GIB, KIB, MAX_INT32, ProxyConfig

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

__all__ = ["RANGES", "SIZES", "build", "convert", "file_key", "range_text"]

_MINUTE: Final = 60_000
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR
_TIB: Final = 1024 * GIB

SIZES: Final = frozenset(
    {"size", "max_receive_size", "budget", "segment_size", "flush_size", "queue_size", "max_frame_bytes", "min_rate", "min_size", "max_size"}
)
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
    ("TapRule", "min_size"): (0, MAX_INT32),
    ("TapRule", "max_size"): (0, MAX_INT32),
    ("TapRule", "sample_connections"): (0.0, 1.0),
    ("TapRule", "sample_frames"): (0.0, 1.0),
    ("TapRule", "max_loss_percent"): (0.0, 100.0),
    ("TapRule", "max_cpu_percent"): (0.0, 100.0),
    ("TapConfig", "budget"): (KIB * KIB, 1024 * _TIB),
    ("TapConfig", "max_age_ms"): (0, 3650 * _DAY),
    ("TapConfig", "segment_size"): (64 * KIB, 4 * GIB),
    ("TapConfig", "segment_age_ms"): (1000, _DAY),
    ("TapConfig", "flush_size"): (4 * KIB, 64 * KIB * KIB),
    ("TapConfig", "flush_ms"): (1, 10_000),
    ("TapConfig", "queue_size"): (64 * KIB, 4 * GIB),
    ("MemoryPoolConfig", "size"): (64 * KIB, 1024 * _TIB),
    ("MemoryPoolConfig", "shares"): (1, 100),
    ("DrainConfig", "timeout_ms"): (0, _HOUR),
    ("DrainConfig", "quiet_ms"): (0, 10 * _MINUTE),
    ("OtlpConfig", "interval_ms"): (100, _HOUR),
}
_MISSING: Final = object()


def file_key(field: str) -> str:
    """The key in the file of a field: a time is written with its unit, so ``idle_ms`` is ``idle`` there, and ``expires_ns`` is ``expires``."""
    return field.removesuffix("_ms").removesuffix("_ns")


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
    arguments = typing.get_args(hint)
    if value is None:
        return None if type(None) in arguments else _MISSING
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        hint = next(item for item in arguments if item is not type(None))
        arguments = typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        if isinstance(value, dict):
            return _model(document, typing.cast(type, hint), value, path)
        document.add(path, "must be a mapping of keys to values", value)
        return _MISSING
    if typing.get_origin(hint) is tuple:
        if isinstance(value, list | tuple):
            items = (_value(document, model, field, arguments[0], item, (*path, index)) for index, item in enumerate(value))
            return [item for item in items if item is not _MISSING]
        document.add(path, "must be a list", value)
        return _MISSING
    if typing.get_origin(hint) is dict:
        return _mapping(document, model, field, arguments[1], value, path)
    return _scalar(document, model, field, hint, value, path)


def _mapping(document: Document, model: type, field: str, hint: Any, value: Any, path: Path) -> Any:
    """Names of the user's own with a value each; one without a value is left out."""
    if not isinstance(value, dict):
        document.add(path, "must be a mapping of names to values", value)
        return _MISSING
    converted = {str(name): _value(document, model, field, hint, item, (*path, str(name))) for name, item in value.items()}
    return {name: item for name, item in converted.items() if item is not _MISSING}


def _scalar(document: Document, model: type, field: str, hint: Any, value: Any, path: Path) -> Any:
    if hint is str or typing.get_origin(hint) is Literal:
        text = document.texts.get(path, value)
        if isinstance(text, str) and not _is_system_text(text):
            document.add(path, "holds a character that no name, path or address may have", ascii(text))
            return _MISSING
        return text
    if isinstance(value, bool):
        document.add(path, "must be a number")
        return _MISSING
    try:
        if field.endswith("_ms"):
            value = parse_duration_ms(document.texts.get(path, ""))
        elif field.endswith("_ns"):
            value = parse_instant_ns(document.texts.get(path, ""), time.time_ns())
        elif field in SIZES and not isinstance(value, int):
            value = parse_size(document.texts.get(path, ""))
        elif isinstance(value, str):
            value = _number(hint, value)
    except ValueError as error:
        document.add(path, f"is {error}", None if path in document.texts else value)
        return _MISSING
    return value if _in_range(document, model, field, value, path) else _MISSING


def _number(hint: Any, text: str) -> Any:
    """A number that was written as text, so that its range is judged; what is no number stays, for pydantic to say so."""
    try:
        return hint(text)
    except ValueError:
        return text


def _is_system_text(text: str) -> bool:
    """Whether the kernel can be given it: no NUL, no half of a character."""
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


def _in_range(document: Document, model: type, field: str, value: Any, path: Path) -> bool:
    bounds = RANGES.get((model.__name__, field))
    if bounds is None or not isinstance(value, int | float) or bounds[0] <= value <= bounds[1]:
        return True
    document.add(path, f"must be from {range_text(model.__name__, field)}")
    return False


def range_text(model: str, field: str) -> str:
    """The range of a field as faults, the manual and the model's docstrings write it: ``100ms to 10m``, ``0B to 1GiB``. Raises KeyError for none."""
    return " to ".join(_show_bound(field, bound) for bound in RANGES[model, field])


def _show_bound(field: str, bound: float) -> str:
    if field.endswith("_ms"):
        return format_duration_ms(int(bound)) if bound else "0"
    return format_size(int(bound)) if field in SIZES else str(bound)


def build(document: Document, values: dict[str, Any]) -> ProxyConfig | None:
    """Let pydantic judge and build the model; None when anything is wrong, then ``document.faults`` says what."""
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(ProxyConfig).validate_python(values)
    except ValidationError as error:
        named = {(fault.line, fault.key) for fault in document.faults}
        for detail in error.errors(include_url=False, include_context=True):
            _add_detail(document, detail, named)
        return None


def _add_detail(document: Document, detail: "ErrorDetails", named: set[tuple[int, str]]) -> None:
    path: Path = tuple(file_key(part) if isinstance(part, str) else part for part in detail["loc"])
    reason = _REASONS.get(detail["type"])
    if reason is None:
        reason = detail["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
        reason = f"must be {reason}"
    elif detail["type"] == "literal_error":
        reason = f"must be {detail['ctx']['expected']}"
    before = len(document.faults)
    missing = detail["type"] == "missing"
    document.add(path, reason, "" if missing else None if path in document.texts else show(detail["input"]))
    fault = document.faults[before]
    if (fault.line, fault.key) in named:
        document.faults.pop()


_REASONS: Final = {
    "missing": "is required",
    "literal_error": "",
    "string_type": "must be text",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
}
