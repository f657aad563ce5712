"""Whether a log is complete: what was seen against what is there, by listener, direction and window. COMPLETENESS.md says why that proves it.

Everything is read, each CRC is checked, each segment is walked to its seal, each stream to the end that the ledger knows. Nothing is believed of a
part that cannot be read: it is a fault, and what totals say of it is missing.
"""

import dataclasses
import fcntl
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from proxy.tap.ledger import Fate, Ledger, is_recovery, read_ledger
from proxy.tap.log_block import GapRecord, LogBlock, TotalsRecord
from proxy.tap.log_reader import (
    BlockRef,
    Joiner,
    LogError,
    OffsetVanishedError,
    Segment,
    read_block,
    segment_seal,
    segments,
    streams,
    walk_past,
)
from proxy.tap.record import (
    CAPTURE_LENGTHS,
    DIRECTIONS,
    FLAG_WITHHELD,
    FRAME_HEADER_BYTES,
    KIND_FRAMES,
    LOCK_NAME,
    REASON_PIECES_LOST,
    REASON_SAMPLED,
    REASONS,
    SEALED_SINCE,
    WINDOW_NS,
    ChunkRow,
)

__all__ = ["STATES", "Verdict", "WindowRow", "verify"]

STATES: Final = ("complete", "cut", "open", "lost", "at_most", "unknown", "missing")
"""From good to bad. ``cut``: of the stream's oldest window retention took a part; ``open``: the stream is being written, totals are due."""
LIVE_S: Final = 15.0
"""How long ago the last sign of life of who writes may be; there is one each second."""
MAX_SPAN: Final = 1440
"""A gap over more windows than these counts for the first and the last of them, and for those that have frames."""
EVERYTHING: Final = 1 << 62
"""An offset and a window behind all that there can be."""
LOOKS: Final = 5
LOOK_S: Final = 0.2
"""How often, and after how long, the ledger is looked at again for what a framegate that is at work may still say: that it took a stream over, or
what it deleted where the disk had no room for the line.
"""
_WHOLE: Final = frozenset({"complete", "cut", "open"})

Key = tuple[str | None, str, int]
"""Listener, direction, number of the window."""


@dataclasses.dataclass(slots=True)
class WindowRow:
    """What a stream says of one listener and direction in one window. Counts are of whole frames.

    Attributes:
        stream: whose.
        listener: None: not known, of a gap that an earlier version wrote.
        direction: word of ``record``.
        window_ns: where the window begins, wall clock.
        seen: by the totals.
        stored: in chunks: whole, a part, a hash or the length.
        withheld: in chunks as their length only, because their bodies carry credentials.
        sampled: in gaps, because a rule takes a share.
        lost: in gaps for any other reason; and frames in chunks of which pieces are gone.
        at_most: upper bounds of gaps that have no more; no part of ``seen``.
        unknown: gaps without any count that touch the window.
        shared: frames in gaps that touch other windows, too: at most so many are missing here.
        missing: seen, and nothing says what became of them; below 0: stored or lost, and not seen. 0 where totals are only due.
        state: of ``STATES``.
    """

    stream: str
    listener: str | None
    direction: str
    window_ns: int
    seen: int = 0
    stored: int = 0
    withheld: int = 0
    sampled: int = 0
    lost: int = 0
    at_most: int = 0
    unknown: int = 0
    shared: int = 0
    missing: int = 0
    state: str = ""

    @property
    def accounted(self) -> int:
        """Frames of which the log says exactly what became of them, and in which window."""
        return self.stored + self.withheld + self.sampled + self.lost


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """What ``verify`` found.

    Attributes:
        rows: by stream, listener, direction and window.
        faults: what is wrong with files, blocks, streams and the ledger, a sentence each.
        complete: there is no fault, and every window is complete, but for those that retention cut, or that are being written.
    """

    rows: list[WindowRow]
    faults: list[str]
    complete: bool


def verify(directory: str, progress: Callable[[int], object] = lambda size: None, sleep: Callable[[float], object] = time.sleep) -> Verdict:
    """Prove from the log alone whether it is complete.

    Retention may be at work meanwhile. It says in the ledger what it takes before it takes it, so what was not found is judged by a ledger that was
    read after that.

    Args:
        directory: of the tap. Nobody needs to hold it, and nothing is written.
        progress: is told of the bytes of each block that has been read.
        sleep: waits for that many seconds.
    """
    live = _is_written(directory)
    before = streams(directory)  # what is there now the ledger knows already, and what it knows then is still there, or was
    ledger = read_ledger(directory)
    names = sorted({*before, *streams(directory)})
    live = live or _is_written(directory)  # between the two looks one may have ended, or begun
    accounts: dict[str, _Account] = {}
    readings: list[_Reading] = []
    for name in names:
        account = accounts.setdefault(_owner(name, [*ledger.streams, *names]), _Account())
        readings.append(_Reading(directory, name, ledger.streams.get(name), account, progress))
        readings[-1].read()
    later = _Later(directory, ledger, before)
    looks = LOOKS if live else 0
    while looks and (later.strangers() or any(reading.is_doubtful(later) for reading in readings)):
        sleep(LOOK_S)
        later = _Later(directory, ledger, before)
        looks -= 1
    faults = [*_of_ledger(later), *(fault for reading in readings for fault in reading.judge(later)), *_gone(later, set(names), live)]
    rows = [row for name in sorted(accounts) for row in accounts[name].rows(name, live and _may_grow(directory, name, ledger))]
    sound = not faults and all(row.state in _WHOLE for row in rows)
    return Verdict(rows, faults, sound)


class _Later:
    """What the ledger says after all was read, beside what it said before."""

    def __init__(self, directory: str, before: Ledger, listed: list[str]) -> None:
        self.before = before
        self._now = read_ledger(directory)
        self._listed = set(listed) & set(streams(directory))

    @property
    def damage(self) -> str:
        """What is wrong with it, in words; empty when it is sound."""
        return self.before.damage or self._now.damage

    def taken(self, stream: str) -> int | None:
        """Retention took what lies before this offset of a stream; None: nobody knows the stream."""
        fate = self._now.streams.get(stream)
        if fate is not None:
            return fate.deleted_to
        sound = self._now.present and not self._now.damage
        return EVERYTHING if sound and stream in self.before.streams else None  # all of it, and it was forgotten

    def end(self, stream: str) -> int | None:
        """Where a stream ends; None: that is not known."""
        fate = self._now.streams.get(stream) or self.before.streams.get(stream)
        return None if fate is None else fate.end

    def strangers(self) -> list[str]:
        """Streams that were there before and after, of which the ledger said nothing at either time."""
        if self.damage or not self.before.present:
            return []
        return sorted(self._listed - self.before.streams.keys() - self._now.streams.keys())


def _of_ledger(later: _Later) -> Iterator[str]:
    """What is wrong with the ledger."""
    if not later.before.present:
        yield "there is no ledger: a stream that is gone cannot be told from one that never was"
    if later.damage:
        yield f"the ledger is damaged: {later.damage}"
    for name in later.strangers():
        yield f"{name} is not in the ledger: what else is not nobody can tell"


def _owner(stream: str, known: Iterable[str]) -> str:
    """Of whose frames a stream speaks: a recovery stream of those of the processor that died."""
    if not is_recovery(stream):
        return stream
    node, _, boot_id = stream.rsplit(".", 2)
    for other in known:
        if not is_recovery(other) and other.startswith(f"{node}.") and other.endswith(f".{boot_id}"):
            return other
    return stream


def _gone(later: _Later, names: set[str], live: bool) -> Iterator[str]:
    """Streams of which nothing is left, or no end was written, though nobody says why."""
    for name, fate in later.before.streams.items():
        taken = later.taken(name) or 0
        if fate.end is None and not live:
            yield f"{name} was being written when its framegate ended: the next start says what is missing"
        if name not in names and fate.end is not None and fate.end > taken:
            yield f"{name} is gone: it ended at {fate.end}, retention took no more than what lies before {taken}"
        elif fate.end is not None and not fate.settled and not fate.adopted:
            yield f"{name} ended, and what it lacks could not be written down"


def _is_written(directory: str) -> bool:
    """Whether a framegate writes to the directory now: on this machine it holds the lock, elsewhere it gave a sign of life of late."""
    path = os.path.join(directory, LOCK_NAME)
    try:
        if abs(time.time() - os.stat(path).st_mtime) >= LIVE_S:
            return False
        with open(path, "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True  # somebody holds it, or only its owner may look
    return False


def _may_grow(directory: str, stream: str, ledger: Ledger) -> bool:
    """Whether more may come of a stream."""
    fate = ledger.streams.get(stream)
    if fate is not None:
        return fate.end is None
    listed = segments(directory, stream)
    return bool(listed) and not listed[-1].sealed


class _Account:
    """What the blocks of a stream, and of what control wrote for it, add up to."""

    def __init__(self) -> None:
        self._rows: dict[Key, WindowRow] = {}
        self._spans: list[tuple[GapRecord | TotalsRecord, int, int]] = []
        self.cut_window = -1  # windows up to this one lack what retention took
        self.proves = True  # False: some of it is of a version that says no totals

    def _at(self, listener: str | None, direction: str, window: int) -> WindowRow:
        key = (listener, direction, window)
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = WindowRow("", listener, direction, window * WINDOW_NS)
        return row

    def add(self, block: LogBlock) -> None:
        for row in block.rows:
            if row.kind == KIND_FRAMES:
                self._add_frames(block, row)
        for gap in block.gaps():
            self._add_gap(gap)
        for totals in block.totals():
            first, last = totals.from_ns // WINDOW_NS, totals.until_ns // WINDOW_NS
            self._at(totals.listener, totals.direction, first).seen += totals.frames
            if first != last:
                self._spans.append((totals, first, last))

    def _add_frames(self, block: LogBlock, row: ChunkRow) -> None:
        at = self._at(block.word(row.listener), DIRECTIONS[row.direction], row.capture_ns // WINDOW_NS)
        if row.reason == REASON_PIECES_LOST:
            at.lost += row.frame_count
            return
        withheld = _withheld(block, row)
        at.withheld += withheld
        at.stored += row.frame_count - withheld

    def _add_gap(self, gap: GapRecord) -> None:
        first, last = gap.from_ns // WINDOW_NS, gap.until_ns // WINDOW_NS
        if gap.certainty == "exact" and (first == last or gap.frames == 0):
            at = self._at(gap.listener, gap.direction, first)
            if gap.reason == REASONS[REASON_SAMPLED]:
                at.sampled += gap.frames
            else:
                at.lost += gap.frames
        else:
            self._spans.append((gap, first, last))

    def _spread(self) -> None:
        """Count gaps that touch several windows, or have no exact count, in each window that they touch."""
        windows: dict[tuple[str | None, str], list[int]] = {}
        for listener, direction, window in self._rows:
            windows.setdefault((listener, direction), []).append(window)
        for what, first, last in self._spans:
            whole = range(first, last + 1) if last - first < MAX_SPAN else sorted({first, last})
            touched = {*whole, *(window for window in windows.get((what.listener, what.direction), []) if first <= window <= last)}
            for window in touched:
                at = self._at(what.listener, what.direction, window)
                if isinstance(what, TotalsRecord) or what.certainty == "unknown":
                    at.unknown += 1
                elif what.certainty == "at_most":
                    at.at_most += what.frames
                else:
                    at.shared += what.frames
        self._spans.clear()

    def rows(self, stream: str, live: bool) -> list[WindowRow]:
        """The windows, judged."""
        self._spread()
        found = sorted(self._rows.values(), key=lambda row: (row.listener or "", row.direction, row.window_ns))
        newest = max((row.window_ns for row in found), default=0)
        for row in found:
            row.stream = stream
            row.missing = row.seen - row.accounted
            due = row.missing < 0 and live and row.window_ns >= newest - WINDOW_NS
            if due or 0 < row.missing <= row.shared:
                row.missing = 0
            row.state = self._judge(row, due)
        return found

    def _judge(self, row: WindowRow, due: bool) -> str:
        """``due``: more was stored or lost than totals say as yet."""
        if row.unknown or not self.proves:
            return "unknown"
        cut = row.missing != 0 and row.window_ns <= self.cut_window * WINDOW_NS
        if row.missing and not cut:
            return "missing"
        if row.at_most:
            return "at_most"
        if row.lost or row.shared:
            return "lost"
        return "cut" if cut else "open" if due else "complete"


def _withheld(block: LogBlock, row: ChunkRow) -> int:
    """Frames of a chunk of which nothing but the length is kept because their bodies carry credentials."""
    sizes = block.sizes(row)
    if not row.flags & FLAG_WITHHELD or row.capture == CAPTURE_LENGTHS or sizes is None:
        return 0
    starts = block.starts(row)
    ends = [*starts[1:], row.data_length]
    return sum(size > 0 and end - start == FRAME_HEADER_BYTES for start, end, size in zip(starts, ends, sizes, strict=True))


@dataclasses.dataclass(slots=True)
class _Miss:
    """Blocks that were not there.

    Attributes:
        text: says so.
        offset: of the first of them.
        available: where the log goes on; None: nowhere.
        first: they lie before all that is there.
        window: of the first block behind them, once it is read.
    """

    text: str
    offset: int
    available: int | None
    first: bool = False
    window: int = EVERYTHING


class _Reading:
    """One stream, read from the oldest block that is left to its end; what is wrong is noted, and reading goes on behind it."""

    def __init__(self, directory: str, stream: str, fate: Fate | None, account: _Account, progress: Callable[[int], object]) -> None:
        """``fate``: what the ledger said of the stream before it is read."""
        self._directory = directory
        self._stream = stream
        self._known_end = 0 if fate is None else fate.end or 0
        self._account = account
        self._progress = progress
        self._joiner = Joiner()
        self._end = 0
        self._found: list[str | _Miss] = []

    def read(self) -> None:
        """Read all that is there."""
        listed = segments(self._directory, self._stream)
        start = self._end = listed[0].base if listed else 0
        if start > 0:
            self._found.append(_Miss(f"{self._stream}: what lies before {start} is gone", 0, start, first=True))
        for segment in listed:
            self._look_at(segment)
        walk_past(self._directory, self._stream, start, self._take, self._note)

    def _look_at(self, segment: Segment) -> None:
        """Whether totals are to be expected of a segment; what is wrong with its end is found when it is walked."""
        try:
            seal = segment_seal(segment)
        except LogError:
            return
        if seal is None and segment.sealed:
            self._account.proves = False
            self._found.append(
                f"{self._stream}: the segment at {segment.base} is of a version before {SEALED_SINCE}: it says neither its end nor totals"
            )

    def _take(self, ref: BlockRef) -> None:
        self._end = ref.header.end
        block = read_block(ref, self._joiner)
        for item in self._found:
            if isinstance(item, _Miss):
                item.window = min(item.window, ref.header.last_ns // WINDOW_NS)
        self._account.add(block)
        self._progress(ref.header.block_len)

    def _note(self, error: LogError) -> None:
        self._found.append(_Miss(str(error), error.offset, error.available) if isinstance(error, OffsetVanishedError) else str(error))

    def is_doubtful(self, later: _Later) -> bool:
        """Whether something is not there that retention may have taken, and has not said so yet."""
        return self._is_short(later) or any(isinstance(item, _Miss) and not self._is_taken(item, later) for item in self._found)

    def judge(self, later: _Later) -> Iterator[str]:
        """What is wrong; windows that lack what retention took are cut."""
        for item in self._found:
            if not isinstance(item, _Miss):
                yield item
                continue
            taken = self._is_taken(item, later)
            if taken or item.first:
                self._account.cut_window = max(self._account.cut_window, item.window)
            if not taken:
                yield f"{item.text}, retention took no more than what lies before {later.taken(self._stream) or 0}"
        if self._is_short(later):
            yield f"{self._stream}: it ended at {self._known_end}, and is there up to {self._end} only"

    def _is_taken(self, miss: _Miss, later: _Later) -> bool:
        """Whether retention took all that is not there. Of a stream that nobody knows that is not asked for what lies before it."""
        taken = later.taken(self._stream)
        if taken is None:
            return miss.first
        if miss.available is not None:
            return taken >= miss.available
        return taken >= (later.end(self._stream) or miss.offset + 1)

    def _is_short(self, later: _Later) -> bool:
        """Whether the stream does not come to the end that was known of it."""
        return max(self._end, later.taken(self._stream) or 0) < self._known_end
