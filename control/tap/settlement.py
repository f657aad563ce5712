"""Settles the streams of processors that have ended: writes what they lack into the log, and the ledger says so.

A case is evaluated once, from the stream and from the cells of its processor, if they are known. Writing it is tried until it succeeds, on a full
disk with room from the reserve. Each step can be repeated after it failed half way, by this control process or by the next one: the settlement is one
block (``proxy.tap.settlement``), and is looked for first while the ledger lacks its line.
"""

import contextlib
import dataclasses
from typing import Any, Final

from framegate.control.fleet.slot_cells import ProcessorTotals
from framegate.control.logs import RowLog
from framegate.control.tap.reserve import Reserve, is_full
from framegate.proxy.tap import record
from framegate.proxy.tap.ledger import Pair, StreamRecord
from framegate.proxy.tap.ledger_writer import LedgerWriter
from framegate.proxy.tap.log_reader import LogError, end_offset, segment_seal, segments
from framegate.proxy.tap.recovery import ends_finally
from framegate.proxy.tap.settlement import Bound, Entry, missing_entries, recovery_stream, settled_end, write_settlement
from framegate.proxy.tap.sums import StreamSums, sum_stream

_LOST_AT_THE_END: Final = (record.REASON_CLOSED, record.REASON_DISK_ERROR, record.REASON_DISK_FULL)


@dataclasses.dataclass(slots=True)
class Case:
    """A stream that has no writer any more."""

    stream: str  # its name
    # born_ns, ended_ns: when its processor lived, wall clock
    born_ns: int
    ended_ns: int
    tapped: list[Pair]  # the pairs that rules could match
    life: ProcessorTotals | None  # the counts in its cells; None: not known
    entries: list[Entry] | None = None  # the rows to write, once evaluated
    noted: bool = False  # the ledger says that it has ended and is not settled

    @property
    def bounds(self) -> dict[Pair, int | None]:
        """How many frames were seen, by listener and direction; None: not known."""
        if self.life is not None:
            return dict(self.life.bounds)
        return dict.fromkeys(self.tapped)

    def bound(self, frames: int | None) -> Bound:
        """The bound of one listener and direction, for ``missing_entries``."""
        if self.life is None or not self.life.orderly:
            return Bound(frames, False, record.REASON_PROCESSOR_DIED, self.born_ns, self.ended_ns)
        dropped = self.life.dropped
        reason = max(_LOST_AT_THE_END, key=lambda code: dropped[record.REASONS[code]])
        return Bound(frames, True, reason, self.born_ns, self.ended_ns)


class Settlement:
    """The open cases of one tap directory. For one thread; blocks on the file system."""

    def __init__(self, directory: str, ledger: LedgerWriter, reserve: Reserve, log: RowLog) -> None:
        self._directory = directory
        self._ledger = ledger
        self._reserve = reserve
        self._log = log
        self._carried: dict[str, StreamSums] = {}
        self.cases: dict[str, Case] = {}

    def carry(self, stream: str) -> StreamSums:
        """The sums of a stream that is not settled yet: of sealed segments, and of segments that retention deletes, before it does."""
        return self._carried.setdefault(stream, StreamSums())

    def open(self, case: Case) -> None:
        """Open the case of a stream that has ended."""
        self.cases[case.stream] = case

    def work(self, case: Case, now_ns: int, *, last: bool = False) -> str:
        """Try to close a case. ``case``: one of ``cases``. ``last``: all of the reserve may be used. Returns what could not be read of its stream,
        in words. Raises OSError, LogError: it is not closed; to be tried again.
        """
        trouble = self._missing_entries(case) if case.entries is None else ""
        while True:
            try:
                self._close(case, now_ns)
            except OSError as error:
                if not (is_full(error) and self._reserve.give(all_of_it=last)):
                    self._note(case, now_ns)
                    raise
            else:
                del self.cases[case.stream]
                self._carried.pop(case.stream, None)
                return trouble

    def _note(self, case: Case, now_ns: int) -> None:
        """Write to the ledger that the stream is not settled, if there is room for the line."""
        if not case.noted and case.stream in self._ledger.ledger.streams:
            with contextlib.suppress(OSError):
                self._ledger.ended(case.stream, self.end(case.stream), now_ns, settled=False)
                case.noted = True

    def end(self, stream: str) -> int:
        """The end of a stream, deleted or not, as far as known."""
        stream_record = self._ledger.ledger.streams.get(stream)
        gone = 0 if stream_record is None else stream_record.deleted_to
        try:
            return max(gone, end_offset(self._directory, stream))
        except LogError:  # its last segment is damaged: use its name and size
            return max([gone, *(segment.limit for segment in segments(self._directory, stream))])

    def give_up(self, error: str) -> None:
        """Log the cases that could not be written; nothing is tried any more. The next start calls their losses unknown."""
        for case in list(self.cases.values()):
            frames: dict[str, dict[str, int | None]] = {}
            if case.entries is None:
                counts: list[tuple[Pair, int | None]] = list(case.bounds.items())
            else:
                counts = [((entry.listener, entry.direction), _count(entry)) for entry in case.entries if entry.is_gap]
            for (listener, direction), count in counts:
                before = frames.setdefault(listener, {}).get(direction, 0)
                frames[listener][direction] = None if count is None or before is None else before + count
            fields: dict[str, Any] = {"stream": case.stream, "frames": frames, "error": error}
            self._log.write("tap_incomplete", level="error", counted=case.entries is not None, **fields)

    def _missing_entries(self, case: Case) -> str:
        """Evaluate a case, once: retention may delete some of the stream before the entries are written."""
        if settled_end(self._directory, case.stream) is not None or (case.life is None and ends_finally(self._directory, case.stream)):
            case.entries = []  # it was settled before, only the line in the ledger is missing
            return ""
        if case.life is not None and case.life.orderly and self._sealed_frames(case.stream) == sum(case.life.bounds.values()):
            case.entries = []  # all is accounted for, and the seals have as many frames as the cells: no block need be read
            return ""
        sums, trouble = sum_stream(self._directory, case.stream, self._carried.get(case.stream))
        bounds = case.bounds
        if case.life is None:
            bounds |= {pair: None for pair in sums.pairs if pair[0]}
        case.entries = [entry for pair, frames in sorted(bounds.items()) for entry in missing_entries(pair, sums.of(pair), case.bound(frames))]
        return trouble

    def _sealed_frames(self, stream: str) -> int | None:
        """Frames stored or lost according to the seals of a stream; None: a seal is missing, or the last one is not final."""
        carried = self._carried.get(stream) or StreamSums()
        end, frames, final = carried.end, sum(pair.frames for pair in carried.pairs.values()), False
        try:
            for segment in segments(self._directory, stream):
                if segment.base < carried.end:
                    continue
                seal = segment_seal(segment) if segment.sealed and segment.base == end else None
                if seal is None:
                    return None
                end, frames = seal.end, frames + seal.request_frames + seal.response_frames + seal.lost_frames
                final = bool(seal.flags & record.SEAL_FINAL)
        except LogError:
            return None
        return frames if final else None

    def _close(self, case: Case, now_ns: int) -> None:
        assert case.entries is not None, "it is evaluated first"
        recovery = recovery_stream(case.stream)
        known: dict[str, StreamRecord] = self._ledger.ledger.streams
        if case.entries and recovery not in known:
            self._ledger.born(recovery, [], now_ns)
        if case.entries:
            write_settlement(self._directory, case.stream, case.entries)
        end = settled_end(self._directory, case.stream)
        if end is not None:
            if recovery not in known:
                self._ledger.born(recovery, [], now_ns)
            self._ledger.ended(recovery, end, now_ns, settled=True)
        if case.stream not in known:
            self._ledger.born(case.stream, case.tapped, now_ns)
        self._ledger.ended(case.stream, self.end(case.stream), now_ns, settled=True)
        self._report(case, recovery)

    def _report(self, case: Case, recovery: str) -> None:
        gaps = [entry for entry in case.entries or [] if entry.is_gap]
        if not gaps:
            return
        frames = {"request": 0, "response": 0}
        listeners: dict[str, dict[str, int]] = {}
        for gap in gaps:
            frames[gap.direction] += gap.frames
            of_listener = listeners.setdefault(gap.listener, {})
            of_listener[gap.direction] = of_listener.get(gap.direction, 0) + gap.frames
        known = "unknown" if case.life is None else record.certainty(max(gap.flags for gap in gaps))
        fields: dict[str, Any] = {"stream": case.stream, "recovery": recovery, "frames": frames, "listeners": listeners, "certainty": known}
        self._log.write("tap_gap", level="warning", reason=record.REASONS[gaps[0].reason], slot=int(case.stream.rsplit(".", 2)[1]), **fields)


def _count(entry: Entry) -> int | None:
    return None if record.certainty(entry.flags) == "unknown" else entry.frames
