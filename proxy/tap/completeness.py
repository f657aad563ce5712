"""Whether a log is complete: frames seen against frames stored or lost, by listener, direction and window. COMPLETENESS.md explains the proof.

Every block is read and its CRC checked, each segment is read up to its seal, each stream up to the end in the ledger. A part that cannot be read is a
fault, and the frames that totals count in it are missing.
"""

import collections
import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from framegate.proxy.tap.expected import expected_end, is_written, ledger_faults
from framegate.proxy.tap.ledger import Ledger, Span, StreamRecord, is_recovery, read_ledger, run_of
from framegate.proxy.tap.log_reader import (
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
from framegate.proxy.tap.log_segments import CLOCKS_NS
from framegate.proxy.tap.record import SEAL_CUT, SEALED_SINCE, SEGMENT_HEADER_BYTES, WINDOW_NS
from framegate.proxy.tap.stream_totals import STATES, StreamTotals, WindowRow

__all__ = ["STATES", "Verdict", "WindowRow", "verify"]

EVERYTHING: Final = 1 << 62  # an offset, a time and a window behind all others
ALWAYS: Final[Span] = (0, EVERYTHING)
RETRIES: Final = 5
RETRY_S: Final = 0.2
"""The ledger is read again so often, after so many seconds, while a framegate is running: it may still note that it adopted a stream, or what it
deleted when the disk had no room for the line.
"""
_WHOLE: Final = frozenset({"complete", "cut", "open"})


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """The result of ``verify``."""

    rows: list[WindowRow]  # by stream, listener, direction and window
    faults: list[str]  # what is wrong with files, blocks, streams and the ledger, a sentence each
    # there is a window, no fault, and every window is complete, except those that retention cut or that are being written. A window is complete when
    # all its rows are; streams without such a row saw nothing then.
    complete: bool
    # between which times frames may be missing without a row, according to ``faults``, wall clock; both ends belong to it
    doubts: list[Span] = dataclasses.field(default_factory=list)
    # ends of connections that are not in the log, by reason; no frames are missing for that
    lost_ends: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)


def verify(
    directory: str,
    progress: Callable[[int], object] = lambda size: None,
    sleep: Callable[[float], object] = time.sleep,
    within: Span = ALWAYS,
) -> Verdict:
    """Find out from the log alone whether it is complete. Nothing is written, and no lock is needed. Retention may delete meanwhile. It writes to the
    ledger before it deletes, so missing blocks are judged by a ledger that was read later.

    Args:
        progress: is told the size of each block that was read.
        sleep: waits for a number of seconds.
        within: judge only the windows between these times, wall clock, and the faults that may be of them. Segments that were written ``CLOCKS_NS``
            or more before them are not read.
    """
    live = is_written(directory, sleep)
    before = streams(directory)  # before the ledger is read: the ledger knows all of these
    ledger = read_ledger(directory)
    names = sorted({*before, *streams(directory)})
    live = live or is_written(directory, sleep)  # one may have started or ended between the two calls
    owners = _owners([*ledger.streams, *names])
    accounts: dict[str, StreamTotals] = {}
    readings: list[_Reading] = []
    for name in names:
        account = accounts.setdefault(owners.get(run_of(name), name), StreamTotals())
        readings.append(_Reading(directory, name, ledger.streams.get(name), account, progress))
        readings[-1].read(within[0] - CLOCKS_NS)
    later = _Later(directory, ledger, before)
    retries = RETRIES if live else 0
    while retries and (later.strangers() or any(reading.is_doubtful(later) for reading in readings)):
        sleep(RETRY_S)
        later = _Later(directory, ledger, before)
        retries -= 1
    found = [_Flaw(fault, 0) for fault in ledger_faults(later.ledger, later.strangers())]
    found += [flaw for reading in readings for flaw in reading.check(later)]
    found += _gone(later, set(names), live)
    _cut(later, dict(zip(names, readings, strict=True)), accounts)
    rows = [row for name in sorted(accounts) for row in accounts[name].rows(name, live and _may_grow(directory, name, ledger))]
    found = [flaw for flaw in found if flaw.from_ns == EVERYTHING or (flaw.from_ns < within[1] and flaw.until_ns >= within[0])]
    rows = [row for row in rows if row.window_ns < within[1] and row.last_window_ns + WINDOW_NS > within[0]]
    sound = not found and bool(rows) and all(row.state in _WHOLE for row in rows)
    ends = sum((account.lost_ends for account in accounts.values()), collections.Counter[str]())
    return Verdict(rows, [flaw.text for flaw in found], sound, [(flaw.from_ns, flaw.until_ns) for flaw in found], ends)


@dataclasses.dataclass(slots=True)
class _Flaw:
    """A fault."""

    text: str  # in words
    # from_ns, until_ns: frames may be missing between these times, those of the last block before it and of the first one behind it
    from_ns: int
    until_ns: int = EVERYTHING


class _Later:
    """The ledger after everything was read, compared with the ledger before."""

    def __init__(self, directory: str, before: Ledger, listed: list[str]) -> None:
        self.before = before
        self._now = read_ledger(directory)
        self._listed = set(listed) & set(streams(directory))

    @property
    def damage(self) -> str:
        """What is wrong with the ledger, in words; empty when it is sound."""
        return self.before.damage or self._now.damage

    @property
    def ledger(self) -> Ledger:
        """The ledger before, with the damage found since."""
        return dataclasses.replace(self.before, damage=self.damage, lost=self.before.lost or self._now.lost)

    def taken(self, stream: str) -> int | None:
        """The offset up to which retention deleted a stream; None when the ledger does not know the stream."""
        stream_record = self._now.streams.get(stream)
        if stream_record is not None:
            return stream_record.deleted_to
        sound = self._now.present and not self._now.damage
        return EVERYTHING if sound and stream in self.before.streams else None  # all of it was deleted, and its record too

    @property
    def names(self) -> set[str]:
        """All streams that either ledger knows."""
        return {*self.before.streams, *self._now.streams}

    def stream_record(self, stream: str) -> StreamRecord | None:
        return self._now.streams.get(stream) or self.before.streams.get(stream)

    @property
    def forgotten(self) -> tuple[int, int]:
        """The times of data that retention deleted from streams that the ledger no longer knows; (0, 0): there is none."""
        return self._now.cut_from_ns, self._now.cut_until_ns

    def cut(self, stream: str) -> tuple[int, int]:
        """The times of data that retention deleted from a stream; (0, 0): none was deleted."""
        stream_record = self._now.streams.get(stream)
        return self.forgotten if stream_record is None else (stream_record.cut_from_ns, stream_record.cut_until_ns)

    def strangers(self) -> list[str]:
        """Streams that exist before and after, and that neither ledger knows."""
        if self.damage or not self.before.present:
            return []
        return sorted(self._listed - self.before.streams.keys() - self._now.streams.keys())


def _cut(later: _Later, readings: "dict[str, _Reading]", accounts: dict[str, StreamTotals]) -> None:
    """Add what retention deleted before it was read to the totals, also for streams that no longer exist, and for recovery streams."""
    owners = _owners([*later.names, *readings])
    for name in sorted(later.names):
        from_ns, until_ns = later.cut(name)
        reading = readings.get(name)
        if until_ns and (reading is None or reading.lacks(later)):
            owner = owners.get(run_of(name), name)
            stream_record = later.stream_record(owner)
            account = accounts.setdefault(owner, StreamTotals())
            if stream_record is None:
                account.cut(from_ns, until_ns, [])
            else:
                account.cut(from_ns or stream_record.born_ns, until_ns, stream_record.tapped)
    if later.forgotten[1]:
        accounts.setdefault("", StreamTotals()).cut(*later.forgotten, [])


def _owners(known: Iterable[str]) -> dict[tuple[str, str], str]:
    """The processor's stream of each run; recovery streams of the run count for it."""
    return {run_of(stream): stream for stream in known if not is_recovery(stream)}


def _gone(later: _Later, names: set[str], live: bool) -> Iterator[_Flaw]:
    """Faults of streams that no longer exist, or have no end, although nothing explains that."""
    for name, stream_record in later.before.streams.items():
        taken, from_ns = later.taken(name) or 0, 0 if stream_record.recovery else stream_record.born_ns
        if stream_record.end is None and not live:
            yield _Flaw(f"{name} was being written when its framegate ended: the next start says what is missing", from_ns)
        if name not in names and stream_record.end is not None and stream_record.end > taken:
            yield _Flaw(f"{name} is gone: it ended at {stream_record.end}, retention took no more than what lies before {taken}", from_ns)
        elif stream_record.end is not None and not stream_record.settled and not stream_record.adopted:
            yield _Flaw(f"{name} ended, and what it lacks could not be written down", from_ns)


def _may_grow(directory: str, stream: str, ledger: Ledger) -> bool:
    stream_record = ledger.streams.get(stream)
    if stream_record is not None:
        return stream_record.end is None
    listed = segments(directory, stream)
    return bool(listed) and not listed[-1].sealed


@dataclasses.dataclass(slots=True)
class _Miss(_Flaw):
    """Blocks that were not found."""

    offset: int = 0  # of the first of them
    available: int | None = None  # where the log continues; None: nowhere
    first: bool = False  # they lie before all blocks that exist


class _Reading:
    """Reads one stream from its oldest block to its end; notes what is wrong, and continues behind it."""

    def __init__(
        self, directory: str, stream: str, stream_record: StreamRecord | None, account: StreamTotals, progress: Callable[[int], object]
    ) -> None:
        """``stream_record``: of the ledger before the stream is read."""
        self._directory = directory
        self._stream = stream
        self._known_end = expected_end(stream_record)
        self._account = account
        self._progress = progress
        self._joiner = Joiner()
        self._end = 0
        # the time of the last block that was read
        self._last_ns = 0 if stream_record is None or stream_record.recovery else stream_record.born_ns
        self._found: list[_Flaw] = []

    def read(self, since_ns: int) -> None:
        """``since_ns``: leave out the segments that were written before this time, but for the last one."""
        listed = segments(self._directory, self._stream)
        first = next((number for number, segment in enumerate(listed) if segment.modified_ns >= since_ns), len(listed) - 1)
        listed = listed[max(first, 0) :]
        start = self._end = listed[0].base if listed else 0
        if start > 0 and first == 0:
            self._found.append(_Miss(f"{self._stream}: what lies before {start} is gone", self._last_ns, available=start, first=True))
        for segment in listed:
            self._expect_totals(segment)
        walk_past(self._directory, self._stream, start, self._take, self._note)

    def _expect_totals(self, segment: Segment) -> None:
        """Check whether a segment has totals and the length in its seal. Damage of its end is found when it is read."""
        try:
            seal = segment_seal(segment)
        except LogError:
            return
        end = None if seal is None or not segment.sealed or seal.flags & SEAL_CUT else seal.end
        if end is not None and segment.size > SEGMENT_HEADER_BYTES + end - segment.base:
            self._note_only(f"{self._stream}: the segment at {segment.base} is longer than its seal says")
        if seal is None and segment.sealed:
            self._account.proves = False
            self._note_only(
                f"{self._stream}: the segment at {segment.base} is of a version before {SEALED_SINCE}: it says neither its end nor totals"
            )

    def _note_only(self, text: str) -> None:
        """Note a fault that is not of a time: nothing of the segment is missing, or its rows say so."""
        self._found.append(_Flaw(text, EVERYTHING, 0))

    def _take(self, ref: BlockRef) -> None:
        self._end = ref.header.end
        block = read_block(ref, self._joiner)
        for item in self._found:
            item.until_ns = min(item.until_ns, ref.header.last_ns)
        self._last_ns = ref.header.last_ns
        self._account.add(block)
        self._progress(ref.header.block_len)

    def _note(self, error: LogError) -> None:
        if isinstance(error, OffsetVanishedError):
            self._found.append(_Miss(str(error), self._last_ns, EVERYTHING, error.offset, error.available))
        else:
            self._found.append(_Flaw(str(error), self._last_ns))

    def is_doubtful(self, later: _Later) -> bool:
        """Whether blocks are missing that retention may have deleted without a line in the ledger so far."""
        return self._is_short(later) or any(isinstance(item, _Miss) and not self._is_taken(item, later) for item in self._found)

    def lacks(self, later: _Later) -> bool:
        """Whether retention deleted something before it was read."""
        taken = later.taken(self._stream) or 0
        end = expected_end(later.stream_record(self._stream))
        if self._end < (taken if end is None else min(taken, end)):
            return True
        return any(isinstance(item, _Miss) and self._is_taken(item, later) for item in self._found)

    def check(self, later: _Later) -> Iterator[_Flaw]:
        """The faults. Windows that lack data deleted by retention are marked as cut."""
        for item in self._found:
            if not isinstance(item, _Miss):
                yield item
                continue
            taken = self._is_taken(item, later)
            if taken or item.first:
                self._account.cut_window = max(self._account.cut_window, item.until_ns // WINDOW_NS)
            if not taken:
                text = f"{item.text}, retention took no more than what lies before {later.taken(self._stream) or 0}"
                yield dataclasses.replace(item, text=text)
        if self._is_short(later):
            yield _Flaw(f"{self._stream}: it ended at {self._known_end}, and is there up to {self._end} only", self._last_ns)
        if self._known_end is not None and self._end > self._known_end:
            yield _Flaw(f"{self._stream}: it ended at {self._known_end}, and there is more, up to {self._end}", self._last_ns)

    def _is_taken(self, miss: _Miss, later: _Later) -> bool:
        """Whether retention deleted all missing blocks. For a stream that the ledger does not know, blocks before the first one are not expected."""
        taken = later.taken(self._stream)
        if taken is None:
            return miss.first
        if miss.available is not None:
            return taken >= miss.available
        return taken >= (expected_end(later.stream_record(self._stream)) or miss.offset + 1)

    def _is_short(self, later: _Later) -> bool:
        """Whether the stream ends before its known end."""
        return max(self._end, later.taken(self._stream) or 0) < (self._known_end or 0)
