"""A document's keys and values become the model's: names, units, ranges and types, every fault collected.

The walk here over the classes of ``proxy.config.model`` and the ``Key`` of each field renames (``idle`` to ``idle_ms``), reads units, refuses
unknown keys and checks ranges; then pydantic's TypeAdapter over the same stdlib dataclasses judges types, words and missing keys, and builds the
model.
"""

import dataclasses
import difflib
import time
import types
import typing
from typing import TYPE_CHECKING, Any, Final, Literal

from control.configuration.document import Document, Path, show
from control.configuration.units import format_duration_ms, format_size, parse_duration_ms, parse_instant_ns, parse_size
from proxy.config.key import Key, field_types, keys
from proxy.config.model import ProxyConfig

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

__all__ = ["SIZES", "build", "convert", "file_key", "range_text"]

SIZES: Final = frozenset({"bytes", "bytes/s"})
"""The units of what is written as a size."""
_MISSING: Final = object()


def file_key(field: str) -> str:
    """The key in the file of a field: a time is written with its unit there, so ``idle_ms`` is ``idle`` there, and ``expires_ns`` is ``expires``;
    ``from_``, which Python does not take without its tail, is ``from``.
    """
    return field.removesuffix("_ms").removesuffix("_ns").removesuffix("_")


def convert(document: Document) -> dict[str, Any]:
    """The document with the model's names, values in bytes and milliseconds. Values that are wrong are left out and named in ``document.faults``."""
    return _model(document, ProxyConfig, document.data, ())


def _model(document: Document, model: type, data: dict[str, Any], path: Path) -> dict[str, Any]:
    known, types_of = keys(model), field_types(model)
    fields = {file_key(name): name for name in known}
    result: dict[str, Any] = {}
    for key, value in data.items():
        entry = (*path, str(key))
        field = fields.get(str(key))
        if field is None:
            near = difflib.get_close_matches(str(key), fields, 1)
            advice = f"did you mean {near[0]}?" if near else f"known here: {', '.join(sorted(fields))}"
            document.add(entry, f"is not a known key; {advice}", "")  # its value may be a password: who looks for a key for it writes one
            continue
        converted = _value(document, known[field], types_of[field], value, entry)
        if converted is not _MISSING:
            result[field] = converted
    return result


def _value(document: Document, key: Key, hint: Any, value: Any, path: Path) -> Any:
    arguments = typing.get_args(hint)
    if value is None:
        return None if type(None) in arguments else _MISSING
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        hint = next(item for item in arguments if item is not type(None))
        arguments = typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        if isinstance(value, dict):
            return _model(document, typing.cast(type, hint), value, path)
        document.add(path, "must be a mapping of keys to values", "a list" if isinstance(value, list | tuple) else "no mapping")  # likewise
        return _MISSING
    if typing.get_origin(hint) is tuple:
        if isinstance(value, list | tuple):
            items = (_value(document, key, arguments[0], item, (*path, index)) for index, item in enumerate(value))
            return [item for item in items if item is not _MISSING]
        document.add(path, "must be a list", value)
        return _MISSING
    if typing.get_origin(hint) is dict:
        return _mapping(document, key, arguments[1], value, path)
    return _scalar(document, key, hint, value, path)


def _mapping(document: Document, key: Key, hint: Any, value: Any, path: Path) -> Any:
    """Names of the user's own with a value each; one without a value is left out."""
    if not isinstance(value, dict):
        document.add(path, "must be a mapping of names to values", value)
        return _MISSING
    converted = {str(name): _value(document, key, hint, item, (*path, str(name))) for name, item in value.items()}
    return {name: item for name, item in converted.items() if item is not _MISSING}


def _scalar(document: Document, key: Key, hint: Any, value: Any, path: Path) -> Any:
    if hint is str or typing.get_origin(hint) is Literal:
        text = document.texts.get(path, value)
        if isinstance(text, str) and not _is_system_text(text):
            document.add(path, "holds a character that no name, path or address may have", ascii(text))
            return _MISSING
        return text
    if isinstance(value, bool) is not (hint is bool):
        document.add(path, "must be true or false" if hint is bool else "must be a number")
        return _MISSING
    if hint is bool:
        return value
    try:
        if key.unit == "ms":
            value = parse_duration_ms(document.texts.get(path, ""))
        elif key.unit == "ns":
            value = parse_instant_ns(document.texts.get(path, ""), time.time_ns())
        elif key.unit in SIZES and not isinstance(value, int):
            value = parse_size(document.texts.get(path, ""))
        elif isinstance(value, str):
            value = _number(hint, value)
    except ValueError as error:
        document.add(path, f"is {error}", None if path in document.texts else value)
        return _MISSING
    return value if _in_range(document, key, value, path) else _MISSING


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


def _in_range(document: Document, key: Key, value: Any, path: Path) -> bool:
    if key.range is None or not isinstance(value, int | float) or key.range[0] <= value <= key.range[1]:
        return True
    document.add(path, f"must be from {range_text(key)}")
    return False


def range_text(key: Key) -> str:
    """The range of a key as faults, the manual and options write it: ``100ms to 10m``, ``0B to 1GiB``; it has one."""
    assert key.range is not None, "only numbers have a range"
    return " to ".join(_bound_text(key, bound) for bound in key.range)


def _bound_text(key: Key, bound: float) -> str:
    if key.unit == "ms":
        return format_duration_ms(int(bound)) if bound else "0"
    return format_size(int(bound)) if key.unit in SIZES else str(bound)


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
