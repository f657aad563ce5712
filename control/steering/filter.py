"""Filters of channels: comparisons joined by spaces, all of which must hold, as in ``listener=kafka client_id=billing-* held>1MiB waiting=memory``.

=======  =======================  =========================================================================================
kind     operators                value
=======  =======================  =========================================================================================
text     ``= !=``                 text with ``*``, ``?`` and ``[…]`` as in a shell; in ``"…"`` if it has spaces or is empty
address  ``= !=``                 an address or a network, or text as above
words    ``= !=``                 as text; ``=`` holds if it is one of the words; ``none``: there is no word
size     ``= != > >= < <=``       bytes: ``1MiB``, ``64KB``, ``4096``; of a rate: per second
count    ``= != > >= < <=``       a number
time     ``= != > >= < <=``       a duration: ``250ms``, ``30s``, ``1h30m``
=======  =======================  =========================================================================================

The fields are those of ``FIELDS``, of closed channels those of ``CLOSED_FIELDS``; the same ones order a list.
"""

import dataclasses
import heapq
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeVar

from framegate.control.configuration.units import parse_duration_ms, parse_size
from framegate.control.errors import InvalidArgumentError, Violation
from framegate.proxy.config.matching import address_matcher, text_matcher
from framegate.proxy.server.rows import ClosedRow, OpenRow

L = TypeVar("L")
MAX_LENGTH: Final = 1_000  # Characters of a filter
MAX_COMPARISONS: Final = 16
NONE: Final = "none"
NS_PER_MS: Final = 1_000_000
Kind = Literal["text", "address", "words", "size", "count", "time"]


class Rates(NamedTuple):
    """What passed per second, by direction."""

    request_bytes: float
    response_bytes: float
    request_frames: float
    response_frames: float


Counts = tuple[int, int, int, int]  # of a channel: bytes of requests and responses, then frames


def counts_of(row: OpenRow) -> Counts:
    """The counters from which rates are computed."""
    size, frames = row["bytes"], row["frames"]
    return size["request"] or 0, size["response"] or 0, frames["request"] or 0, frames["response"] or 0


def rates_between(before: Counts, after: Counts, lasted_ns: int) -> Rates:
    """The rates between two counts of a channel."""
    seconds = max(lasted_ns, 1) / 1e9
    return Rates(*(max(new - old, 0) / seconds for old, new in zip(before, after, strict=True)))


class Look(NamedTuple):
    """A channel as it was at a time."""

    row: OpenRow  # of the processor
    now_ns: int  # that time, since 1970
    rates: Rates | None = None  # None: not measured


class ClosedLook(NamedTuple):
    """A channel that is closed, at a time since 1970."""

    row: ClosedRow
    now_ns: int


class Field(NamedTuple):
    """A field: its kind, and how it is read; ``rated``: it needs ``Look.rates``."""

    kind: Kind
    read: Callable[[Any], Any]
    rated: bool = False


def _since(key: str) -> Callable[[Any], int]:
    """Nanoseconds since a time of the row; 0 if that is 0."""
    return lambda look: max(look.now_ns - moment, 0) if (moment := int(look.row[key])) else 0


def _text(key: str) -> Callable[[Any], str]:
    return lambda look: look.row.get(key) or ""


def _count(key: str, part: str = "") -> Callable[[Any], int]:
    return lambda look: (look.row[key][part] if part else look.row[key]) or 0


def _rate(*names: str) -> Callable[[Look], float]:
    return lambda look: sum(getattr(look.rates, name) for name in names) if look.rates is not None else 0.0


def _waiting_ns(look: Look) -> int:
    times = [moment for moment in (look.row["muted_ns"], look.row["muted_upstream_ns"]) if moment]
    return max(look.now_ns - min(times), 0) if times else 0


FIELDS: Final[dict[str, Field]] = {
    "listener": Field("text", _text("listener")),
    "address": Field("address", _text("peer")),
    "principal": Field("text", _text("principal")),
    "client_id": Field("text", _text("client_id")),
    "software": Field("text", lambda look: " ".join(filter(None, (look.row.get("software"), look.row.get("software_version"))))),
    "upstream": Field("text", _text("upstream")),
    "endpoint": Field("text", _text("endpoint")),
    "limit_rule": Field("text", _text("limit_rule")),
    "state": Field("text", _text("state")),
    "waiting": Field("words", lambda look: (*look.row["muted"], *look.row["muted_upstream"])),
    "waiting_time": Field("time", _waiting_ns),
    "age": Field("time", _since("opened_ns")),
    "idle": Field("time", _since("last_active_ns")),
    "in_flight": Field("count", _count("in_flight")),
    "oldest": Field("time", _since("oldest_ns")),
    "held": Field("size", _count("leased")),
    "unsent": Field("size", lambda look: (look.row["unsent"]["request"] or 0) + (look.row["unsent"]["response"] or 0)),
    "request_bytes": Field("size", _count("bytes", "request")),
    "response_bytes": Field("size", _count("bytes", "response")),
    "request_frames": Field("count", _count("frames", "request")),
    "response_frames": Field("count", _count("frames", "response")),
    "bytes_rate": Field("size", _rate("request_bytes", "response_bytes"), rated=True),
    "request_bytes_rate": Field("size", _rate("request_bytes"), rated=True),
    "response_bytes_rate": Field("size", _rate("response_bytes"), rated=True),
    "frames_rate": Field("count", _rate("request_frames", "response_frames"), rated=True),
    "request_frames_rate": Field("count", _rate("request_frames"), rated=True),
    "response_frames_rate": Field("count", _rate("response_frames"), rated=True),
}
CLOSED_FIELDS: Final[dict[str, Field]] = {
    **{name: FIELDS[name] for name in ("listener", "address", "principal", "client_id", "software", "upstream", "endpoint", "state")},
    **{name: Field("text", _text(name)) for name in ("cause", "side", "detail")},
    "age": Field("time", lambda look: max(look.row["closed_ns"] - look.row["opened_ns"], 0)),
    "closed": Field("time", _since("closed_ns")),
    "lost": Field("size", _count("lost", "bytes")),
    **{name: FIELDS[name] for name in ("request_bytes", "response_bytes", "request_frames", "response_frames")},
}  # ``state`` is the last one, ``age`` that at the end; what is not known of a channel whose processor died counts as 0
STANDING: Final = ("listener", "address", "principal", "client_id")  # the fields that are known of a new connection, with ``=`` and ``!=``
_ORDERS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq, "!=": operator.ne, ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le
}  # fmt: skip
_EITHER: Final = ("=", "!=")
_COMPARISON: Final = re.compile(r'(?P<name>[A-Za-z_]+)(?P<op>!=|>=|<=|=|>|<)(?P<value>"(?:[^"\\]|\\.)*"|[^\s"]\S*)(?=\s|\Z)')


def _holds(kind: Kind, value: str) -> Callable[[Any], bool]:
    """Whether ``=`` holds for a value of a kind with text. Raises ValueError."""
    if kind == "address":
        return address_matcher(value)
    matches = text_matcher(value)
    return (lambda words: any(map(matches, words or (NONE,)))) if kind == "words" else matches


def _number(kind: Kind, value: str) -> int:
    """The number of a text. Raises ValueError with a sentence."""
    if kind == "size":
        return parse_size(value)
    if kind == "time":
        return parse_duration_ms(value) * NS_PER_MS
    if not (value.isascii() and value.isdigit()) or len(value) > 18:
        raise ValueError("not a number")
    return int(value)


@dataclasses.dataclass(frozen=True, slots=True)
class Comparison:
    """One comparison: a field, an operator, and the value as text without quotes."""

    name: str
    operator: str
    value: str

    def test(self, fields: Mapping[str, Field]) -> Callable[[Any], bool]:
        """Whether it holds. Raises ValueError with a sentence about the operator or the value."""
        kind, read, _ = fields[self.name]
        textual = kind in ("text", "address", "words")
        if textual and self.operator not in _EITHER:
            raise ValueError(f"{self.name} takes the operators = and !=, not {self.operator}")
        try:
            if textual:
                holds, wanted = _holds(kind, self.value), self.operator == "="
                return lambda look: holds(read(look)) == wanted
            number, compare = _number(kind, self.value), _ORDERS[self.operator]
        except ValueError as error:
            raise ValueError(f"{self.name}: {self.value[:64]!r} is {error}") from error
        return lambda look: compare(read(look), number)


class Filter:
    """A filter, made from its text. ``text``: see the module; empty: all channels match. ``fields``: that comparisons can name; those of channels,
    unless others are given. Raises InvalidArgumentError: says at which character it cannot be read, and what is allowed there.
    """

    def __init__(self, text: str = "", field: str = "filter", fields: Mapping[str, Field] = FIELDS) -> None:
        if len(text) > MAX_LENGTH:
            raise InvalidArgumentError([Violation(field, f"must have at most {MAX_LENGTH} characters, not {len(text)}")])
        self.comparisons: tuple[Comparison, ...] = ()  # in order
        self.rated = False  # whether a comparison needs ``Look.rates``
        self._fields = fields
        self._tests: list[Callable[[Any], bool]] = []
        words: list[str] = []
        position = 0
        while rest := text[position:].lstrip():
            position = len(text) - len(rest)
            try:
                matched = _COMPARISON.match(text, position)
                if matched is None:
                    raise ValueError("write NAME=VALUE, also with != > >= < <=, separated by spaces, and put a value with spaces in double quotes")
                self._add(matched["name"], matched["op"], matched["value"])
            except ValueError as error:
                raise InvalidArgumentError([Violation(field, f"character {position + 1}: {error}")]) from error
            words.append(matched[0])
            position = matched.end()
        self.text = " ".join(words)  # with single spaces between the comparisons

    def _add(self, name: str, op: str, value: str) -> None:
        if name not in self._fields:
            raise ValueError(f"there is no field {name[:64]}; the fields are {', '.join(self._fields)}")
        if len(self.comparisons) == MAX_COMPARISONS:
            raise ValueError(f"a filter has at most {MAX_COMPARISONS} comparisons")
        if value.startswith('"'):
            value = re.sub(r"\\(.)", r"\1", value[1:-1])
        comparison = Comparison(name, op, value)
        self._tests.append(comparison.test(self._fields))
        self.comparisons += (comparison,)
        self.rated |= self._fields[name].rated

    def matches(self, look: Any) -> bool:
        return all(test(look) for test in self._tests)

    @property
    def listener(self) -> str | None:
        """The listener of all channels that can match, if the filter names one, for the processors to choose by."""
        names = [item.value for item in self.comparisons if item.name == "listener" and item.operator == "="]
        return names[0] if names and not set(names[0]) & set("*?[") else None


class Order:
    """The order of a list, as in ``bytes_rate desc``: a field, and ``desc`` for the largest first; of two that are equal the one that came before.
    Raises InvalidArgumentError: there is no such order.
    """

    def __init__(self, text: str, fields: Mapping[str, Field] = FIELDS) -> None:
        name, _, way = text.partition(" ")
        if name not in fields or way not in ("", "asc", "desc"):
            allowed = f"one of {', '.join(fields)}, and perhaps desc, as in `age desc`"
            raise InvalidArgumentError([Violation("order_by", f"must be {allowed}, not {text[:64]!r}")])
        self._read, self.rated = fields[name].read, fields[name].rated
        self._descends = way == "desc"

    def first(self, looks: Sequence[L], size: int) -> list[L]:
        return (heapq.nlargest if self._descends else heapq.nsmallest)(size, looks, key=self._read)
