"""A tap directory with its ledger and its lock, as control keeps it, and what ``verify`` says of it, in short."""

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from framegate.proxy.tap.block_builder import BlockBuilder
from framegate.proxy.tap.completeness import Verdict, WindowRow, verify
from framegate.proxy.tap.gap import NO_CONNECTION, Gap
from framegate.proxy.tap.ledger_writer import LedgerWriter
from framegate.proxy.tap.log_reader import Segment, end_offset, segments
from framegate.proxy.tap.record import LOCK_NAME, REASON_PROCESSOR_DIED, WINDOW_NS, stream_name
from framegate.proxy.tap.retention import Retention
from framegate.proxy.tap.segment import SegmentLog
from framegate.proxy.tap.sums import segment_times
from tests.fakes.tap_log import START_NS, FakeProcessor

HOUR_NS = 60 * WINDOW_NS
START = START_NS // WINDOW_NS * WINDOW_NS
TAPPED = [("main", "request"), ("main", "response")]


class KeptTap:
    """A tap directory with a ledger, as control keeps it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.ledger = LedgerWriter(str(root))
        self.beat()
        self.lock = (root / LOCK_NAME).open("rb")
        fcntl.flock(self.lock, fcntl.LOCK_EX)

    def beat(self, ago_s: float = 0.0) -> None:
        """Control's last sign of life."""
        path = self.root / LOCK_NAME
        path.touch()
        os.utime(path, (time.time() - ago_s,) * 2)

    def begin(self, **facts: Any) -> FakeProcessor:
        processor = FakeProcessor(self.root, **facts)
        self.ledger.born(processor.stream, TAPPED, START + 1)
        return processor

    def take(self, stream: str) -> None:
        for segment in segments(str(self.root), stream):
            self.ledger.deleted(stream, segment.limit, START + HOUR_NS, *segment_times(segment))
        shutil.rmtree(self.root / stream)

    def end(self, processor: FakeProcessor, *, settled: bool = True) -> None:
        processor.close()
        self.ledger.ended(processor.stream, end_offset(str(self.root), processor.stream), START, settled=settled)

    def recover(
        self,
        processor: FakeProcessor,
        flags: int,
        frames: int,
        until_ns: int = START,
        listener: str | None = "main",
        stated: int = 0,
        node: str = "edge",
    ) -> None:
        """The record of a processor that died; ``stated``: totals of the first window."""
        boot_id = processor.stream.rsplit(".", 1)[1]
        gap = Gap(connection=NO_CONNECTION, direction=0, reason=REASON_PROCESSOR_DIED, listener=listener, from_ns=START)
        gap.add(frames, 0, until_ns)
        gap.flags = flags
        builder = BlockBuilder()
        if frames or flags:
            builder.add_gap(gap)
        if stated:
            totals = Gap(connection=NO_CONNECTION, direction=0, reason=0, listener=listener, from_ns=START)
            totals.add(stated, 0, START)
            builder.add_totals(totals)
        stream = stream_name(node, "recovery", boot_id)
        log = SegmentLog(str(self.root / stream), {"node": node, "slot": "recovery", "stream": stream, "boot_id": boot_id}, 1 << 20, 1 << 62)
        log.append(builder.finish(), 0)
        log.seal(final=True)

    def keep(self, budget: int, *, said: bool = True) -> None:
        """What retention does: its lines in the ledger, then the files, then the folders."""

        def say(doomed: Sequence[Segment]) -> None:
            for segment in doomed if said else ():
                self.ledger.deleted(segment.stream, segment.limit, START, *segment_times(segment))

        assert Retention(str(self.root), budget, 0, say).sweep(START).deleted

    def verify(self, when: Callable[[int], object] = lambda block: None, sleep: Callable[[float], object] = lambda seconds: None) -> Verdict:
        """``when`` is told of the number of each block that has been read, from 1."""
        read: list[int] = []

        def progress(size: int) -> None:
            read.append(size)
            when(len(read))

        return verify(str(self.root), progress, sleep)


def states(verdict: Verdict) -> list[str]:
    return [row.state for row in verdict.rows]


def lines(verdict: Verdict) -> list[tuple[str, int, int, str]]:
    """Direction, first and last window, state."""
    return [(row.direction, (row.window_ns - START) // WINDOW_NS, (row.last_window_ns - START) // WINDOW_NS, row.state) for row in verdict.rows]


def counts(row: WindowRow) -> tuple[int, int, int, int, int]:
    return row.seen, row.stored, row.withheld, row.sampled, row.lost


def in_segments(tap: KeptTap, count: int, *, segment_size: int = 1000, **facts: Any) -> FakeProcessor:
    """A stream of as many blocks, each in a segment and a window of its own."""
    processor = tap.begin(segment_size=segment_size, **facts)
    for number in range(count):
        processor.block([bytes(600)], at_ns=START + number * WINDOW_NS)
    processor.flush()
    return processor
