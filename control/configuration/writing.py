"""The model becomes a document: YAML that is read back as the same model (``schema.build``). Comments of a file that was read before are not kept.

Only the standard library is used, because the control process does not load the YAML library.
"""

import dataclasses
import pathlib
import re
import typing
from collections.abc import Iterator
from typing import Any, Final

from framegate.control.configuration.schema import bound_text, file_key
from framegate.control.configuration.units import format_instant_ns
from framegate.proxy.config.key import Key, keys
from framegate.proxy.config.model import HandlersConfig, ProxyConfig

_PLAIN: Final = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")
_NO_WORDS: Final = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})
_INDENT: Final = "  "
_HANDLERS: Final = HandlersConfig()  # the only keys whose default is a relative path


def as_yaml(config: ProxyConfig, folder: str, *, defaults: bool = False) -> str:
    """The configuration as a file; paths are absolute. ``folder``: of the file, where paths start that are the default. ``defaults``: write also the
    keys that have their default, unless it is none.
    """
    if config.handlers.path == tuple(str(pathlib.Path(folder, path)) for path in _HANDLERS.path) and not defaults:
        config = dataclasses.replace(config, handlers=dataclasses.replace(config.handlers, path=_HANDLERS.path))
    return "".join(f"{line}\n" for line in _section(config, defaults))


def _given(section: Any, defaults: bool) -> Iterator[tuple[str, Key, Any]]:
    """The keys of a section that are to be written, with their values."""
    for field in dataclasses.fields(section):
        value = getattr(section, field.name)
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        if value is not None and (defaults or value != default):
            yield file_key(field.name), keys(typing.cast(type, type(section)))[field.name], value


def _section(section: Any, defaults: bool) -> Iterator[str]:
    for name, key, value in _given(section, defaults):
        lines = list(_section(value, defaults)) if dataclasses.is_dataclass(value) else []
        if isinstance(value, tuple) and any(map(dataclasses.is_dataclass, value)):
            lines = [line for item in value for line in _entry(item, key, defaults)]
        yield f"{name}:" if lines else f"{name}: {flow(value, key)}"
        yield from (f"{_INDENT}{line}" for line in lines)


def _entry(item: Any, key: Key, defaults: bool) -> list[str]:
    lines = list(_section(item, defaults)) if dataclasses.is_dataclass(item) else []
    first, *rest = lines or [flow(item, key)]
    return [f"- {first}", *(f"{_INDENT}{line}" for line in rest)]


def flow(value: object, key: Key) -> str:
    """A value, a section or a list in one line, as it is written in a file. None is ``null``."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int | float):
        return format_instant_ns(int(value)) if key.unit == "ns" else bound_text(key, value)
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_text(name)}: {flow(item, key)}' for name, item in value.items())}}}"
    if dataclasses.is_dataclass(value):
        return f"{{{', '.join(f'{name}: {flow(item, of)}' for name, of, item in _given(value, defaults=False))}}}"
    return f"[{', '.join(flow(item, key) for item in typing.cast(tuple[object, ...], value))}]"


def _text(text: str) -> str:
    """A text, quoted unless it can be nothing else. What YAML does not allow in a file is escaped."""
    if _PLAIN.fullmatch(text) and text.lower() not in _NO_WORDS:
        return text
    return '"' + "".join(_ESCAPES.get(letter) or (letter if letter.isprintable() else f"\\U{ord(letter):08x}") for letter in text) + '"'


_ESCAPES: Final = {'"': '\\"', "\\": "\\\\"}
