"""A configuration as plain values, with the line of each, and what is wrong with it."""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any, Final

from control.configuration.fault import Fault

__all__ = ["Document", "Path", "document_of", "key_of", "show"]

Path = tuple[str | int, ...]
_PEM: Final = "-----BEGIN "
_MAX_SHOWN: Final = 60


@dataclasses.dataclass(slots=True)
class Document:
    """One configuration as read.

    Attributes:
        data: plain dicts, lists, str, int, float, bool, None.
        lines: the line of every path; of a mapping's entry, that of its key.
        texts: every scalar as it is written.
        faults: found while reading.
        warnings: what may be meant as it stands, but hardly is.
        folder: relative paths in the document start here.
        files: whether the files that it names are here, and are looked at.
    """

    data: Any
    lines: dict[Path, int]
    texts: dict[Path, str]
    faults: list[Fault]
    folder: pathlib.Path
    warnings: list[Fault] = dataclasses.field(default_factory=list)
    files: bool = True

    def line(self, path: Path) -> int:
        """The line of a path, or of the nearest enclosing one that is there."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 0)

    def add(self, path: Path, reason: str, value: object = None) -> None:
        """Add a fault at a path; the value shown is what the document says unless given."""
        self.faults.append(self._fault(path, reason, value))

    def warn(self, path: Path, reason: str, value: object = None) -> None:
        """Add a warning at a path; see ``add``."""
        self.warnings.append(self._fault(path, reason, value))

    def _fault(self, path: Path, reason: str, value: object) -> Fault:
        shown = self.texts.get(path, "") if value is None else show(value)
        if _PEM in shown:  # where a path to a key belongs
            shown = "PEM text"
        if len(shown) > _MAX_SHOWN:
            shown = shown[: _MAX_SHOWN - 1] + "…"
        return Fault(self.line(path), key_of(path), shown, reason)


def key_of(path: Path) -> str:
    """``("listeners", 0, "tls")`` is ``listeners[0].tls``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def show(value: object) -> str:
    """A value for a message."""
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    return str(value)


def document_of(data: Mapping[str, Any], folder: pathlib.Path | None = None) -> Document:
    """A document without lines, of values that were never in a file."""
    document = Document(data, {}, {}, [], folder or pathlib.Path.cwd())
    _texts_of(document, data, ())
    return document


def _texts_of(document: Document, value: object, path: Path) -> None:
    if isinstance(value, Mapping):
        for key, item in value.items():
            _texts_of(document, item, (*path, str(key)))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _texts_of(document, item, (*path, index))
    elif value is not None:
        document.texts[path] = str(value).lower() if isinstance(value, bool) else str(value)
