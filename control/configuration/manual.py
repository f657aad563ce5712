"""The manual of the configuration keys, for ``framegate config explain`` and the generated pages (``deploy/configuration_pages.py``).

``manual.yaml``, beside this module, is a valid configuration with every key; the comment above a key describes it. Type, unit, range, default and
the effect of a change while framegate runs come from ``framegate.proxy.config``.
"""

import dataclasses
import difflib
import functools
import pathlib
import re
import types
import typing
from collections.abc import Iterator
from typing import Any, Final, Literal

from framegate.control.configuration.schema import SIZES, bound_text, file_key, range_text
from framegate.proxy.config.key import Effect, Key, field_types, keys
from framegate.proxy.config.model import ProxyConfig

SOURCE: Final = pathlib.Path(__file__).with_name("manual.yaml")
_LINE: Final = re.compile(r"^( *)(- )?([a-z_]+):(.*)$")
_INDEX: Final = re.compile(r"\[\d*\]")
_TABLE: Final = "   "  # a comment line that begins so is a line of a table and is not wrapped
DANGER: Final = "Danger: "
_NEAREST: Final = 5
EFFECTS: Final[dict[Effect, tuple[str, str]]] = {
    "now": ("yes", "Can be changed while framegate runs."),
    "new connections": ("new connections", "Can be changed while framegate runs, for new connections."),
    "restart": ("restart", "A change needs a restart."),
}  # of a key: what stands in the table of changes, and a sentence


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """One key."""

    path: str  # as in ``listeners[].timeouts.idle``
    # text, danger: its description and risks, in paragraphs; a line of a table begins with white space
    text: tuple[str, ...]
    danger: str
    type: str  # of its value, in words
    # range, words: the permitted values; empty: others are permitted
    range: str
    words: tuple[str, ...]
    default: str  # as written in a file; empty for required keys and for sections whose keys have defaults
    required: bool  # whether it must be given where its section is
    effect: Effect  # of a change while framegate runs; of a list, also of adding and removing an entry
    example: str  # a line of a configuration; empty for a section
    keys: tuple[str, ...]  # the names of the keys of a section

    @property
    def facts(self) -> list[str]:
        """Range, words, default, whether it is required, and the effect of a change, as sentences."""
        words = ", ".join(f'"{word}"' if word[0].isdigit() else word for word in self.words)
        said = {"Range: ": self.range, "One of: ": words, "Default: ": self.default}
        found = [f"{name}{value}." for name, value in said.items() if value]
        return [*found, *["Required."] * self.required, EFFECTS[self.effect][1]]


@functools.cache
def entries() -> dict[str, Entry]:
    """Every key, in the order of the manual, by its path without brackets."""
    places = _places(SOURCE.read_text(encoding="utf-8"))
    found = {path.replace("[]", ""): (path, field, hint, key) for path, field, hint, key in _fields(ProxyConfig, "")}
    return {name: _entry(*found[name], *places[name]) for name in places}


def find(key: str) -> Entry | None:
    """The entry of a key, written with the index of a list element, with empty brackets, or without."""
    return entries().get(_INDEX.sub("", key).strip("."))


def nearest(key: str) -> list[str]:
    """Paths of similar keys: first those with the same last name, then those with similar names."""
    name = _INDEX.sub("", key).strip(".")
    lasts = {path: path.rpartition(".")[2] for path in entries()}
    last = name.rpartition(".")[2]
    like = difflib.get_close_matches(last, set(lasts.values()), 2, 0.75)
    found = [path for path in lasts if lasts[path] == last]
    found += difflib.get_close_matches(name, entries(), _NEAREST, 0.7)
    found += [path for path in lasts if lasts[path] in like]
    return [entries()[path].path for path in dict.fromkeys(found)][:_NEAREST]


def _fields(model: type, prefix: str, effect: Effect | None = None) -> Iterator[tuple[str, "dataclasses.Field[Any]", Any, Key]]:
    """Every field of a model and of its sections: path, field, type, key. ``effect``: that of the section."""
    for field in dataclasses.fields(model):
        hint = field_types(model)[field.name]
        section = _section(hint)
        path = f"{prefix}{file_key(field.name)}{'[]' if section is not None and typing.get_origin(hint) is tuple else ''}"
        key = keys(model)[field.name]
        key = key._replace(effect=key.effect or effect)
        yield path, field, hint, key
        if section is not None:
            yield from _fields(section, f"{path}.", key.effect)


def _section(hint: Any) -> type | None:
    if dataclasses.is_dataclass(hint):
        return typing.cast(type, hint)
    return next((found for part in typing.get_args(hint) if (found := _section(part)) is not None), None)


def _places(text: str) -> dict[str, tuple[list[str], str]]:
    """The comment lines and the value of each key that has a comment, by path without brackets."""
    found: dict[str, tuple[list[str], str]] = {}
    for name, comment, value in lines(text):
        if name and comment and name not in found:
            found[name] = comment, value
    return found


def lines(text: str) -> Iterator[tuple[str, list[str], str]]:
    """Each line of a configuration that is not a comment: the path of its key ("": none), the comment directly above it, the value."""
    stack: list[tuple[int, str]] = []
    comment: list[str] = []
    for line in text.splitlines():
        if line.lstrip().startswith("#"):
            comment.append(line.lstrip()[1:].removeprefix(" "))
            continue
        match = _LINE.match(line)
        if match:
            indent = len(match[1]) + len(match[2] or "")
            while stack and stack[-1][0] >= indent:
                stack.pop()
            stack.append((indent, match[3]))
        yield ".".join(name for _, name in stack) if match else "", comment, match[4].strip() if match else line
        comment = []


def _entry(path: str, field: "dataclasses.Field[Any]", hint: Any, key: Key, comment: list[str], value: str) -> Entry:
    text, danger = _paragraphs(comment)
    section = _section(hint)
    assert key.effect is not None, f"{path} does not say when a change takes effect"
    required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    name = path.rpartition(".")[2]
    return Entry(
        path=path,
        text=tuple(text),
        danger=danger,
        type=_type_text(hint, key),
        range=range_text(key) if key.range else "",
        words=_words(hint),
        default="" if required else _default_text(key, field.default if field.default is not dataclasses.MISSING else None),
        required=required,
        effect=key.effect,
        example="" if section is not None or value in ("", "null", '""', "[]") else f"{name}: {value}",
        keys=() if section is None else tuple(file_key(item) for item in keys(section)),
    )


def _paragraphs(comment: list[str]) -> tuple[list[str], str]:
    text: list[str] = []
    for line in comment:
        joins = bool(text) and not line.startswith((_TABLE[1:], DANGER)) and not text[-1].startswith(_TABLE[1:])
        if joins:
            text[-1] += f" {line}"
        else:
            text.append(line)
    if text and text[-1].startswith(DANGER):
        return text[:-1], text[-1].removeprefix(DANGER)
    return text, ""


def _words(hint: Any) -> tuple[str, ...]:
    if typing.get_origin(hint) is Literal:
        return typing.get_args(hint)
    return next((found for part in typing.get_args(hint) if (found := _words(part))), ())


_UNITS: Final = {"bytes": "a size", "bytes/s": "a size, each second", "ms": "a time", "ns": "an instant", "path": "a path", "address": "an address"}
_TYPES: Final = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


def _type_text(hint: Any, key: Key) -> str:
    origin, arguments = typing.get_origin(hint), [item for item in typing.get_args(hint) if item not in (types.NoneType, Ellipsis)]
    if origin is tuple:
        return f"a list, each {_type_text(arguments[0], key)}"
    if origin in (types.UnionType, typing.Union):
        return " or ".join(_type_text(item, key) for item in arguments)
    if origin is dict:
        return "a mapping of names to percentages"
    if origin is Literal:
        return "a word"
    return "a section" if dataclasses.is_dataclass(hint) else _UNITS.get(key.unit) or _TYPES[hint]


def _default_text(key: Key, value: object) -> str:
    if dataclasses.is_dataclass(value):
        return ""
    if value is None or isinstance(value, bool):
        return "none" if value is None else str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    if isinstance(value, str):
        return f'"{value}"' if not value or value[0].isdigit() else value
    assert isinstance(value, int | float), "fields have no other types"
    return "0" if not value and key.unit in SIZES else bound_text(key, value)
