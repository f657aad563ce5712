"""Positions over all the streams of a log: what is there, what a batch may take, how it is cut into partitions.

Only block headers are read here, from where the last look ended, so a call costs what was written since. The last block of a stream that has no
seal is read whole before its end is offered: a tail that a power loss left unsound is not data yet, and never will be. What else is damaged is
found by the task that reads it.

What is gone, or cannot be read, is an error (``DataLossError``), or, for a reader that goes on, a ``Loss`` among the slices of its batch. It is found
again whenever the batch is planned again, and a stream that is gone altogether is named in the position where the batch ends.
"""

import contextlib
import os
import time
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from framegate.proxy.pipeline.loss import DataLossError, Loss, pairs_of
from framegate.proxy.pipeline.position import Position
from framegate.proxy.pipeline.vanished import Inventory, find_vanished
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
    open_segment,
    segment_seal,
    segments,
    streams,
    walk,
)
from framegate.proxy.tap.record import LOCK_NAME, REASON_DAMAGED, REASON_VANISHED, FormatError

__all__ = ["DataLossError", "Part", "Planner", "Slice", "Target"]

MIN_PARTITION_BYTES: Final = 8 << 20
MAX_PARTITION_BYTES: Final = 256 << 20


class Slice(NamedTuple):
    """A range of one segment, whole blocks; all that a task needs to find them.

    Attributes:
        stream: its name.
        path: of the segment, as it was when listed; ``open_segment`` finds it after a rename.
        base: the segment's first logical offset.
        start, end: logical offsets.
    """

    stream: str
    path: str
    base: int
    start: int
    end: int


class Target(NamedTuple):
    """Where to stop at the latest.

    Attributes:
        ends: of the streams that were there; others are not begun.
        ledger: its last line then.
    """

    ends: Mapping[str, int]
    ledger: int


Part = Slice | Loss


class Planner:
    """What the driver side of a reader knows of a log. Remembers the ends it saw; that saves work, and tells what a vanished stream still had."""

    def __init__(
        self,
        directory: Path,
        *,
        parallelism: int,
        fail_on_data_loss: bool = True,
        consumer: str = "",
        owner: str = "",
        max_partition_bytes: int = MAX_PARTITION_BYTES,
    ) -> None:
        """Nothing is read yet.

        Args:
            directory: the tap's; while it does not exist it has no streams.
            parallelism: partitions to aim at.
            fail_on_data_loss: raise for what vanished or is damaged; otherwise plan a ``Loss``.
            consumer: the name under which retention is told how far the reader has come; "" for none.
            owner: who has the name, as ``write_consumer`` takes it.
            max_partition_bytes: of log; a block larger than it is a partition of its own.
        """
        self._directory = str(directory)
        self._parallelism = parallelism
        self._strict = fail_on_data_loss
        self._consumer = consumer
        self._owner = owner
        self._max_partition_bytes = max_partition_bytes
        self._ends: dict[str, int] = {}
        self._reached: dict[str, int] = {}
        self._ledger = Ledger(False, 0, "", {})
        self._ledger_was: tuple[int, int, int] | None = None

    def starts(self) -> dict[str, int]:
        """The oldest offset that there should be of each stream that is there."""
        bases = {stream: listed[0].base for stream in streams(self._directory) if (listed := segments(self._directory, stream))}
        known = self._read_ledger().streams
        return {stream: expected_start(known.get(stream), base) for stream, base in bases.items()}

    def ends(self) -> dict[str, int]:
        """The offset behind the last sound block of each stream; behind all that there should be, where a sealed segment is damaged, or the stream
        ended later.
        """
        listed = {stream: self._end(stream) for stream in streams(self._directory)}
        known = self._read_ledger().streams
        return {stream: max(end, expected_end(known.get(stream)) or 0) for stream, end in listed.items() if end is not None}

    def first(self, *, from_latest: bool = False, since_ns: int = 0) -> Position:
        """Where a query without a checkpoint begins. What retention took by now is none of its business; what others took is.

        Args:
            from_latest: behind all that is there, instead of before it.
            since_ns: at the first block that has something captured at this time or later, when it is not 0.
        """
        if from_latest:
            offsets = self.ends()
        elif since_ns:
            offsets = {stream: self._since(stream, since_ns, end) for stream, end in self.ends().items()}
        else:
            offsets = self.starts()
        ledger = self._read_ledger()
        unseen = {
            s: stream_record
            for s, stream_record in ledger.streams.items()
            if s not in offsets and (stream_record.end is None or segments(self._directory, s))
        }
        offsets |= {stream: stream_record.deleted_to for stream, stream_record in unseen.items() if stream_record.deleted_to}
        if not from_latest and not since_ns:
            taken = {
                stream: stream_record for stream, stream_record in ledger.streams.items() if stream not in offsets and stream_record.end is not None
            }
            offsets |= {
                stream: stream_record.deleted_to for stream, stream_record in taken.items() if stream_record.deleted_to < (stream_record.end or 0)
            }
        return Position(offsets, ledger.last if ledger.present else None, tuple(sorted(unseen.keys() - offsets.keys())))

    def target(self) -> Target:
        """All that is there now."""
        ends = self.ends()
        return Target(ends, self._read_ledger().last)

    def advance(self, start: Position, budget: int | None = None, target: Target | None = None) -> Position:
        """Where a batch that begins at ``start`` should end.

        The budget is shared out in turns among the streams that lag, so that a busy stream gets what quiet ones leave, and each that lags
        gets at least one block, so that a block larger than the budget cannot stop its stream.

        Args:
            start: where each known stream stands; one that is not named begins at 0.
            budget: bytes of log to take; None takes all.
            target: where to stop at the latest; None: no such bound.

        Returns:
            Where each stream that exists will stand, and what the batch goes on without. A stream that is gone is not named any more. ``start``
            itself, when there is nothing new.

        Raises:
            DataLossError: something between start and end is gone.
        """
        folders = set(streams(self._directory))
        ends = self.ends()
        ledger = self._read_ledger()
        registered = bool(self._consumer)
        found = Inventory(ends, folders, ledger, self._ledger_fault(ledger, ends), self._reached, registered, time.time_ns())
        vanished = find_vanished(start, found, ledger.last if target is None else target.ledger)
        self._keep_new_streams(start, vanished.lost, vanished.born)
        if vanished.lost:
            self._lose(vanished.messages[next(iter(vanished.lost))])
        for stream, end in ends.items():
            known = expected_end(ledger.streams.get(stream))
            if known is not None and end > known:
                self._lose(f"stream {stream} goes on up to {end}, behind its end at {known}")
        if target is not None:
            ends = {s: min(end, target.ends.get(s, start.streams.get(s, 0))) for s, end in ends.items() if s in target.ends or s in start.streams}
        at = self._take(start.streams, ends, budget) | vanished.streams
        if at == start.streams and not vanished.lost:
            return start
        number = None if not ledger.present else ledger.last if target is None else target.ledger
        return Position(at, number, tuple(vanished.born), vanished.lost, found.fault)

    def partitions(self, start: Position, end: Position) -> list[list[Part]]:
        """The ranges between two positions, packed into partitions of about equal size; many small streams share one.

        Raises:
            DataLossError: something of them is gone.
        """
        if start == end:
            return []
        ranges = [(stream, _begin(stream, start, end), end.streams[stream]) for stream in sorted(end.streams)]
        total = sum(last - first for _, first, last in ranges if first < last)
        room = min(max(-(-total // self._parallelism), MIN_PARTITION_BYTES), self._max_partition_bytes)
        ledger = self._read_ledger()
        packed: list[list[Part]] = []
        if end.lost:
            packed.append([Loss(s, *lost[:2], REASON_VANISHED, *lost[2:], pairs_of(ledger, s)) for s, lost in sorted(end.lost.items())])
        size = room
        for stream, first, last in ranges:
            for found in self._walk(stream, first, last):
                if size >= room:
                    packed.append([])
                    size = 0
                _extend(packed[-1], found)
                size += found.header.block_len if isinstance(found, BlockRef) else 0
        return packed

    def blocks(self, start: Mapping[str, int], end: Mapping[str, int]) -> Iterator[BlockRef]:
        """The blocks between two positions that are there, stream by stream."""
        for stream in sorted(end):
            for found in self._walk(stream, start.get(stream, 0), end[stream], strict=False):
                if isinstance(found, BlockRef):
                    yield found

    def register(self, position: Position) -> None:
        """Tell retention that the consumer needs nothing before this position.

        Raises:
            OSError: it cannot be told.
        """
        write_consumer(self._directory, self._consumer, position.streams, time.time_ns(), self._owner)

    def _read_ledger(self) -> Ledger:
        """What the ledger says; read again when its file has changed."""
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
        """What is wrong with the ledger and was not accepted (``tap verify --accept``), in words. A directory that nobody keeps never had one; one
        that is kept may learn of streams yet.
        """
        if not ledger.present and not (ends and os.path.exists(os.path.join(self._directory, LOCK_NAME))):
            return ""
        strangers = sorted(ends.keys() - ledger.streams.keys())
        if strangers and is_written(self._directory):
            strangers = []
        faults = list(ledger_faults(ledger, strangers))
        accepted = read_accepted(self._directory).faults if faults else {}
        return "; ".join(fault for fault in faults if fault not in accepted)

    def _keep_new_streams(self, start: Position, lost: dict[str, tuple[int, int, int, int]], born: list[str]) -> None:
        """What began between the listing and the reading of the ledger is not gone: it waits for the next listing."""
        for stream in [stream for stream in lost if stream not in start.streams and segments(self._directory, stream)]:
            del lost[stream]
            born.append(stream)

    def _end(self, stream: str) -> int | None:
        """The end of a stream; None when it has no segments (any more)."""
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
        """``start``, with the budget spent on the way to ``ends``."""
        at = {stream: start.get(stream, 0) for stream in ends}
        if budget is None:
            return {stream: max(at[stream], end) for stream, end in ends.items()}
        walks = {stream: self._walk(stream, at[stream], end) for stream, end in ends.items() if at[stream] < end}
        while walks and budget > 0:
            share = budget // len(walks)
            for stream, found in list(walks.items()):
                taken, size = _take(found, share)
                if taken is None:
                    del walks[stream]
                else:
                    budget -= size
                    at[stream] = taken
        return at

    def _since(self, stream: str, since_ns: int, end: int) -> int:
        """Where the first block begins that has something of a time or later; behind all, when none has. A loss right before it may have, too."""
        listed = segments(self._directory, stream)
        at = listed[0].base if listed else 0
        for found in self._walk(stream, at, end, strict=False):
            if isinstance(found, BlockRef):
                if found.header.last_ns >= since_ns:
                    return at
                at = found.header.end
        return at

    def _walk(self, stream: str, start: int, end: int, *, strict: bool | None = None) -> Iterator[BlockRef | Loss]:
        """The blocks between two offsets; where some are gone and that is accepted, what is known of them.

        Raises:
            DataLossError: it is not accepted.
        """
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


def _begin(stream: str, start: Position, end: Position) -> int:
    """Where a batch begins to look for a stream: behind what its end says is lost."""
    return max(start.streams.get(stream, 0), end.lost[stream][1] if stream in end.lost else 0)


def _take(found: Iterator[BlockRef | Loss], budget: int) -> tuple[int | None, int]:
    """The end of the block that uses the budget up, the first one at least, and what was taken; None when there is nothing left."""
    end = None
    size = 0
    for item in found:
        if isinstance(item, Loss):
            end = item.end
            continue
        end = item.header.end
        size += item.header.block_len
        if size >= budget:
            break
    return end, size


def _extend(parts: list[Part], found: BlockRef | Loss) -> None:
    """Add a block to the last slice, or begin one. A loss lies before what comes behind it."""
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
    """Where a segment that is damaged should end: as its seal says, or its size, and behind its first block at least."""
    seal = _seal(segment)
    return max(segment.limit, segment.base + 1, 0 if seal is None else seal.end)


def _seal(segment: Segment) -> Seal | None:
    """How a segment says that it ends; None: it does not, or it cannot be read."""
    with contextlib.suppress(LogError):
        return segment_seal(segment)
    return None


def _is_sound(block: BlockRef) -> bool:
    """Whether the body of a block is what its CRC says; False too when its segment is gone."""
    try:
        fd = open_segment(block.path)
    except FileNotFoundError:
        return False
    try:
        body = os.pread(fd, block.header.block_len - block.header.header_len, block.position + block.header.header_len)
    finally:
        os.close(fd)
    return zlib.crc32(body) == block.header.body_crc
