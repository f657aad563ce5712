"""The forms of rows: JSON, one object a line, or text for terminals.

A row has its time, level and event, then its fields. The fields of the most frequent rows (``closed``) are JSON text already when they come here.
"""

import abc
import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from framegate.control.logs.catalog import EVENTS
from framegate.proxy.config.log import LogFormat


def as_json(value: Any) -> str:
    """JSON as the log writes it. Values that JSON does not know become text; keys that it does not know raise TypeError."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=str)


class Form(abc.ABC):
    """Makes lines of rows; raises if a row cannot be encoded. Attributes: ``name``, the value in the configuration."""

    name: ClassVar[LogFormat]

    @abc.abstractmethod
    def row(self, moment: str, level: str, event: str, fields: Mapping[str, Any]) -> str:
        """The line of one row, without a line end."""

    @abc.abstractmethod
    def lines(self, moment: str, level: str, event: str, texts: Sequence[str], dropped: int) -> str:
        """The lines of rows that happened together, without the last line end. ``texts``: their fields, each a JSON object of at least one.
        ``dropped``: how many rows were dropped before them; the first line has the number.
        """


class JsonForm(Form):
    """One JSON object a line."""

    name = "json"

    def row(self, moment: str, level: str, event: str, fields: Mapping[str, Any]) -> str:
        return as_json({"time": moment, "level": level, "event": event, **fields})

    def lines(self, moment: str, level: str, event: str, texts: Sequence[str], dropped: int) -> str:
        head = f'{{"time":"{moment}","level":"{level}","event":"{event}",'
        count = f'"rows_dropped":{dropped},' if dropped else ""
        joint = f"\n{head}"
        return f"{head}{count}{joint.join([text[1:] for text in texts])}"


_PLAIN: Final = re.compile(r"[A-Za-z0-9_.:/@+%,*#-]+")
"""Text that needs no quotes and has no escape sequence of a terminal."""
_COLOURS: Final = {"debug": "\033[2m", "info": "\033[32m", "warning": "\033[33m", "error": "\033[31m"}
_END: Final = "\033[0m"


def _safe(text: str) -> str:
    """A text of printable characters only: control characters, marks that change the direction of writing, all kinds of line ends and unpaired
    surrogates are written as escapes.
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
    """``key=value`` of each field, with the whole path for fields of objects; empty values are left out."""
    pairs: list[str] = []
    for key, value in fields.items():
        name = f"{before}{_quoted(str(key))}"
        if isinstance(value, Mapping) and value:
            pairs += _pairs(value, f"{name}.")
        elif value is not None and value != "" and value != [] and value != {}:
            pairs.append(f"{name}={_value(value)}")
    return pairs


class TextForm(Form):
    """One line a row, for people: time, LEVEL, event, its meaning, then ``key=value``. Empty fields are left out. The line has printable characters
    only, whatever is in the row.
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
        count = {"rows_dropped": dropped} if dropped else {}
        rows = [fields_of(text) for text in texts]
        return "\n".join(self.row(moment, level, event, {**(count if number == 0 else {}), **row}) for number, row in enumerate(rows))


def fields_of(text: str) -> dict[str, Any]:
    """The fields of a JSON text; of a text that is no JSON object, the text itself."""
    try:
        fields = json.loads(text)
    except ValueError:
        fields = None
    return fields if isinstance(fields, dict) else {"unreadable": text}


def form_of(name: LogFormat, descriptor: int, environment: Mapping[str, str]) -> Form:
    """The form of that name. Text has colours if the descriptor is a terminal with colours, unless ``NO_COLOR`` is set and not empty."""
    if name == "json":
        return JsonForm()
    return TextForm(colour=os.isatty(descriptor) and environment.get("TERM") != "dumb" and not environment.get("NO_COLOR"))
