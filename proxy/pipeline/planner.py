"""Offsets over all the streams of a log: what is there, what a batch may take, how it is cut into partitions.

Only block headers are read here, from where the last look ended, so a call costs what was written since. The last block of a stream is read
whole before its end is offered: a tail that a power loss left unsound is not data yet, and never will be. All other damage is found by the
task that reads the block, and is an error.
"""

import os
import time
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from proxy.tap.consumer import write_consumer
from proxy.tap.log_reader import BlockRef, DamagedBlockError, OffsetVanishedError, open_segment, segments, streams, walk

__all__ = ["DataLossError", "Planner", "Slice"]

MIN_PARTITION_BYTES: Final = 8 << 20
MAX_PARTITION_BYTES: Final = 256 << 20


class DataLossError(RuntimeError):
    """Frames that were to be read are gone or damaged. ``failOnDataLoss=false`` goes on without them."""

    def __init__(self, detail: str) -> None:
        super().__init__(
            f"{detail}. What the log holds no more cannot be read: see the tap's budget and the source's option consumer, "
            "or go on without it with failOnDataLoss=false"
        )


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


class Planner:
    """What the driver side of a reader knows of a log. Remembers the ends it saw; that saves work, and tells what a vanished stream still had."""

    def __init__(self, directory: Path, *, parallelism: int, fail_on_data_loss: bool = True) -> None:
        """Nothing is read yet.

        Args:
            directory: the tap's; while it does not exist it has no streams.
            parallelism: partitions to aim at.
            fail_on_data_loss: raise for ranges that vanished; otherwise skip them.
        """
        self._directory = str(directory)
        self._parallelism = parallelism
        self._strict = fail_on_data_loss
        self._ends: dict[str, int] = {}

    def starts(self) -> dict[str, int]:
        """The oldest offset of each stream."""
        return {stream: listed[0].base for stream in streams(self._directory) if (listed := segments(self._directory, stream))}

    def ends(self) -> dict[str, int]:
        """The offset behind the last sound block of each stream."""
        found = {stream: self._end(stream) for stream in streams(self._directory)}
        return {stream: end for stream, end in found.items() if end is not None}

    def advance(self, start: Mapping[str, int], budget: int | None = None, target: Mapping[str, int] | None = None) -> dict[str, int]:
        """Where a batch that begins at ``start`` should end.

        The budget is shared out in turns among the streams that lag, so that a busy stream gets what quiet ones leave, and each that lags
        gets at least one block, so that a block larger than the budget cannot stop its stream.

        Args:
            start: where each known stream stands; one that is not named begins at 0.
            budget: bytes of log to take; None takes all.
            target: where to stop at the latest, for the streams it names; others are not begun. None: no such bound.

        Returns:
            Where each stream that exists will stand; one that is gone and was read to its end is not named any more.

        Raises:
            DataLossError: a range between start and end is gone.
        """
        ends = self.ends()
        if target is not None:
            ends = {stream: min(end, target.get(stream, start.get(stream, 0))) for stream, end in ends.items() if stream in target or stream in start}
        for stream, offset in start.items():
            if stream not in ends and offset < self._ends.get(stream, offset):
                self._lose(f"stream {stream} is gone, it was read up to {offset} of {self._ends[stream]}")
        at = {stream: self._first(stream, start.get(stream, 0)) for stream in ends}
        if budget is None:
            return {stream: max(at[stream], end) for stream, end in ends.items()}
        walks = {stream: self._walk(stream, at[stream], end) for stream, end in ends.items() if at[stream] < end}
        while walks and budget > 0:
            share = budget // len(walks)
            for stream, blocks in list(walks.items()):
                taken = _take(blocks, at[stream], share)
                if taken is None:
                    del walks[stream]
                else:
                    budget -= taken - at[stream]
                    at[stream] = taken
        return at

    def partitions(self, start: Mapping[str, int], end: Mapping[str, int]) -> list[list[Slice]]:
        """The ranges between two offsets, packed into partitions of about equal size; many small streams share one.

        Raises:
            DataLossError: a range is gone.
        """
        ranges = [(stream, self._first(stream, start.get(stream, 0)), end[stream]) for stream in sorted(end)]
        total = sum(last - first for _, first, last in ranges if first < last)
        room = min(max(-(-total // self._parallelism), MIN_PARTITION_BYTES), MAX_PARTITION_BYTES)
        packed: list[list[Slice]] = []
        size = room
        for stream, first, last in ranges:
            for block in self._walk(stream, first, last):
                if size >= room:
                    packed.append([])
                    size = 0
                _extend(packed[-1], block)
                size += block.header.block_len
        return packed

    def register(self, consumer: str, offsets: Mapping[str, int]) -> None:
        """Tell retention that ``consumer`` needs nothing before these offsets."""
        write_consumer(self._directory, consumer, offsets, time.time_ns())

    def _end(self, stream: str) -> int | None:
        """The end of a stream; None when it has no segments (any more)."""
        listed = segments(self._directory, stream)
        if not listed:
            return None
        end = max(self._ends.get(stream, 0), listed[-1].base)
        last: BlockRef | None = None
        for block in walk(self._directory, stream, end):
            last = block
            end = block.header.end
        if last is not None and not _is_sound(last):
            end = last.header.offset
        self._ends[stream] = end
        return end

    def _first(self, stream: str, start: int) -> int:
        """``start``, or the oldest offset there is when that is later and losses are accepted."""
        listed = segments(self._directory, stream)
        if listed and start < listed[0].base:
            self._lose(f"stream {stream}: offsets {start} to {listed[0].base} are gone from {self._directory}")
            return listed[0].base
        return start

    def _walk(self, stream: str, start: int, end: int) -> Iterator[BlockRef]:
        """The blocks between two offsets. Where some are gone and losses are accepted: those that are left."""
        at = start
        while at < end:
            available = None
            detail = f"stream {stream}: offsets {at} to {end} are not in {self._directory}"
            try:
                for block in walk(self._directory, stream, at, end):
                    yield block
                    at = block.header.end
            except (OffsetVanishedError, DamagedBlockError) as gone:
                available, detail = gone.available, f"stream {gone}"
            if at < end:
                self._lose(detail)
                at = end if available is None else max(available, at)

    def _lose(self, detail: str) -> None:
        if self._strict:
            raise DataLossError(detail)


def _take(blocks: Iterator[BlockRef], start: int, budget: int) -> int | None:
    """The end of the block that uses the budget up, the first one at least; None when there is no block left."""
    end = None
    for block in blocks:
        end = block.header.end
        if end - start >= budget:
            break
    return end


def _extend(slices: list[Slice], block: BlockRef) -> None:
    """Add a block to the last slice, or begin one."""
    header = block.header
    if slices and slices[-1].path == block.path and slices[-1].end == header.offset:
        slices[-1] = slices[-1]._replace(end=header.end)
    else:
        slices.append(Slice(block.stream, block.path, block.base, header.offset, header.end))


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
