r"""Which streams a tap directory has had, and what became of each: a file of lines that control writes and every reader may believe.

A stream's segments cannot say that there were more of them, and a stream that is gone says nothing at all. The ledger, ``_ledger.jsonl``, does: one
line for each stream that is born, before its processor starts; that ended, and where; and for what retention takes, before it is taken::

    <8 hex digits of the CRC32 of the JSON> <JSON>\n

    {"n": 1, "ns": wall clock, "event": …, "stream": …}  and, by event:
    born     "tapped": [[listener, direction], …]           a processor will write it; these are the pairs that rules can match
    tapped   "tapped": [[listener, direction], …]           the rules were changed
    ended    "end": logical offset, "settled": bool         nobody writes it any more; settled: what it lacks is in the log, as gaps
    deleted  "to": logical offset, "from_ns", "until_ns"    retention takes what lies before; between these times (not known to earlier versions)
    adopted  "end": logical offset                          it was there when the ledger was begun: nobody knows what it lacks

Numbers follow one another without a hole. What stands behind the last line feed was torn by a crash: it never was. Anything else that is not as
it must be is damage, and is said (``Ledger.damage``): some line about some stream may be missing.

The file stays small: past ``COMPACT_BYTES`` it is written anew, and what is known of streams that are gone for good is left out, of those that no
consumer needs first. Such a file begins with a line that says so, numbered 0; then comes a line for each stream that is kept, under the number of
its birth; then new ones::

    compacted  "to": the last number, "lines": how many were kept, "forgotten": n, "damage": text, "damaged_at": n, "cut_from_ns", "cut_until_ns"
    kept       what ``Fate`` has

A stream is not left out while another of its run is there (``run_of``): neither it nor what control wrote for it can be judged alone.

``read_ledger`` needs no lock: a line is one write, a new file one rename. ``LedgerWriter`` is for the one who holds the directory's lock.
"""

import contextlib
import dataclasses
import errno
import json
import os
import threading
import zlib
from collections.abc import Iterable, Mapping, Set
from typing import Any, Final

from proxy.tap.record import FILE_MODE

__all__ = ["LEDGER_NAME", "RECOVERY", "Fate", "Ledger", "LedgerWriter", "Pair", "is_recovery", "read_ledger", "run_of"]

LEDGER_NAME: Final = "_ledger.jsonl"
COMPACT_BYTES: Final = 1 << 20
KEPT_BYTES: Final = COMPACT_BYTES // 2
"""What a compaction leaves at most, as far as streams that are gone make it larger."""
EVENTS: Final = ("born", "tapped", "ended", "deleted", "adopted", "kept")
RECOVERY: Final = "recovery"
Pair = tuple[str, str]
"""A listener's name and a direction."""
Span = tuple[int, int]
"""Two times, wall clock."""
NEVER: Final[Span] = (0, 0)


@dataclasses.dataclass(frozen=True, slots=True)
class Fate:
    """What the ledger says of one stream.

    Attributes:
        born: number of its first line.
        born_ns: wall clock of that line; 0 for a stream that was adopted.
        tapped: (listener, direction) pairs that rules could match at some time.
        end: the logical offset behind its last block; None: not ended, as far as is known.
        settled: what it lacks is in the log; of an adopted one nobody knows more than its own blocks.
        deleted_to: blocks before this offset are gone; 0: none.
        cut_from_ns, cut_until_ns: what those spoke of lies between these times, wall clock. From 0: nobody knows since when; until 0: none is gone.
        recovery: control wrote it, for another stream.
        adopted: it was there before the ledger.
    """

    born: int
    born_ns: int
    tapped: list[Pair]
    end: int | None = None
    settled: bool = False
    deleted_to: int = 0
    cut_from_ns: int = 0
    cut_until_ns: int = 0
    recovery: bool = False
    adopted: bool = False

    @property
    def gone(self) -> bool:
        """Retention took all of it, and there will be no more."""
        return self.settled and self.end is not None and self.deleted_to >= self.end


@dataclasses.dataclass(frozen=True, slots=True)
class Ledger:
    """All that the ledger says.

    Attributes:
        present: there is one.
        last: number of its last line; 0: none.
        damage: what is wrong with it, in words; empty when it is sound.
        streams: by name, oldest first.
        forgotten: streams born up to this number may be unknown here though some consumer had not read them; 0: none.
        cut_from_ns, cut_until_ns: as of ``Fate``, of all streams that retention took and that are unknown here.
    """

    present: bool
    last: int
    damage: str
    streams: dict[str, Fate]
    forgotten: int = 0
    cut_from_ns: int = 0
    cut_until_ns: int = 0


class _DamageError(ValueError):
    """A line that its writer did not write so."""


class _State:
    """A ledger while it is read or written."""

    def __init__(self) -> None:
        self.streams: dict[str, Fate] = {}
        self.last = 0
        self.damage = ""
        self.damaged_at = 0  # the number before the damage
        self.forgotten = 0
        self.cut: Span = NEVER
        self._sparse_to = 0
        self._sparse_lines = -1  # still to come; -1: not compacted

    def read(self, content: bytes) -> int:
        """Take a file's content; how many bytes are whole lines."""
        whole = content.rfind(b"\n") + 1
        for number, line in enumerate(content[:whole].splitlines(), 1):
            try:
                self._take(line, first=number == 1)
            except _DamageError as error:
                self._damaged(f"line {number}: {error}")
        if self._sparse_lines > 0:
            self._damaged(f"{self._sparse_lines} lines up to {self._sparse_to} are missing")
        self.last = max(self.last, self._sparse_to)
        return whole

    def _damaged(self, text: str) -> None:
        self.damage = self.damage or text
        self.damaged_at = max(self.damaged_at, self.last)

    def _take(self, line: bytes, *, first: bool) -> None:
        record = _decode(line)
        if first and record["event"] == "compacted":
            self._sparse_to, self._sparse_lines = _integer(record, "to"), _integer(record, "lines")
            self.forgotten, self.damage, self.damaged_at = _integer(record, "forgotten"), str(record["damage"]), _integer(record, "damaged_at")
            self.cut = _span(record, "cut_", (0, _integer(record, "ns")))
            return
        number, before = _integer(record, "n"), self.last
        self.last = max(before, number)
        self.apply(record)
        if number > self._sparse_to:
            if number != max(before, self._sparse_to) + 1:
                raise _DamageError(f"number {number} follows {max(before, self._sparse_to)}")
        else:
            self._sparse_lines -= 1

    def apply(self, record: Mapping[str, Any]) -> None:
        """Note what a line says. An event of a later version is none of ours."""
        event, number, stream = record["event"], record["n"], record.get("stream")
        if event not in EVENTS:
            return
        if not isinstance(stream, str):
            raise _DamageError("a line without a stream")
        known = self.streams.get(stream)
        if event == "kept":
            self.streams[stream] = _kept(record, stream)
        elif event == "born":
            fate = known or Fate(number, _integer(record, "ns"), [], recovery=is_recovery(stream))
            self.streams[stream] = dataclasses.replace(fate, tapped=_union(fate.tapped, _pairs(record)))
        elif event == "adopted":
            fate = known or Fate(number, 0, [], recovery=is_recovery(stream), adopted=True)
            self.streams[stream] = dataclasses.replace(fate, end=_integer(record, "end"), settled=True)
        elif known is None:
            raise _DamageError(f"{event}, but never born: {stream}")
        elif event == "tapped":
            self.streams[stream] = dataclasses.replace(known, tapped=_union(known.tapped, _pairs(record)))
        elif event == "ended":
            self.streams[stream] = dataclasses.replace(known, end=_integer(record, "end"), settled=record.get("settled") is True)
        else:
            self.streams[stream] = _shortened(known, record)

    def frozen(self, *, present: bool) -> Ledger:
        """As it is now."""
        return Ledger(present, self.last, self.damage, dict(self.streams), self.forgotten, *self.cut)


def _encode(record: Mapping[str, Any]) -> bytes:
    text = json.dumps(record, separators=(",", ":")).encode()
    return b"%08x %b\n" % (zlib.crc32(text), text)


def _decode(line: bytes) -> dict[str, Any]:
    text = line[9:]
    if line[:9] != b"%08x " % zlib.crc32(text):
        raise _DamageError("its CRC does not fit")
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _DamageError(str(error)) from error
    if not isinstance(record, dict) or not isinstance(record.get("event"), str):
        raise _DamageError("no event")
    return record


def _integer(record: Mapping[str, Any], name: str) -> int:
    value = record.get(name)
    if type(value) is not int or value < 0:
        raise _DamageError(f"{name} is no number: {value!r}")
    return value


def _pairs(record: Mapping[str, Any]) -> list[Pair]:
    tapped = record.get("tapped")
    if not isinstance(tapped, list):
        raise _DamageError("tapped is no list")
    pairs: list[Pair] = []
    for item in tapped:
        if not (isinstance(item, list) and len(item) == 2 and all(isinstance(word, str) for word in item)):
            raise _DamageError(f"not a listener and a direction: {item!r}")
        pairs.append((item[0], item[1]))
    return pairs


def _span(record: Mapping[str, Any], prefix: str, otherwise: Span) -> Span:
    """Two times; ``otherwise`` of a version that did not write them."""
    names = (f"{prefix}from_ns", f"{prefix}until_ns")
    return (_integer(record, names[0]), _integer(record, names[1])) if names[1] in record else otherwise


def _joined(left: Span, right: Span) -> Span:
    """From the first to the last."""
    if NEVER in (left, right):
        return max(left, right)
    return min(left[0], right[0]), max(left[1], right[1])


def _shortened(known: Fate, record: Mapping[str, Any]) -> Fate:
    """Retention takes more of a stream. What it has begins with its birth, unless the clock was set back; but not what control wrote for another."""
    from_ns, until_ns = _span(record, "", (0, _integer(record, "ns")))
    if known.born_ns and not known.recovery:
        from_ns = min(from_ns or known.born_ns, known.born_ns)
    from_ns, until_ns = _joined((known.cut_from_ns, known.cut_until_ns), (from_ns, until_ns))
    return dataclasses.replace(known, deleted_to=max(known.deleted_to, _integer(record, "to")), cut_from_ns=from_ns, cut_until_ns=until_ns)


def _kept(record: Mapping[str, Any], stream: str) -> Fate:
    born_ns, deleted_to = _integer(record, "born_ns"), _integer(record, "deleted_to")
    from_ns, until_ns = _span(record, "cut_", (0 if is_recovery(stream) else born_ns, _integer(record, "ns")) if deleted_to else NEVER)
    return Fate(
        born=_integer(record, "n"),
        born_ns=born_ns,
        tapped=_pairs(record),
        end=None if record.get("end") is None else _integer(record, "end"),
        settled=record.get("settled") is True,
        deleted_to=deleted_to,
        cut_from_ns=from_ns,
        cut_until_ns=until_ns,
        recovery=is_recovery(stream),
        adopted=record.get("adopted") is True,
    )


def _keep(stream: str, fate: Fate, now_ns: int) -> dict[str, Any]:
    names = ("born_ns", "tapped", "end", "settled", "deleted_to", "cut_from_ns", "cut_until_ns", "adopted")
    members = {name: getattr(fate, name) for name in names}
    return {"n": fate.born, "ns": now_ns, "event": "kept", "stream": stream, **members}


def _union(left: Iterable[Pair], right: Iterable[Pair]) -> list[Pair]:
    return list(dict.fromkeys([*left, *right]))


def is_recovery(stream: str) -> bool:
    """Whether control writes this stream, to settle another one."""
    return stream.rsplit(".", 2)[-2:-1] == [RECOVERY]


def run_of(stream: str) -> tuple[str, str]:
    """The node and the boot id: what a processor's stream and the one in which control settles it have in common."""
    node, *_, boot_id = stream.rsplit(".", 2)
    return node, boot_id


def _needed(stream: str, fate: Fate, consumers: Mapping[str, Mapping[str, int]]) -> bool:
    """Whether some consumer has not read all of a stream."""
    return any(offsets.get(stream, 0) < (fate.end or 0) for offsets in consumers.values())


def _content(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def read_ledger(directory: str) -> Ledger:
    """What the ledger of a tap directory says; damage is no error, nor is a directory without a ledger.

    Raises:
        OSError: there is one, and it cannot be read.
    """
    content = _content(os.path.join(directory, LEDGER_NAME))
    state = _State()
    state.read(content or b"")
    return state.frozen(present=content is not None)


class LedgerWriter:
    """Adds lines. Thread safe: each call holds a lock for its write and its fsync.

    What cannot be written raises OSError, and a line about a stream that was never born ValueError. That leaves no part of a line that a reader would
    believe, and changes nothing of what ``ledger`` says.

    Args:
        directory: of the tap; the caller holds its lock. What a crash tore off the last line is cut away before the first append.

    Raises:
        OSError: the file cannot be read, or made.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._path = os.path.join(directory, LEDGER_NAME)
        self._lock = threading.Lock()
        self._state = _State()
        content = _content(self._path)
        self.begun = content is None
        """There was none."""
        self._size = self._state.read(content or b"")
        self._sound = content is not None and self._size == len(content)
        self._fd = self._open(self._path)
        if self.begun:
            self._sync_folder()
            self._sound = True

    @property
    def ledger(self) -> Ledger:
        """What it says now."""
        with self._lock:
            return self._state.frozen(present=True)

    @property
    def large(self) -> bool:
        """It is time to ``compact``."""
        return self._size > COMPACT_BYTES

    def born(self, stream: str, tapped: Iterable[Pair], now_ns: int) -> None:
        """A stream will be written."""
        self._append({"event": "born", "stream": stream, "tapped": sorted(set(tapped))}, now_ns)

    def tapped(self, stream: str, tapped: Iterable[Pair], now_ns: int) -> None:
        """Other pairs than before can be matched in a stream that is being written."""
        self._append({"event": "tapped", "stream": stream, "tapped": sorted(set(tapped))}, now_ns)

    def ended(self, stream: str, end: int, now_ns: int, *, settled: bool) -> None:
        """A stream ends at this logical offset."""
        self._append({"event": "ended", "stream": stream, "end": end, "settled": settled}, now_ns)

    def deleted(self, stream: str, to: int, now_ns: int, from_ns: int = 0, until_ns: int = 0) -> None:
        """What lies before an offset is about to be deleted; all that it speaks of lies between these times. From 0: it may be anything since the
        stream was born; until 0: up to now.
        """
        self._append({"event": "deleted", "stream": stream, "to": to, "from_ns": from_ns, "until_ns": until_ns or now_ns}, now_ns)

    def adopted(self, stream: str, end: int, now_ns: int) -> None:
        """A stream is there of which the ledger knows nothing, and ends so."""
        self._append({"event": "adopted", "stream": stream, "end": end}, now_ns)

    def compact(self, consumers: Mapping[str, Mapping[str, int]], now_ns: int) -> int:
        """Write the file anew, without streams that are gone.

        Args:
            consumers: for each registered consumer the offset to which it has read each stream; what all have read is forgotten first, and what some
                have not only when the file stays too large otherwise.
            now_ns: wall clock.

        Returns:
            How many streams were forgotten.
        """
        with self._lock:
            streams = self._state.streams
            lines = {stream: _encode(_keep(stream, fate, now_ns)) for stream, fate in streams.items()}
            there = {run_of(stream) for stream, fate in streams.items() if not fate.gone}
            needed = {stream: _needed(stream, fate, consumers) for stream, fate in streams.items() if run_of(stream) not in there}
            size = sum(map(len, lines.values()))
            forgotten = self._state.forgotten
            for stream in sorted(needed, key=lambda stream: (needed[stream], streams[stream].born)):
                if needed[stream]:
                    if size <= KEPT_BYTES:
                        break
                    forgotten = max(forgotten, streams[stream].born)
                size -= len(lines.pop(stream))
            dropped = streams.keys() - lines.keys()
            cut = self._state.cut
            for fate in (streams[stream] for stream in dropped):
                cut = _joined(cut, (fate.cut_from_ns, fate.cut_until_ns))
            self._rewrite([lines[stream] for stream in sorted(lines, key=lambda stream: streams[stream].born)], dropped, forgotten, cut, now_ns)
            return len(dropped)

    def close(self) -> None:
        """Write no more."""
        with self._lock:
            os.close(self._fd)

    def _append(self, members: dict[str, Any], now_ns: int) -> None:
        with self._lock:
            if members["event"] in ("tapped", "ended", "deleted") and members["stream"] not in self._state.streams:
                raise ValueError(f"{members['event']}, but never born: {members['stream']}")
            record = {"n": self._state.last + 1, "ns": now_ns, **members}
            line = _encode(record)
            if not self._sound:
                os.ftruncate(self._fd, self._size)
            self._sound = False
            if os.write(self._fd, line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._path)
            os.fsync(self._fd)
            self._sound = True
            self._size += len(line)
            self._state.last += 1
            self._state.apply(json.loads(line[9:]))

    def _rewrite(self, lines: list[bytes], dropped: Set[str], forgotten: int, cut: Span, now_ns: int) -> None:
        state = self._state
        kept = {stream: fate for stream, fate in state.streams.items() if stream not in dropped}
        damaged = any(fate.born <= state.damaged_at for fate in kept.values())  # what it may be about can still be there
        damage, damaged_at = (state.damage, state.damaged_at) if damaged else ("", 0)
        facts = {"to": state.last, "lines": len(lines), "forgotten": forgotten, "damage": damage, "damaged_at": damaged_at}
        times = {"cut_from_ns": cut[0], "cut_until_ns": cut[1]}
        content = b"".join([_encode({"n": 0, "ns": now_ns, "event": "compacted", **facts, **times}), *lines])
        temporary = self._path + ".tmp"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        fd = self._open(temporary)
        try:
            view = memoryview(content)
            while view:
                view = view[os.write(fd, view) :]
            os.fsync(fd)
            os.replace(temporary, self._path)
        except OSError:
            os.close(fd)
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        os.close(self._fd)  # the new one is open
        self._fd, self._size, self._sound = fd, len(content), True
        state.streams, state.forgotten, state.cut, state.damage, state.damaged_at = kept, forgotten, cut, damage, damaged_at
        self._sync_folder()

    def _open(self, path: str) -> int:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)

    def _sync_folder(self) -> None:
        folder = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
