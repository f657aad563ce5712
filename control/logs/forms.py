"""How rows are written: as JSON, one object a line, or as text for terminals.

A row is its time, level and event, then its fields. Of what happens most (``closed``) the fields are a JSON object already when they come here.
"""

import abc
import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from framegate.control.logs.catalog import EVENTS
from framegate.proxy.config.log import LogFormat

__all__ = ["Form", "JsonForm", "TextForm", "as_json", "form_of"]


def as_json(value: Any) -> str:
    """JSON as the log writes it. Values that JSON does not know become text; a key that it cannot say raises TypeError."""
    return json.dumps(value, separators=(", ", ": "), ensure_ascii=False, default=str)


class Form(abc.ABC):
    """Makes lines of rows. What cannot be said raises. Attributes: ``name``, as the configuration has it."""

    name: ClassVar[LogFormat]

    @abc.abstractmethod
    def row(self, moment: str, level: str, event: str, fields: Mapping[str, Any]) -> str:
        """The line of one row, without its end."""

    @abc.abstractmethod
    def lines(self, moment: str, level: str, event: str, texts: Sequence[str], dropped: int) -> str:
        """The lines of rows that happened together, without the end of the last.

        Args:
            texts: their fields, each a JSON object of at least one.
            dropped: how many rows were not kept before them; the first says so.
        """


class JsonForm(Form):
    """One JSON object a line."""

    name = "json"

    def row(self, moment: str, level: str, event: str, fields: Mapping[str, Any]) -> str:
        return as_json({"time": moment, "level": level, "event": event, **fields})

    def lines(self, moment: str, level: str, event: str, texts: Sequence[str], dropped: int) -> str:
        head = f'{{"time": "{moment}", "level": "{level}", "event": "{event}", '
        said = f'"rows_dropped": {dropped}, ' if dropped else ""
        joint = f"\n{head}"
        return f"{head}{said}{joint.join([text[1:] for text in texts])}"


_PLAIN: Final = re.compile(r"[A-Za-z0-9_.:/@+%,*#-]+")
"""What needs no quotes between spaces, and is no escape of a terminal's."""
_COLOURS: Final = {"debug": "\033[2m", "info": "\033[32m", "warning": "\033[33m", "error": "\033[31m"}
_END: Final = "\033[0m"


def _safe(text: str) -> str:
    """A text in which every character takes a place on the line, and none does anything else: controls, marks that turn the direction of writing,
    line ends of other alphabets and halves of characters are written as escapes.
    """
    return text if text.isprintable() else "".join(char if char.isprintable() else _escape(char) for char in text)


def _escape(char: str) -> str:
    code = ord(char)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _quoted(text: str) -> str:
    return text if _PLAIN.fullmatch(text) else _safe(json.dumps(text, ensure_ascii=False))


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple | set | frozenset):
        return f"[{' '.join(_value(item) for item in value)}]"
    if isinstance(value, Mapping):
        return f"{{{' '.join(f'{_quoted(str(key))}={_value(item)}' for key, item in value.items())}}}"
    return "-" if value is None else _quoted(str(value))


def _pairs(fields: Mapping[str, Any], before: str = "") -> list[str]:
    """``key=value`` of each field, those of an object each with its path; what is empty is left out."""
    pairs: list[str] = []
    for key, value in fields.items():
        name = f"{before}{_quoted(str(key))}"
        if isinstance(value, Mapping) and value:
            pairs += _pairs(value, f"{name}.")
        elif value is not None and value != "" and value != [] and value != {}:
            pairs.append(f"{name}={_value(value)}")
    return pairs


class TextForm(Form):
    """One line a row, for people: time, LEVEL, event, what that means, then ``key=value``. Fields that are empty are left out. Whatever is in a row,
    its line has no character that is not printed.

    Args:
        colour: of levels, for a terminal.
    """

    name = "text"

    def __init__(self, *, colour: bool = False) -> None:
        self._colour = colour

    def row(self, moment: str, level: str, event: str, fields: Mapping[str, Any]) -> str:
        word = f"{level.upper():<7}"
        if self._colour and level in _COLOURS:
            word = f"{_COLOURS[level]}{word}{_END}"
        known = EVENTS.get(event)
        return " ".join([moment, word, _quoted(event), *([known.says] if known is not None else ()), *_pairs(fields)])

    def lines(self, moment: str, level: str, event: str, texts: Sequence[str], dropped: int) -> str:
        said = {"rows_dropped": dropped} if dropped else {}
        rows = [_fields(text) for text in texts]
        return "\n".join(self.row(moment, level, event, {**(said if number == 0 else {}), **row}) for number, row in enumerate(rows))


def _fields(text: str) -> dict[str, Any]:
    """What is said; of a row that cannot be read, its text."""
    try:
        fields = json.loads(text)
    except ValueError:
        fields = None
    return fields if isinstance(fields, dict) else {"unreadable": text}


def form_of(name: LogFormat, descriptor: int, environment: Mapping[str, str]) -> Form:
    """The form of that name. Text is in colour where the descriptor is a terminal that has them, unless ``NO_COLOR`` is set and not empty."""
    if name == "json":
        return JsonForm()
    return TextForm(colour=os.isatty(descriptor) and environment.get("TERM") != "dumb" and not environment.get("NO_COLOR"))
