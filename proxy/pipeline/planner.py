"""Plans batches over all the streams of a log: how far they go, what a batch takes, how it is cut into partitions.

The planner reads block headers only, from where it ended the last time, so a call costs what was written since. It reads the last block of a stream
without a seal whole before it offers the stream's end: a tail that a power loss left unsound is not data. Other damage is found by the task that
reads it.

Data that is gone or cannot be read is an error (``DataLossError``) or, for a reader that goes on, a ``Loss`` among the slices of its batch. The same
loss is found whenever the batch is planned again, and a stream that is gone altogether is named in the position where the batch ends.
"""

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from framegate.proxy.pipeline.loss import DataLossError, Loss, Vanished, pairs_of
from framegate.proxy.pipeline.position import Position
from framegate.proxy.pipeline.wanted import EVERYTHING, Wanted
from framegate.proxy.tap.acceptance import read_accepted
from framegate.proxy.tap.consumer import write_consumer
from framegate.proxy.tap.expected import expected_end, expected_start, is_written, ledger_faults
from framegate.proxy.tap.headers import Seal
from framegate.proxy.tap.ledger import LEDGER_NAME, Ledger, read_ledger
from framegate.proxy.tap.log_reader import (
    BlockRef,
    DamagedBlockError,
    LogError,
    OffsetVanishedError,
    Segment,
    read_raw,
    segment_seal,
    segments,
    streams,
    walk,
)
from framegate.proxy.tap.record import LOCK_NAME, REASON_DAMAGED, REASON_VANISHED, FormatError

__all__ = ["DataLossError", "Part", "Planner", "Slice"]

MIN_PARTITION_BYTES: Final = 8 << 20
MAX_PARTITION_BYTES: Final = 256 << 20


class Slice(NamedTuple):
    """A range of whole blocks of one segment; all that a task needs to read them."""

    stream: str
    path: str  # of the segment when it was listed; ``open_segment`` finds it after a rename
    base: int  # the segment's first logical offset
    # start, end: logical offsets
    start: int
    end: int
    node: str = ""  # whose stream it is; "": the one in its name
    written_ns: int = 0  # when a store got the segment; 0: not known


Part = Slice | Loss


class Planner:
    """The driver's side of a reader. It remembers the ends that it saw: this saves work, and tells how much of a vanished stream was unread."""

    def __init__(
        self,
        directory: Path | str,
        *,
        parallelism: int,
        fail_on_data_loss: bool = True,
        consumer: str = "",
        owner: str = "",
        max_partition_bytes: int = MAX_PARTITION_BYTES,
        wanted: Wanted = EVERYTHING,
    ) -> None:
        """Read nothing yet. The tap's directory has no streams while it does not exist; the other arguments are the options of ``source``: a block
        larger than ``max_partition_bytes`` is a partition of its own; ``consumer`` and ``owner`` are as for ``write_consumer``, "" for none.
        """
        self._directory = str(directory)
        self._parallelism = parallelism
        self._strict = fail_on_data_loss
        self._consumer = consumer
        self._owner = owner
        self._max_partition_bytes = max_partition_bytes
        self._wanted = wanted
        self._ends: dict[str, int] = {}
        self._reached: dict[str, int] = {}
        self._ledger = Ledger(False, 0, "", {})
        self._ledger_was: tuple[int, int, int] | None = None

    def starts(self) -> dict[str, int]:
        """The oldest offset that should exist of each stream with segments."""
        bases = {stream: listed[0].base for stream in streams(self._directory) if (listed := segments(self._directory, stream))}
        known = self._read_ledger().streams
        return {stream: expected_start(known.get(stream), base) for stream, base in bases.items()}

    def ends(self) -> dict[str, int]:
        """The offset behind the last sound block of each stream; its end according to seal and ledger, where a sealed segment is damaged or gone."""
        listed = {stream: self._end(stream) for stream in streams(self._directory)}
        known = self._read_ledger().streams
        return {stream: max(end, expected_end(known.get(stream)) or 0) for stream, end in listed.items() if end is not None}

    def first(self, *, from_latest: bool = False, since_ns: int = 0) -> Position:
        """Where a query without a checkpoint begins: before all that exists; behind it (``from_latest``); or at the first block with something
        captured at ``since_ns`` or later, if that is not 0. What retention has deleted is no loss for it; what others have deleted is.
        """
        if from_latest:
            offsets = self.ends()
        elif since_ns:
            offsets = {stream: self._since(stream, since_ns, end) for stream, end in self.ends().items()}
        else:
            offsets = self.starts()
        ledger = self._read_ledger()
        born: list[str] = []
        for stream, stream_record in sorted(ledger.streams.items()):
            if stream in offsets:
                continue
            deleted_to, end = stream_record.deleted_to, stream_record.end
            goes_on = end is None or bool(segments(self._directory, stream))
            was_taken = end is not None and deleted_to < end and not from_latest and not since_ns
            if was_taken or (goes_on and deleted_to):
                offsets[stream] = deleted_to
            elif goes_on:
                born.append(stream)
        return Position(offsets, ledger.last if ledger.present else None, tuple(born))

    def latest(self) -> Position:
        """The end of all that exists now, without the ledger."""
        return Position(self.ends())

    def target(self) -> Position:
        """The end of all that exists now."""
        ends = self.ends()
        return Position(ends, self._read_ledger().last)

    def advance(self, start: Position, budget: int | None = None, target: Position | None = None) -> Position:
        """Where a batch that begins at ``start`` should end.

        The budget is divided among the streams that lag, so that a busy stream gets what quiet ones leave. Each that lags gets at least one block, so
        that a block larger than the budget cannot stop its stream.

        Args:
            start: the position of each known stream; one that is not named begins at 0.
            budget: bytes of log to take; None: all.
            target: where to stop at the latest; streams that it does not name are not begun. None: no bound.

        Returns the new position of each stream that exists, and the losses without which the batch goes on. A stream that is gone is no longer
        named. ``start`` itself, when there is nothing new.

        Raises DataLossError: something between start and end is gone.
        """
        folders = set(streams(self._directory))
        ends = self.ends()
        ledger = self._read_ledger()
        fault = self._ledger_fault(ledger, ends)
        last = ledger.last if target is None or target.ledger is None else target.ledger
        registered = bool(self._consumer)
        vanished = Vanished(start, last, ends=ends, folders=folders, ledger=ledger, fault=fault, reached=self._reached, registered=registered)
        self._keep_new_streams(start, vanished.lost, vanished.born)
        if vanished.lost:
            self._lose(vanished.messages[next(iter(vanished.lost))])
        for stream, end in ends.items():
            known = expected_end(ledger.streams.get(stream))
            if known is not None and end > known:
                self._lose(f"stream {stream} goes on up to {end}, behind its end at {known}")
        if target is not None:
            bounds = {**start.streams, **target.streams}
            ends = {stream: min(end, bounds[stream]) for stream, end in ends.items() if stream in bounds}
        at = self._take(start.streams, ends, budget) | vanished.streams
        if at == start.streams and not vanished.lost:
            return start
        return Position(at, last if ledger.present else None, tuple(vanished.born), vanished.lost, fault)

    def partitions(self, start: Position, end: Position) -> list[list[Part]]:
        """The ranges between two positions, packed into partitions of about equal size; many small streams share one. Raises DataLossError."""
        if start == end:
            return []
        begins = {stream: max(start.streams.get(stream, 0), end.lost[stream][1] if stream in end.lost else 0) for stream in end.streams}
        ranges = [(stream, begins[stream], end.streams[stream]) for stream in sorted(end.streams)]
        total = sum(last - first for _, first, last in ranges if first < last)
        room = min(max(-(-total // self._parallelism), MIN_PARTITION_BYTES), self._max_partition_bytes)
        ledger = self._read_ledger()
        packed: list[list[Part]] = []
        if end.lost:
            packed.append([Loss(s, *lost[:2], REASON_VANISHED, *lost[2:], pairs_of(ledger, s)) for s, lost in sorted(end.lost.items())])
        size = room
        for stream, first, last in ranges:
            if not (self._wanted.takes_node(stream.rsplit(".", 2)[0]) and self._wanted.takes_stream(ledger.streams.get(stream))):
                continue
            for found in self._walk(stream, first, last):
                if isinstance(found, BlockRef) and not self._wanted.takes_times(found.header.first_ns, found.header.last_ns):
                    continue
                if size >= room:
                    packed.append([])
                    size = 0
                _extend(packed[-1], found)
                size += found.header.block_len if isinstance(found, BlockRef) else 0
        return packed

    def blocks(self, start: Mapping[str, int], end: Mapping[str, int]) -> Iterator[BlockRef]:
        """The blocks that exist between two positions, stream by stream."""
        for stream in sorted(end):
            for found in self._walk(stream, start.get(stream, 0), end[stream], strict=False):
                if isinstance(found, BlockRef):
                    yield found

    def register(self, position: Position) -> None:
        """Tell retention that the consumer needs nothing before this position. Raises OSError."""
        write_consumer(self._directory, self._consumer, position.streams, time.time_ns(), self._owner)

    def _read_ledger(self) -> Ledger:
        """The ledger; read again when its file has changed."""
        path = os.path.join(self._directory, LEDGER_NAME)
        try:
            status = os.stat(path)
        except FileNotFoundError:
            self._ledger_was = None
            self._ledger = Ledger(False, 0, "", {})
            return self._ledger
        known = (status.st_ino, status.st_size, status.st_mtime_ns)
        if known != self._ledger_was:
            self._ledger = read_ledger(self._directory)
            self._ledger_was = known
        return self._ledger

    def _ledger_fault(self, ledger: Ledger, ends: Mapping[str, int]) -> str:
        """What is wrong with the ledger and was not accepted (``tap verify --accept``), in words. A directory without a lock file never had a ledger;
        while control writes to the directory, streams that are not yet in the ledger are no fault.
        """
        if not ledger.present and not (ends and os.path.exists(os.path.join(self._directory, LOCK_NAME))):
            return ""
        unknown = sorted(ends.keys() - ledger.streams.keys())
        faults = list(ledger_faults(ledger, [] if unknown and is_written(self._directory) else unknown))
        accepted = read_accepted(self._directory).faults if faults else {}
        return "; ".join(fault for fault in faults if fault not in accepted)

    def _keep_new_streams(self, start: Position, lost: dict[str, tuple[int, int, int, int]], born: list[str]) -> None:
        """Take back the loss of streams that began between the listing and the reading of the ledger: the next listing has them."""
        for stream in [stream for stream in lost if stream not in start.streams and segments(self._directory, stream)]:
            del lost[stream]
            born.append(stream)

    def _end(self, stream: str) -> int | None:
        """The end of a stream; None when it has no segments."""
        listed = segments(self._directory, stream)
        if not listed:
            return None
        end = max(self._ends.get(stream, 0), listed[-1].base)
        last: BlockRef | None = None
        try:
            for block in walk(self._directory, stream, end):
                last = block
                end = block.header.end
        except (LogError, FormatError):
            end = max(end, _extent(listed[-1]))
        if last is not None and not (listed[-1].sealed and _seal(listed[-1])) and not _is_sound(last):
            end = min(end, last.header.offset)
        self._ends[stream] = end
        if listed[-1].sealed:
            self._reached[stream] = end
        return end

    def _take(self, start: Mapping[str, int], ends: Mapping[str, int], budget: int | None) -> dict[str, int]:
        """The offsets that are reached from ``start`` towards ``ends`` with the budget; each stream that lags gets at least one block in each
        turn.
        """
        at = {stream: start.get(stream, 0) for stream in ends}
        if budget is None:
            return {stream: max(at[stream], end) for stream, end in ends.items()}
        walks = {stream: self._walk(stream, at[stream], end) for stream, end in ends.items() if at[stream] < end}
        while walks and budget > 0:
            share = budget // len(walks)
            for stream, found in list(walks.items()):
                size, before = 0, at[stream]
                for item in found:
                    at[stream] = item.end if isinstance(item, Loss) else item.header.end
                    size += 0 if isinstance(item, Loss) else item.header.block_len
                    if size >= share and not isinstance(item, Loss):
                        break
                budget -= size
                if at[stream] == before:
                    del walks[stream]
        return at

    def _since(self, stream: str, since_ns: int, end: int) -> int:
        """Where the first block begins that has something of a time or later, or a loss right before it; the end, when there is none."""
        listed = segments(self._directory, stream)
        at = listed[0].base if listed else 0
        for found in self._walk(stream, at, end, strict=False):
            if isinstance(found, BlockRef):
                if found.header.last_ns >= since_ns:
                    return at
                at = found.header.end
        return at

    def _walk(self, stream: str, start: int, end: int, *, strict: bool | None = None) -> Iterator[BlockRef | Loss]:
        """The blocks between two offsets, with a loss where some are gone; if strict (None: as the planner was told), DataLossError."""
        at = start
        last_ns = 0
        while at < end:
            available, reason = None, REASON_VANISHED
            detail = f"stream {stream}: offsets {at} to {end} are not in {self._directory}"
            try:
                for block in walk(self._directory, stream, at, end):
                    yield block
                    at = block.header.end
                    last_ns = block.header.last_ns
            except (OffsetVanishedError, DamagedBlockError) as fault:
                available, detail = fault.available, f"stream {fault}"
                reason = REASON_DAMAGED if isinstance(fault, DamagedBlockError) else REASON_VANISHED
            except (LogError, FormatError) as fault:
                available = next((segment.base for segment in segments(self._directory, stream) if segment.base > at), None)
                detail, reason = f"stream {stream}: {fault}", REASON_DAMAGED
            if at < end:
                if self._strict if strict is None else strict:
                    raise DataLossError(detail)
                goes_on = end if available is None else min(max(available, at), end)
                yield self._loss(stream, at, goes_on, reason, last_ns)
                at = goes_on

    def _loss(self, stream: str, offset: int, end: int, reason: int, from_ns: int) -> Loss:
        ledger = self._read_ledger()
        stream_record = ledger.streams.get(stream)
        return Loss(stream, offset, end, reason, from_ns or (0 if stream_record is None else stream_record.born_ns), 0, pairs_of(ledger, stream))

    def _lose(self, detail: str) -> None:
        if self._strict:
            raise DataLossError(detail)


def _extend(parts: list[Part], found: BlockRef | Loss) -> None:
    """Add a block to the last slice, or begin one. A loss before the block gets the block's time as its end."""
    if isinstance(found, Loss):
        parts.append(found)
        return
    header = found.header
    last = parts[-1] if parts else None
    if isinstance(last, Slice) and last.path == found.path and last.end == header.offset:
        parts[-1] = last._replace(end=header.end)
        return
    if isinstance(last, Loss) and (last.stream, last.end) == (found.stream, header.offset):
        parts[-1] = last._replace(until_ns=header.first_ns)
    parts.append(Slice(found.stream, found.path, found.base, header.offset, header.end))


def _extent(segment: Segment) -> int:
    """Where a damaged segment should end: according to its seal or its size, and at least behind its first block."""
    seal = _seal(segment)
    return max(segment.limit, segment.base + 1, 0 if seal is None else seal.end)


def _seal(segment: Segment) -> Seal | None:
    """The seal of a segment; None: it has none, or it cannot be read."""
    with contextlib.suppress(LogError):
        return segment_seal(segment)
    return None


def _is_sound(block: BlockRef) -> bool:
    """Whether the CRC of a block's body fits; False when its segment is gone."""
    try:
        read_raw(block)
    except LogError:
        return False
    return True
