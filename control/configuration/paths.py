"""Relative paths of a configuration become absolute ones, from the folder that its file lies in."""

import dataclasses
import pathlib
import typing
from typing import Any, Final

from proxy.config.key import Key, field_types, keys
from proxy.config.model import ProxyConfig

__all__ = ["make_absolute"]

_UNIX: Final = "unix:"


def make_absolute(values: dict[str, Any], folder: pathlib.Path) -> None:
    """Rewrite in place every path of converted values (the model's names): what the model says is a path, and Unix sockets among addresses."""
    values.setdefault("handlers", {})
    _model(ProxyConfig, values, folder)


def _model(model: type, values: dict[str, Any], folder: pathlib.Path) -> None:
    known, types_of = keys(model), field_types(model)
    for field in dataclasses.fields(typing.cast(Any, model)):
        if known[field.name].unit == "path" and isinstance(field.default, tuple) and field.default:
            values.setdefault(field.name, list(field.default))
    for name, value in values.items():
        section = next((item for item in (types_of[name], *typing.get_args(types_of[name])) if dataclasses.is_dataclass(item)), None)
        if section is not None:
            for item in value if isinstance(value, list) else [value]:
                if isinstance(item, dict):
                    _model(typing.cast(type, section), item, folder)
        elif isinstance(value, list):
            values[name] = [_absolute(known[name], item, folder) for item in value]
        else:
            values[name] = _absolute(known[name], value, folder)


def _absolute(key: Key, value: Any, folder: pathlib.Path) -> Any:
    """A value that is no path stays, and so does one that is empty or no text: it is judged elsewhere."""
    if not isinstance(value, str) or value in ("", _UNIX):
        return value
    if key.unit == "path":
        return str(folder / value)
    if key.unit != "address":
        return value
    return f"{_UNIX}{folder / value.removeprefix(_UNIX)}" if value.startswith(_UNIX) else value
