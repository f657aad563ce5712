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
    DamagedBlockError,
    Joiner,
    LogError,
    OffsetVanishedError,
    Segment,
    read_block,
    segment_seal,
    segments,
    streams,
    walk,
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
        missing: seen, and nothing says what became of them; below 0: stored or lost, and not seen.
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


def verify(directory: str, progress: Callable[[int], object] = lambda size: None) -> Verdict:
    """Prove from the log alone whether it is complete.

    Args:
        directory: of the tap. Nobody needs to hold it, and nothing is written.
        progress: is told of the bytes of each block that has been read.
    """
    before = streams(directory)  # what is there now the ledger knows already, and what it knows then is still there, or was
    ledger = read_ledger(directory)
    names = sorted({*before, *streams(directory)})
    faults: list[str] = []
    if not ledger.present:
        faults.append("there is no ledger: a stream that is gone cannot be told from one that never was")
    if ledger.damage:
        faults.append(f"the ledger is damaged: {ledger.damage}")
    elif ledger.present:
        faults += [f"{name} is not in the ledger: what else is not nobody can tell" for name in before if name not in ledger.streams]
    live = _is_written(directory)
    accounts: dict[str, _Account] = {}
    for name in names:
        account = accounts.setdefault(_owner(name, [*ledger.streams, *names]), _Account())
        _Reading(directory, name, ledger.streams.get(name), account, faults, progress).read()
    faults += _gone(ledger, set(names), live)
    rows = [row for name in sorted(accounts) for row in accounts[name].rows(name, live and _may_grow(directory, name, ledger))]
    sound = not faults and all(row.state in _WHOLE for row in rows)
    return Verdict(rows, faults, sound)


def _owner(stream: str, known: Iterable[str]) -> str:
    """Of whose frames a stream speaks: a recovery stream of those of the processor that died."""
    if not is_recovery(stream):
        return stream
    node, _, boot_id = stream.rsplit(".", 2)
    for other in known:
        if not is_recovery(other) and other.startswith(f"{node}.") and other.endswith(f".{boot_id}"):
            return other
    return stream


def _gone(ledger: Ledger, names: set[str], live: bool) -> Iterator[str]:
    """Streams of which nothing is left, or no end was written, though nobody says why."""
    for name, fate in ledger.streams.items():
        if fate.end is None and not live:
            yield f"{name} was being written when its framegate ended: the next start says what is missing"
        if name not in names and fate.end is not None and fate.end > fate.deleted_to:
            yield f"{name} is gone: it ended at {fate.end}, retention took no more than what lies before {fate.deleted_to}"
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
            if 0 < row.missing <= row.shared:
                row.missing = 0
            row.state = self._judge(row, live, newest)
        return found

    def _judge(self, row: WindowRow, live: bool, newest: int) -> str:
        if row.unknown or not self.proves:
            return "unknown"
        cut = row.missing != 0 and row.window_ns <= self.cut_window * WINDOW_NS
        due = row.missing < 0 and live and row.window_ns >= newest - WINDOW_NS
        if row.missing and not cut and not due:
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


class _Reading:
    """One stream, read from the oldest block that is left to its end; faults are noted, and reading goes on behind them."""

    def __init__(
        self, directory: str, stream: str, fate: Fate | None, account: _Account, faults: list[str], progress: Callable[[int], object]
    ) -> None:
        self._directory = directory
        self._stream = stream
        self._fate = fate
        self._account = account
        self._faults = faults
        self._progress = progress
        self._joiner = Joiner()

    def read(self) -> None:
        listed = segments(self._directory, self._stream)
        start = listed[0].base if listed else 0
        deleted_to = self._fate.deleted_to if self._fate is not None else 0
        if start > deleted_to and self._fate is not None:
            self._faults.append(f"{self._stream}: what lies before {start} is gone, retention took no more than what lies before {deleted_to}")
        for segment in listed:
            self._look_at(segment)
        end = self._read_from(start, cut=start > 0)
        if self._fate is not None and self._fate.end is not None and end < self._fate.end and self._fate.deleted_to < self._fate.end:
            self._faults.append(f"{self._stream}: it ended at {self._fate.end}, and is there up to {end} only")

    def _look_at(self, segment: Segment) -> None:
        """Whether totals are to be expected of a segment; what is wrong with its end is found when it is walked."""
        try:
            seal = segment_seal(segment)
        except LogError:
            return
        if seal is None and segment.sealed:
            self._account.proves = False
            self._faults.append(
                f"{self._stream}: the segment at {segment.base} is of a version before {SEALED_SINCE}: it says neither its end nor totals"
            )

    def _read_from(self, start: int, *, cut: bool) -> int:
        at: int | None = start
        end = start
        while at is not None:
            try:
                for ref in walk(self._directory, self._stream, at):
                    cut = self._take(ref, cut=cut)
                    end = at = ref.header.end
                return end
            except (OffsetVanishedError, DamagedBlockError) as error:
                self._faults.append(str(error))
                at = error.available
            except LogError as error:
                self._faults.append(str(error))
                return end
        return end

    def _take(self, ref: BlockRef, *, cut: bool) -> bool:
        try:
            block = read_block(ref, self._joiner)
        except LogError as error:
            self._faults.append(str(error))
        else:
            if cut:
                self._account.cut_window = max(self._account.cut_window, ref.header.last_ns // WINDOW_NS)
                cut = False
            self._account.add(block)
        self._progress(ref.header.block_len)
        return cut
