"""Adds up the blocks of a stream and of its recovery stream, by listener, direction and window, for ``completeness``."""

import collections
import dataclasses
from collections.abc import Iterable, Iterator
from typing import Final

from framegate.proxy.tap import record
from framegate.proxy.tap.ledger import Pair
from framegate.proxy.tap.log_block import GapRecord, LogBlock, TotalsRecord

STATES: Final = ("complete", "cut", "open", "lost", "at_most", "unknown", "missing")
"""From good to bad. ``cut``: retention deleted some or all of the data about the window; ``open``: it is being written, totals are due."""
MAX_SPAN: Final = 1440  # a gap over more windows than this counts for the first and the last of them, and for those that have frames

Key = tuple[str | None, str, int]  # Listener, direction, number of the window


@dataclasses.dataclass(slots=True)
class WindowRow:
    """The counts of one listener and direction in one window of a stream. Counts are of whole frames."""

    stream: str  # its name; empty: deleted streams that the ledger no longer knows
    listener: str | None  # None: not known, in a gap of an earlier version, or in deleted data
    direction: str  # word of ``record``
    window_ns: int  # where the window begins, wall clock; 0: not known
    seen: int = 0  # by the totals
    stored: int = 0  # in chunks: whole, a part, a hash or the length
    withheld: int = 0  # in chunks as their length only, because their bodies carry credentials
    sampled: int = 0  # in gaps, because a rule takes a share
    lost: int = 0  # in gaps for any other reason; and frames in chunks with missing pieces
    at_most: int = 0  # upper bounds in gaps; not part of ``seen``
    unknown: int = 0  # number of gaps without a count that touch the window
    shared: int = 0  # frames in gaps that touch other windows, too: an upper bound for this window
    missing: int = 0  # seen, but neither stored nor lost; below 0: stored or lost, but not seen. 0 where totals are only due.
    state: str = ""  # of ``STATES``
    cut: bool = False  # retention deleted some or all of the data. With a worse state: the counts are of the rest.
    # number of windows in the row, from this one on. More than one only where all data about them is deleted: ``cut``, without counts.
    windows: int = 1
    reasons: set[str] = dataclasses.field(default_factory=set)  # of the gaps with lost frames, also those that touch other windows

    @property
    def last_window_ns(self) -> int:
        """Where the last of its windows begins."""
        return self.window_ns + (self.windows - 1) * record.WINDOW_NS

    @property
    def accounted(self) -> int:
        """Frames whose fate and window the log states exactly."""
        return self.stored + self.withheld + self.sampled + self.lost


class StreamTotals:
    """The sums of a stream and its recovery stream."""

    def __init__(self) -> None:
        self._rows: dict[Key, WindowRow] = {}
        self._spans: list[tuple[GapRecord | TotalsRecord, int, int]] = []
        self._cuts: list[tuple[int, int]] = []  # first and last window of deleted data
        self._tapped: set[Pair] = set()
        self.cut_window = -1  # windows up to this one may lack deleted data
        self.proves = True  # False: some of it is of a version without totals
        self.lost_ends: collections.Counter[str] = collections.Counter()  # ends of connections that are not in the log, by reason

    def _at(self, listener: str | None, direction: str, window: int) -> WindowRow:
        key = (listener, direction, window)
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = WindowRow("", listener, direction, window * record.WINDOW_NS)
        return row

    def add(self, block: LogBlock) -> None:
        for row in block.rows:
            if row.kind == record.KIND_FRAMES:
                self._add_frames(block, row)
            elif row.kind == record.KIND_CONNECTION and row.connection < 0:
                self.lost_ends[record.REASONS[row.reason]] += row.lost_frames
        for gap in block.gaps():
            self._add_gap(gap)
        for totals in block.totals():
            first, last = totals.from_ns // record.WINDOW_NS, totals.until_ns // record.WINDOW_NS
            self._at(totals.listener, totals.direction, first).seen += totals.frames
            if first != last:
                self._spans.append((totals, first, last))

    def cut(self, from_ns: int, until_ns: int, tapped: Iterable[Pair]) -> None:
        """Note that retention deleted data of these times about these pairs."""
        first, last = sorted((from_ns // record.WINDOW_NS, until_ns // record.WINDOW_NS))
        self._tapped.update(tapped)
        self._cuts.append((first, last))

    def _add_frames(self, block: LogBlock, row: record.ChunkRow) -> None:
        at = self._at(block.word(row.listener), record.DIRECTIONS[row.direction], row.capture_ns // record.WINDOW_NS)
        if row.reason == record.REASON_PIECES_LOST:
            at.lost += row.frame_count
            at.reasons.add(record.REASONS[row.reason])
            return
        withheld = _withheld(block, row)
        at.withheld += withheld
        at.stored += row.frame_count - withheld

    def _add_gap(self, gap: GapRecord) -> None:
        first, last = gap.from_ns // record.WINDOW_NS, gap.until_ns // record.WINDOW_NS
        if gap.certainty == "exact" and (first == last or gap.frames == 0):
            at = self._at(gap.listener, gap.direction, first)
            if gap.reason == record.REASONS[record.REASON_SAMPLED]:
                at.sampled += gap.frames
            else:
                at.lost += gap.frames
                if gap.frames:
                    at.reasons.add(gap.reason)
        else:
            self._spans.append((gap, first, last))

    def _spread(self) -> None:
        """Count gaps over several windows, or without an exact count, in each window that they touch."""
        windows: dict[tuple[str | None, str], list[int]] = {}
        for listener, direction, window in self._rows:
            windows.setdefault((listener, direction), []).append(window)
        for what, first, last in self._spans:
            whole = range(first, last + 1) if last - first < MAX_SPAN else sorted({first, last})
            touched = {*whole, *(window for window in windows.get((what.listener, what.direction), []) if first <= window <= last)}
            for window in touched:
                at = self._at(what.listener, what.direction, window)
                if isinstance(what, GapRecord):
                    at.reasons.add(what.reason)
                if isinstance(what, TotalsRecord) or what.certainty == "unknown":
                    at.unknown += 1
                elif what.certainty == "at_most":
                    at.at_most += what.frames
                else:
                    at.shared += what.frames
        self._spans.clear()

    def rows(self, stream: str, live: bool) -> list[WindowRow]:
        self._spread()
        found = sorted(self._rows.values(), key=_place)
        newest = max((row.window_ns for row in found), default=0)
        for row in found:
            row.stream = stream
            row.missing = row.seen - row.accounted
            due = row.missing < 0 and live and row.window_ns >= newest - record.WINDOW_NS
            if due or 0 < row.missing <= row.shared:
                row.missing = 0
            row.cut = self._is_cut(row)
            row.state = self._check(row, due)
        return sorted([*found, *self._rows_that_are_gone(stream)], key=_place) if self._cuts else found

    def _rows_that_are_gone(self, stream: str) -> Iterator[WindowRow]:
        """One row for each series of windows of which all data is deleted."""
        there: dict[tuple[str | None, str], list[int]] = {pair: [] for pair in self._tapped}
        for listener, direction, window in self._rows:
            there.setdefault((listener, direction), []).append(window)
        for (listener, direction), windows in (there or {(None, direction): [] for direction in record.DIRECTIONS}).items():
            for first, last in _without(_united(self._cuts), sorted(windows)):
                yield WindowRow(stream, listener, direction, first * record.WINDOW_NS, state="cut", cut=True, windows=last - first + 1)

    def _check(self, row: WindowRow, due: bool) -> str:
        """The state of a row; ``due``: more was stored or lost than totals say so far."""
        if row.unknown or not self.proves:
            return "unknown"
        if row.missing and not row.cut:
            return "missing"
        if row.at_most:
            return "at_most"
        if row.lost or row.shared:
            return "lost"
        return "cut" if row.cut else "open" if due else "complete"

    def _is_cut(self, row: WindowRow) -> bool:
        window = row.window_ns // record.WINDOW_NS
        return (row.missing != 0 and window <= self.cut_window) or any(first <= window <= last for first, last in self._cuts)


def _place(row: WindowRow) -> tuple[str, str, int]:
    return row.listener or "", row.direction, row.window_ns


def _united(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same windows, in order, in spans that do not touch."""
    united: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if united and first <= united[-1][1] + 1:
            united[-1] = (united[-1][0], max(united[-1][1], last))
        else:
            united.append((first, last))
    return united


def _without(spans: Iterable[tuple[int, int]], windows: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Spans without some windows, in order."""
    for first, last in spans:
        for window in windows:
            if first <= window <= last:
                if first < window:
                    yield first, window - 1
                first = window + 1
        if first <= last:
            yield first, last


def _withheld(block: LogBlock, row: record.ChunkRow) -> int:
    """Frames of a chunk whose bodies were left out because they carry credentials."""
    sizes = block.sizes(row)
    if not row.flags & record.FLAG_WITHHELD or row.capture == record.CAPTURE_LENGTHS or sizes is None:
        return 0
    starts = block.starts(row)
    ends = [*starts[1:], row.data_length]
    return sum(size > 0 and end - start == record.FRAME_HEADER_BYTES for start, end, size in zip(starts, ends, sizes, strict=True))
