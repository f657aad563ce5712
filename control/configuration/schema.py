"""A document becomes the model: names, units, ranges, types, words and paths, with every fault.

The classes of ``proxy.config.model`` and the ``Key`` of each field say how: keys are renamed (``idle`` to ``idle_ms``), units read, relative paths
joined to the document's folder. The model has ``document.WRONG`` in place of a value that is wrong or missing.
"""

import dataclasses
import time
import types
import typing
from typing import Any, Final, Literal, TypeVar

from framegate.control.configuration.document import WRONG, Document, Path, show
from framegate.control.configuration.units import format_duration_ms, format_size, parse_duration_ms, parse_instant_ns, parse_size
from framegate.proxy.config.key import Key, chosen, field_types, keys
from framegate.proxy.config.model import ProxyConfig

Model = TypeVar("Model")
SIZES: Final = frozenset({"bytes", "bytes/s"})  # the units that are written as a size
_UNIX: Final = "unix:"


def file_key(field: str) -> str:
    """The key in the file of a field: without the unit of a time (``idle_ms`` is ``idle``, ``expires_ns`` is ``expires``); ``from_`` is ``from``."""
    return field.removesuffix("_ms").removesuffix("_ns").removesuffix("_")


def build(document: Document) -> ProxyConfig:
    """The document as the model; what is wrong is in ``document.faults``."""
    return build_section(document, ProxyConfig, document.data, ())


def build_section(document: Document, model: type[Model], data: dict[str, Any], path: Path) -> Model:
    """The section of the document at a path as its part of the model."""
    known, types_of = keys(typing.cast(type, model)), field_types(typing.cast(type, model))
    fields = {file_key(name): name for name in known}
    for key in data:
        if key not in fields:
            import difflib  # only for a fault

            near = difflib.get_close_matches(str(key), fields, 1)
            advice = f"did you mean {near[0]}?" if near else f"known here: {', '.join(sorted(fields))}"
            document.add((*path, str(key)), f"is not a known key; {advice}", "")  # its value, which may be a password, is not shown
    values: dict[str, Any] = {}
    for field in dataclasses.fields(typing.cast(Any, model)):
        key, hint = file_key(field.name), types_of[field.name]
        if data.get(key) is not None:
            values[field.name] = _value(document, known[field.name], hint, data[key], (*path, key))
        else:
            values[field.name] = _default(document, known[field.name], field, hint, (*path, key))
    return model(**values)


def _wrong(document: Document, path: Path, reason: str, value: object = None) -> Any:
    document.add(path, reason, value)
    document.wrong.add(path)
    return WRONG


def _default(document: Document, known: Key, field: "dataclasses.Field[Any]", hint: Any, path: Path) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    if field.default is dataclasses.MISSING:
        return _wrong(document, path, "is required", "")
    if dataclasses.is_dataclass(hint):
        return build_section(document, typing.cast(type, hint), {}, path)
    if known.unit == "path" and isinstance(field.default, tuple):
        return tuple(_absolute(document, known, item) for item in field.default)
    return field.default


def _value(document: Document, key: Key, hint: Any, value: Any, path: Path) -> Any:
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        hint = chosen(hint, value)
    if dataclasses.is_dataclass(hint):
        if isinstance(value, dict):
            return build_section(document, typing.cast(type, hint), value, path)
        shown = "a list" if isinstance(value, list | tuple) else "no mapping"  # it may be a secret
        return _wrong(document, path, "must be a mapping of keys to values", shown)
    if typing.get_origin(hint) is tuple:
        return _list(document, key, typing.get_args(hint)[0], value, path)
    if typing.get_origin(hint) is dict:
        return _mapping(document, key, typing.get_args(hint)[1], value, path)
    return _scalar(document, key, hint, value, path)


def _list(document: Document, key: Key, hint: Any, value: Any, path: Path) -> Any:
    if not isinstance(value, list | tuple):
        return _wrong(document, path, "must be a list", value)
    return tuple(_value(document, key, hint, item, (*path, index)) for index, item in enumerate(value))


def _mapping(document: Document, key: Key, hint: Any, value: Any, path: Path) -> Any:
    if not isinstance(value, dict):
        return _wrong(document, path, "must be a mapping of names to values", value)
    return {str(name): _value(document, key, hint, item, (*path, str(name))) for name, item in value.items() if item is not None}


def _scalar(document: Document, key: Key, hint: Any, value: Any, path: Path) -> Any:
    text = document.texts.get(path)
    try:
        if hint is bool:
            return _switch(value)
        if hint is str:
            return _absolute(document, key, _text(text))
        if typing.get_origin(hint) is Literal:
            return _word(typing.get_args(hint), text)
        return _number(key, hint, value, text or "")
    except ValueError as error:
        return _wrong(document, path, str(error), show(value) if text is None else None if text.isprintable() else ascii(text))


def _switch(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def _text(text: str | None) -> str:
    if text is None:
        raise ValueError("must be text")
    try:
        usable = b"\0" not in text.encode()
    except UnicodeEncodeError:  # a surrogate without its pair
        usable = False
    if not usable:
        raise ValueError("holds a character that no name, path or address may have")
    return text


def _word(words: tuple[str, ...], text: str | None) -> str:
    if text not in words:
        *others, last = map(repr, words)
        raise ValueError(f"must be {', '.join(others)} or {last}")
    return text


def _number(key: Key, hint: Any, value: Any, text: str) -> Any:
    if isinstance(value, bool):
        raise ValueError("must be a number")
    try:
        if key.unit == "ms":
            value = parse_duration_ms(text)
        elif key.unit == "ns":
            value = parse_instant_ns(text, time.time_ns())
        elif key.unit in SIZES and not isinstance(value, int):
            value = parse_size(text)
    except ValueError as error:
        raise ValueError(f"is {error}") from error
    return _in_range(key, _converted(hint, value))


def _converted(hint: Any, value: Any) -> Any:
    try:
        number = hint(value)
    except (TypeError, ValueError, OverflowError):
        number = None
    if number is None or (hint is int and isinstance(value, float) and number != value):
        raise ValueError("must be a whole number" if hint is int else "must be a number")
    return number


def _in_range(key: Key, value: Any) -> Any:
    if not key.takes(value):
        raise ValueError(f"must be from {range_text(key)}")
    return value


def _absolute(document: Document, key: Key, text: str) -> str:
    if key.unit == "path" and text:
        return str(document.folder / text)
    if key.unit == "address" and text.startswith(_UNIX) and text != _UNIX:
        return f"{_UNIX}{document.folder / text.removeprefix(_UNIX)}"
    return text


def range_text(key: Key) -> str:
    """The range of a key, which has one, as faults, the manual and options show it: ``100ms to 10m``, ``0B to 1GiB``."""
    assert key.range is not None, "only numbers have a range"
    return " to ".join(bound_text(key, bound) for bound in key.range)


def bound_text(key: Key, bound: float) -> str:
    """A number of a key as it is written in a file."""
    if key.unit == "ms":
        return format_duration_ms(int(bound)) if bound else "0"
    return format_size(int(bound)) if key.unit in SIZES else str(bound)
