"""A configuration as plain values with the line of each, its faults (``Fault``), and what the model holds for a wrong value (``WRONG``)."""

import dataclasses
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from framegate.proxy.config.model import ProxyConfig

Path = tuple[str | int, ...]
Item = TypeVar("Item")
Value = TypeVar("Value")
MAX_BYTES: Final = 1024 * 1024  # of a configuration file
ZONE: Final = "FRAMEGATE_ZONE"  # the environment variable for the key ``zone``, which Kubernetes' downward API can fill
NODE: Final = "FRAMEGATE_NODE"  # the environment variable for the key ``node``, likewise
_PEM: Final = "-----BEGIN "
_MAX_SHOWN: Final = 60
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


class _Wrong(str):
    """Stands for a value that is wrong or missing, so that it breaks no second rule: no comparison with it holds, it has no entries, and what is
    read from it or computed with it is wrong as well, as with NaN. As a text it is empty.
    """

    __slots__ = ()

    def _wrong(self, *_: object) -> Any:
        return self

    def _no(self, _: object) -> bool:
        return False

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    __hash__ = str.__hash__
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __contains__ = _no
    __getattr__ = __call__ = __getitem__ = __add__ = __radd__ = __sub__ = __rsub__ = __mod__ = __floordiv__ = __rfloordiv__ = _wrong


WRONG: Final[Any] = _Wrong()


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong."""

    line: int  # in the file, from 1; 0 when the configuration did not come from a file
    key: str  # the path of the value, as ``listeners[0].tls.key``; empty for the whole document
    value: str  # as the file has it, shortened; empty when the key is missing, or unknown, since its value may be a secret
    reason: str  # why that is wrong and what would be right

    def __str__(self) -> str:
        shown = f" = {self.value}" if self.value else ""
        return f"line {self.line}: {self.key or 'the document'}{shown}: {self.reason}"

    def in_file(self, path: str | pathlib.Path) -> str:
        """The fault behind the name of its file; of a whole file without line, key and value: ``framegate.yaml: cannot be read: …``."""
        return f"{path}: {self if self.line or self.key else self.reason}"


class Findings(NamedTuple):
    """The faults and warnings of a configuration, by line. ``config``: the model; None when there are faults. With a fault framegate does not start;
    with a warning it starts, but perhaps not as it was meant. ``model``: the model even if only this machine is at fault.
    """

    config: ProxyConfig | None
    faults: list[Fault]
    warnings: list[Fault]
    model: ProxyConfig | None = None


class ConfigurationError(Exception):
    """A configuration with one or more faults, ordered by line."""

    def __init__(self, faults: list[Fault]) -> None:
        super().__init__("\n".join(str(fault) for fault in faults))
        self.faults = faults


@dataclasses.dataclass(slots=True)
class Document:
    """One configuration as read."""

    data: Any  # plain dicts, lists, str, int, float, bool, None
    # lines, texts: the line of every path (of a mapping's entry, that of its key), and every scalar as it is written
    lines: dict[Path, int]
    texts: dict[Path, str]
    faults: list[Fault]
    folder: pathlib.Path  # relative paths in the document start here
    warnings: list[Fault] = dataclasses.field(default_factory=list)
    files: bool = True  # whether the files that it names are looked at
    # the paths at which the model has ``WRONG``. A fault of a rule at or below such a path is not added.
    wrong: set[Path] = dataclasses.field(default_factory=set)

    def line(self, path: Path) -> int:
        """The line of a path, or of the nearest enclosing one."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 0)

    def add(self, path: Path, reason: str | None, value: object = None) -> None:
        """Add a fault at a path. The value shown is the document's unless given. Without a reason there is no fault."""
        if reason is not None and not self._is_wrong(path):
            self.faults.append(self._fault(path, reason, value))

    def warn(self, path: Path, reason: str | None, value: object = None) -> None:
        """Add a warning at a path; see ``add``."""
        if reason is not None and not self._is_wrong(path):
            self.warnings.append(self._fault(path, reason, value))

    def unique(self, path: Path, names: Iterable[object]) -> None:
        """Add a fault for each name that is in a list a second time."""
        seen: list[object] = []
        for entry, name in entries(path, names):
            if name in seen:
                self.add(entry, "is named twice", name)
            seen.append(name)

    def once(self, path: Path, value: Value, places: dict[Value, Path]) -> None:
        """Note the path of a value; add a fault if the value was noted at another one."""
        if value in places:
            self.add(path, f"is already used by {key_of(places[value])} (line {self.line(places[value])})")
        places.setdefault(value, path)

    def named(self, path: Path, name: str | None, names: Iterable[str], kind: str) -> None:
        """Add a fault where a name is not one of those of a kind, as in ``a listener``. None is no name."""
        if name is not None and name not in names:
            self.add(path, f"is not the name of {kind}; there are: {', '.join(names) or 'none'}")

    def _is_wrong(self, path: Path) -> bool:
        return any(path[:length] in self.wrong for length in range(len(path) + 1))

    def _fault(self, path: Path, reason: str, value: object) -> Fault:
        shown = self.texts.get(path, "") if value is None else show(value)
        if _PEM in shown:  # the value should be the path of a key
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


def entries(path: Path, items: Iterable[Item]) -> list[tuple[Path, Item]]:
    """Each entry of a list with its path."""
    return [((*path, index), item) for index, item in enumerate(items)]


class Named(Protocol):
    """An entry of a list that has a name."""

    @property
    def name(self) -> str: ...


def unique_names(document: Document, items: Iterable[tuple[Path, Named]]) -> None:
    """Add faults for names that are badly formed or used twice in a section."""
    first: dict[str, Path] = {}
    for path, item in items:
        if not _NAME.fullmatch(item.name):
            document.add((*path, "name"), "must be 1 to 63 lower-case letters, digits and hyphens, a letter or digit first")
        document.once((*path, "name"), item.name, first)
