r"""The ledger of a tap directory: which streams existed, and what became of each. Control writes it, every reader may read it.

Segments alone do not tell that others existed. The ledger, ``_ledger.jsonl``, has one line for each stream that is born, before its processor starts;
for its end; and for what retention deletes, before it is deleted::

    <8 hex digits of the CRC32 of the JSON> <JSON>\n

    {"n": 1, "ns": wall clock, "event": …, "stream": …}  and, by event:
    born     "tapped": [[listener, direction], …]           a processor will write it; these are the pairs that rules can match
    tapped   "tapped": [[listener, direction], …]           the rules were changed
    ended    "end": logical offset, "settled": bool         it is complete up to here; settled: what it lacks is in the log, as gaps
    deleted  "to": logical offset, "from_ns", "until_ns"    retention deletes what lies before; the times of that data (not in earlier versions)
    adopted  "end": logical offset                          it existed when the ledger was created: what it lacks is not known
    lost     "text"; without a stream                       lines before this one, or the whole ledger, were lost before a start
    shipped  the fields of ``Shipped``; without a stream    the last line of a ledger in an object store (``shipper``)

Numbers are consecutive, except before ``lost``, whose number is above all known ones. Bytes behind the last line feed were torn by a crash and do not
count. Anything else that is not valid is damage (``Ledger.damage``): a line about some stream may be missing.

Beyond a size the file is written again without streams that are deleted completely, first those that no consumer needs. Such a file begins with a
line numbered 0; then comes a line for each stream that is kept, with the number of its birth; then new ones::

    compacted  "to": the last number, "lines": how many were kept, "forgotten": n, "damage": text, "damaged_at": n, "cut_from_ns", "cut_until_ns",
               "lost": text
    kept       the fields of ``StreamRecord``

A stream is kept while another one of its run exists (``run_of``): a processor's stream and its recovery stream can only be judged together.

``read_ledger`` needs no lock: a line is one write, a new file one rename. ``ledger_writer`` is for the holder of the directory's lock.
"""

import dataclasses
import json
import os
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeGuard

from framegate.proxy.tap.record import is_stream_name
from framegate.proxy.tap.store import is_url, store_at

LEDGER_NAME: Final = "_ledger.jsonl"
EVENTS: Final = ("born", "tapped", "ended", "deleted", "adopted", "kept")
RECOVERY: Final = "recovery"
SILENT_INTERVALS: Final = 3  # a node is silent when it has not been heard for so many of its intervals


Pair = tuple[str, str]  # a listener's name and a direction
Span = tuple[int, int]  # Two times, wall clock
NEVER: Final[Span] = (0, 0)


class DamageError(ValueError):
    """A line that is not valid."""


def encode(record: Mapping[str, Any]) -> bytes:
    """The line, with its line feed."""
    text = json.dumps(record, separators=(",", ":")).encode()
    return b"%08x %b\n" % (zlib.crc32(text), text)


def decode(line: bytes) -> dict[str, Any]:
    """The record in a line without its line feed; it has an event, of any version. Raises DamageError: the line is not valid."""
    text = line[9:]
    if line[:9] != b"%08x " % zlib.crc32(text):
        raise DamageError("its CRC does not fit")
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DamageError(str(error)) from error
    if not isinstance(record, dict) or not isinstance(record.get("event"), str):
        raise DamageError("no event")
    return record


def integer(record: Mapping[str, Any], name: str) -> int:
    """A member that is a whole number from 0. Raises DamageError when it is not."""
    value = record.get(name)
    if type(value) is not int or value < 0:
        raise DamageError(f"{name} is no number: {value!r}")
    return value


def pairs(record: Mapping[str, Any]) -> list[Pair]:
    """The member ``tapped``. Raises DamageError when it is not valid."""
    tapped = record.get("tapped")
    if not isinstance(tapped, list):
        raise DamageError("tapped is no list")
    found: list[Pair] = []
    for item in tapped:
        if not (isinstance(item, list) and len(item) == 2 and all(isinstance(word, str) for word in item)):
            raise DamageError(f"not a listener and a direction: {item!r}")
        found.append((item[0], item[1]))
    return found


def span(record: Mapping[str, Any], prefix: str, otherwise: Span) -> Span:
    """The members ``<prefix>from_ns`` and ``<prefix>until_ns``; ``otherwise`` for versions without them. Raises DamageError when one is not valid."""
    names = (f"{prefix}from_ns", f"{prefix}until_ns")
    return (integer(record, names[0]), integer(record, names[1])) if names[1] in record else otherwise


def joined(left: Span, right: Span) -> Span:
    """The shortest time that contains both."""
    if NEVER in (left, right):
        return max(left, right)
    return min(left[0], right[0]), max(left[1], right[1])


@dataclasses.dataclass(frozen=True, slots=True)
class StreamRecord:
    """The ledger's record of one stream."""

    born: int  # number of its first line
    born_ns: int  # wall clock of that line; 0 for a stream that was adopted
    tapped: list[Pair]  # (listener, direction) pairs that rules could match at some time
    end: int | None = None  # the logical offset behind its last block; None: not known to have ended
    settled: bool = False  # what it lacks is in the log; for an adopted stream only its own blocks are known
    deleted_to: int = 0  # blocks before this offset are deleted; 0: none
    # cut_from_ns, cut_until_ns: the times of the deleted blocks, wall clock. From 0: the first time is not known; until 0: none is deleted.
    cut_from_ns: int = 0
    cut_until_ns: int = 0
    recovery: bool = False  # control wrote it, for another stream
    adopted: bool = False  # it existed before the ledger

    @property
    def gone(self) -> bool:
        """It has ended, and retention deleted all of it."""
        return self.settled and self.end is not None and self.deleted_to >= self.end


@dataclasses.dataclass(frozen=True, slots=True)
class Shipped:
    """What a shipper says of a node, in the store. Times are of the node's wall clock."""

    heard_ns: int  # when it was written
    at_ns: int  # every stream that began before this time is in the ledger
    stopped: bool  # the node's framegate had ended in order: no stream is being written
    interval_ms: int  # how often it is written, at least
    writer: str  # distinguishes shippers
    local_last: int  # the number of the last line of the node's own ledger
    # by name, the logical offset up to which the stream is in the store; and the time before which all frames are, or what is known of them, for a
    # stream without an end in the ledger
    streams: Mapping[str, tuple[int, int]]
    node: str = ""  # the folder in which it was written; "": of a version that did not say so


@dataclasses.dataclass(frozen=True, slots=True)
class Ledger:
    """The contents of a ledger."""

    present: bool  # the file exists
    last: int  # number of its last line; 0: none
    damage: str  # what is wrong with it, in words; empty when it is sound
    streams: dict[str, StreamRecord]  # by name, oldest first
    forgotten: int = 0  # streams born up to this number may be unknown although some consumer had not read them; 0: none
    # cut_from_ns, cut_until_ns: as in ``StreamRecord``, for deleted streams that are unknown here
    cut_from_ns: int = 0
    cut_until_ns: int = 0
    lost: str = ""  # what was lost of it before a start, in words; empty: nothing
    shipped: Shipped | None = None  # for a ledger in a store; otherwise None
    sparse_to: int = dataclasses.field(default=0, compare=False)  # the number of the last line before the last compaction; 0: none


class LedgerState:
    """A ledger while it is read or written."""

    def __init__(self) -> None:
        self.streams: dict[str, StreamRecord] = {}
        self.last = 0
        self.damage = ""
        self.damaged_at = 0  # the number before the damage; 0: none
        self.forgotten = 0
        self.cut: Span = NEVER  # ``cut_from_ns`` and ``cut_until_ns`` of ``Ledger``. Other attributes as in ``Ledger``.
        self.lost = ""
        self.shipped: Shipped | None = None
        self._sparse_to = 0
        self._sparse_lines = -1  # kept lines that are still expected; -1: not compacted

    def read(self, content: bytes) -> int:
        """Read a file's content; returns the number of bytes in whole lines."""
        whole = content.rfind(b"\n") + 1
        for number, line in enumerate(content[:whole].splitlines(), 1):
            try:
                self._take(line, first=number == 1)
            except DamageError as error:
                self._damaged(f"line {number}: {error}")
        if self._sparse_lines > 0:
            self._damaged(f"{self._sparse_lines} lines up to {self._sparse_to} are missing")
        self.last = max(self.last, self._sparse_to)
        return whole

    def _damaged(self, text: str) -> None:
        self.damage = self.damage or text
        self.damaged_at = max(self.damaged_at, self.last)

    def _take(self, line: bytes, *, first: bool) -> None:
        record = decode(line)
        if first and record["event"] == "compacted":
            self._sparse_to, self._sparse_lines = integer(record, "to"), integer(record, "lines")
            self.forgotten, self.damage, self.damaged_at = integer(record, "forgotten"), str(record["damage"]), integer(record, "damaged_at")
            self.cut = span(record, "cut_", (0, integer(record, "ns")))
            self.lost = str(record.get("lost", ""))
            return
        number, before = integer(record, "n"), self.last
        self.last = max(before, number)
        self.apply(record)
        if number > self._sparse_to:
            if number != max(before, self._sparse_to) + 1 and record["event"] != "lost":
                raise DamageError(f"number {number} follows {max(before, self._sparse_to)}")
        else:
            self._sparse_lines -= 1

    def apply(self, record: Mapping[str, Any]) -> None:
        """Apply a record. Events of later versions are ignored."""
        event, number, stream = record["event"], record["n"], record.get("stream")
        if event == "lost":
            self.lost = self.lost or str(record.get("text", ""))
        if event == "shipped":
            self.shipped = _shipped(record)
        if event not in EVENTS or not _is_of_stream(stream):
            return
        known = self.streams.get(stream)
        if event == "kept":
            self.streams[stream] = _kept(record, stream)
        elif event == "born":
            stream_record = known or StreamRecord(number, integer(record, "ns"), [], recovery=is_recovery(stream))
            self.streams[stream] = dataclasses.replace(stream_record, tapped=_union(stream_record.tapped, pairs(record)))
        elif event == "adopted":
            stream_record = known or StreamRecord(number, 0, [], recovery=is_recovery(stream), adopted=True)
            self.streams[stream] = dataclasses.replace(stream_record, end=integer(record, "end"), settled=True)
        elif known is None:
            raise DamageError(f"{event}, but never born: {stream}")
        elif event == "tapped":
            self.streams[stream] = dataclasses.replace(known, tapped=_union(known.tapped, pairs(record)))
        elif event == "ended":
            self.streams[stream] = dataclasses.replace(known, end=integer(record, "end"), settled=record.get("settled") is True)
        else:
            self.streams[stream] = _shortened(known, record)

    def frozen(self, *, present: bool) -> Ledger:
        return Ledger(present, self.last, self.damage, dict(self.streams), self.forgotten, *self.cut, self.lost, self.shipped, self._sparse_to)


def _is_of_stream(stream: object) -> TypeGuard[str]:
    """False for other folders, which an earlier version took for streams. Raises DamageError when there is no name."""
    if not isinstance(stream, str):
        raise DamageError("a line without a stream")
    return is_stream_name(stream)


def _shortened(known: StreamRecord, record: Mapping[str, Any]) -> StreamRecord:
    """Apply the deletion of blocks. Their times begin with the stream's birth, unless the clock was set back; not those of a recovery stream, which
    is about earlier times.
    """
    from_ns, until_ns = span(record, "", (0, integer(record, "ns")))
    if known.born_ns and not known.recovery:
        from_ns = min(from_ns or known.born_ns, known.born_ns)
    from_ns, until_ns = joined((known.cut_from_ns, known.cut_until_ns), (from_ns, until_ns))
    return dataclasses.replace(known, deleted_to=max(known.deleted_to, integer(record, "to")), cut_from_ns=from_ns, cut_until_ns=until_ns)


def _kept(record: Mapping[str, Any], stream: str) -> StreamRecord:
    born_ns, deleted_to = integer(record, "born_ns"), integer(record, "deleted_to")
    from_ns, until_ns = span(record, "cut_", (0 if is_recovery(stream) else born_ns, integer(record, "ns")) if deleted_to else NEVER)
    return StreamRecord(
        born=integer(record, "n"),
        born_ns=born_ns,
        tapped=pairs(record),
        end=None if record.get("end") is None else integer(record, "end"),
        settled=record.get("settled") is True,
        deleted_to=deleted_to,
        cut_from_ns=from_ns,
        cut_until_ns=until_ns,
        recovery=is_recovery(stream),
        adopted=record.get("adopted") is True,
    )


def kept_record(stream: str, stream_record: StreamRecord, now_ns: int) -> dict[str, Any]:
    """The record that a compaction writes for a stream."""
    names = ("born_ns", "tapped", "end", "settled", "deleted_to", "cut_from_ns", "cut_until_ns", "adopted")
    members = {name: getattr(stream_record, name) for name in names}
    return {"n": stream_record.born, "ns": now_ns, "event": "kept", "stream": stream, **members}


def _shipped(record: Mapping[str, Any]) -> Shipped:
    streams = record.get("streams")
    if not isinstance(streams, dict):
        raise DamageError("streams is no mapping")
    return Shipped(
        heard_ns=integer(record, "heard_ns"),
        at_ns=integer(record, "at_ns"),
        stopped=record.get("stopped") is True,
        interval_ms=integer(record, "interval_ms"),
        writer=str(record.get("writer")),
        local_last=integer(record, "local_last"),
        streams={stream: (integer(facts, "end"), integer(facts, "until_ns")) for stream, facts in streams.items()},
        node=str(record.get("node", "")),
    )


def compacted(streams: Mapping[str, StreamRecord], now_ns: int, **members: Any) -> bytes:
    """The content of a compacted ledger with these streams. ``members``: of its first line."""
    lines = [encode(kept_record(stream, streams[stream], now_ns)) for stream in sorted(streams, key=lambda stream: streams[stream].born)]
    return b"".join([encode({"n": 0, "ns": now_ns, "event": "compacted", "lines": len(lines), **members}), *lines])


def _union(left: Iterable[Pair], right: Iterable[Pair]) -> list[Pair]:
    return list(dict.fromkeys([*left, *right]))


def is_recovery(stream: str) -> bool:
    """Whether control writes this stream to settle another one."""
    return stream.rsplit(".", 2)[-2:-1] == [RECOVERY]


def run_of(stream: str) -> tuple[str, str]:
    """Node and boot id, which a processor's stream and its recovery stream have in common."""
    node, *_, boot_id = stream.rsplit(".", 2)
    return node, boot_id


def content_of(directory: str) -> bytes | None:
    """The bytes of the ledger of a log; None when it does not exist. Raises OSError: it exists and cannot be read."""
    try:
        if is_url(directory):
            return store_at(directory).read(LEDGER_NAME)[0]
        with open(os.path.join(directory, LEDGER_NAME), "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def ledger_of(content: bytes | None) -> Ledger:
    """A ledger from its bytes; None: it does not exist. Damage is not an error."""
    state = LedgerState()
    state.read(content or b"")
    return state.frozen(present=content is not None)


def read_ledger(directory: str) -> Ledger:
    """The ledger of a log. Damage, or a log without a ledger, is not an error. Raises OSError: it exists and cannot be read."""
    return ledger_of(content_of(directory))
