"""``verify`` says "complete" when all of a log is there, and never when something is missing."""

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from proxy.config.model import TapRule
from proxy.tap import completeness
from proxy.tap.block_builder import BlockBuilder
from proxy.tap.completeness import LIVE_S, LOOKS, Verdict, WindowRow, verify
from proxy.tap.gap import NO_CONNECTION, Gap
from proxy.tap.ledger import Ledger, read_ledger
from proxy.tap.ledger_writer import LedgerWriter
from proxy.tap.log_reader import Segment, end_offset, segments, streams, walk, walk_segment
from proxy.tap.record import FLAG_AT_MOST, FLAG_UNKNOWN, LOCK_NAME, REASON_PROCESSOR_DIED, WINDOW_NS, stream_name
from proxy.tap.recovery import seal_stream
from proxy.tap.retention import Retention
from proxy.tap.segment import SegmentLog
from proxy.tap.sums import segment_times
from tests.fakes.runs import pieces_of
from tests.fakes.tap_log import START_NS, FakeProcessor

SECOND = 1_000_000_000
HOUR_NS = 60 * WINDOW_NS
START = START_NS // WINDOW_NS * WINDOW_NS
TAPPED = [("main", "request"), ("main", "response")]


class Tap:
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
        """Retention takes a whole stream."""
        for segment in segments(str(self.root), stream):
            self.ledger.deleted(stream, segment.limit, START + HOUR_NS, *segment_times(segment))
        shutil.rmtree(self.root / stream)

    def end(self, processor: FakeProcessor, *, settled: bool = True) -> None:
        processor.close()
        self.ledger.ended(processor.stream, end_offset(str(self.root), processor.stream), START, settled=settled)

    def recover(
        self, processor: FakeProcessor, flags: int, frames: int, until_ns: int = START, listener: str | None = "main", stated: int = 0
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
        stream = stream_name("edge", "recovery", boot_id)
        log = SegmentLog(str(self.root / stream), {"node": "edge", "slot": "recovery", "stream": stream, "boot_id": boot_id}, 1 << 20, 1 << 62)
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


@pytest.fixture
def tap(tmp_path: Path) -> Iterator[Tap]:
    made = Tap(tmp_path)
    yield made
    made.lock.close()


def states(verdict: Verdict) -> list[str]:
    return [row.state for row in verdict.rows]


def lines(verdict: Verdict) -> list[tuple[str, int, int, str]]:
    """Direction, first and last window, state."""
    return [(row.direction, (row.window_ns - START) // WINDOW_NS, (row.last_window_ns - START) // WINDOW_NS, row.state) for row in verdict.rows]


def counts(row: WindowRow) -> tuple[int, int, int, int, int]:
    return row.seen, row.stored, row.withheld, row.sampled, row.lost


def test_an_empty_directory_with_a_ledger_is_complete(tap: Tap) -> None:
    processor = tap.begin()
    tap.ledger.ended(processor.stream, 0, START, settled=True)
    assert tap.verify() == Verdict([], [], True)


def test_all_that_was_seen_is_there(tap: Tap) -> None:
    processor = tap.begin()
    processor.block([b"a", b"b"], at_ns=START)
    processor.block([b"c"], at_ns=START, direction="response")
    processor.block([b"d"] * 3, at_ns=START + WINDOW_NS, connection=2)
    tap.end(processor)
    verdict = tap.verify()
    assert [(row.direction, (row.window_ns - START) // WINDOW_NS, *counts(row)) for row in verdict.rows] == [
        ("request", 0, 2, 2, 0, 0, 0),
        ("request", 1, 3, 3, 0, 0, 0),
        ("response", 0, 1, 1, 0, 0, 0),
    ]
    assert (set(states(verdict)), verdict.faults, verdict.complete) == ({"complete"}, [], True)


def test_what_is_withheld_and_sampled_is_complete_and_apart(tap: Tap) -> None:
    processor = tap.begin()
    processor.block([b"secret", b"", b"open"], at_ns=START, sensitive=[0, 1])
    tap.end(processor)
    sampled = tap.begin(boot_id="b1", rule=TapRule(name="none", sample_connections=0.0))
    sampled.block([b"x"] * 4, at_ns=START)
    tap.end(sampled)
    verdict = tap.verify()
    assert [counts(row) for row in verdict.rows] == [(3, 2, 1, 0, 0), (4, 0, 0, 4, 0)]
    assert verdict.complete


def test_lost_frames_are_counted_and_not_complete(tap: Tap) -> None:
    processor = tap.begin(queue_size=1 << 16)
    for _ in range(3):
        processor.send([bytes(50_000)], at_ns=START)
    processor.flush()
    tap.end(processor)
    verdict = tap.verify()
    assert [counts(row) for row in verdict.rows] == [(3, 2, 0, 0, 1)]
    assert (states(verdict), verdict.faults, verdict.complete) == (["lost"], [], False)


def test_while_it_is_written_the_last_window_is_open(tap: Tap) -> None:
    processor = tap.begin()
    processor.block([b"a"], at_ns=START)
    processor.block([b"b"], at_ns=START + WINDOW_NS)
    verdict = tap.verify()
    assert (states(verdict), verdict.complete) == (["complete", "open"], True)
    copy = tap.root.with_name("copy")
    shutil.copytree(tap.root, copy)
    assert not verify(str(copy)).complete, "as fresh as can be, and nobody holds it"
    tap.beat(LIVE_S + 1)
    verdict = tap.verify()
    assert "was being written" in verdict.faults[0]
    assert (states(verdict), verdict.complete) == (["complete", "missing"], False), "who wrote it is gone"
    tap.beat()
    tap.ledger.ended(processor.stream, end_offset(str(tap.root), processor.stream), START, settled=True)
    assert states(tap.verify()) == ["complete", "missing"], "totals that will not come any more"


@pytest.mark.parametrize(("flags", "state"), [(FLAG_AT_MOST, "at_most"), (FLAG_UNKNOWN, "unknown")])
def test_what_control_says_for_the_dead_counts_in_their_windows(tap: Tap, flags: int, state: str) -> None:
    processor = tap.begin()
    processor.block([b"a"], at_ns=START)
    processor.block([b"b"], at_ns=START + WINDOW_NS)
    processor.block([b"c"], at_ns=START + 2 * WINDOW_NS)
    tap.end(processor)
    tap.recover(processor, flags, 5 if flags == FLAG_AT_MOST else 0, START + WINDOW_NS)
    verdict = tap.verify()
    assert states(verdict) == [state, state, "complete"]
    assert {row.stream for row in verdict.rows} == {processor.stream}
    assert [row.at_most for row in verdict.rows] == ([5, 5, 0] if flags == FLAG_AT_MOST else [0, 0, 0])
    assert not verdict.complete


def test_a_gap_over_several_windows_is_shared(tap: Tap) -> None:
    processor = tap.begin()
    processor.block([b"a"], at_ns=START)
    processor.block([b"b"], at_ns=START + WINDOW_NS)
    tap.end(processor)
    tap.recover(processor, 0, 5, START + WINDOW_NS)
    verdict = tap.verify()
    assert [(row.shared, row.state) for row in verdict.rows] == [(5, "lost"), (5, "lost")]


def test_what_nobody_was_named_for_is_said_too(tap: Tap) -> None:
    processor = tap.begin()
    tap.ledger.ended(processor.stream, 0, START, settled=True)
    tap.recover(processor, FLAG_UNKNOWN, 0, listener=None)
    assert [(row.listener, row.state) for row in tap.verify().rows] == [(None, "unknown")]


def test_what_retention_took_is_cut_and_what_somebody_else_took_is_a_fault(tap: Tap) -> None:
    processor = tap.begin(segment_size=1000)
    for number in range(6):
        processor.block([bytes(600)], at_ns=START + number // 2 * WINDOW_NS)
    tap.end(processor)
    first, second, *_ = segments(str(tap.root), processor.stream)
    os.unlink(first.path)
    verdict = tap.verify()
    assert "retention took no more" in verdict.faults[0]
    assert not verdict.complete
    tap.ledger.deleted(processor.stream, second.base, START)
    verdict = tap.verify()
    assert (lines(verdict), verdict.faults, verdict.complete) == (
        [("request", 0, 0, "cut"), ("request", 1, 1, "complete"), ("request", 2, 2, "complete"), ("response", 0, 0, "cut")],
        [],
        True,
    )


def test_whoever_takes_a_segment_or_a_stream_is_found_out(tap: Tap) -> None:
    processor = tap.begin(segment_size=1000)
    for number in range(4):
        processor.block([bytes(600)], at_ns=START + number * WINDOW_NS)
    tap.end(processor)
    listed = segments(str(tap.root), processor.stream)
    assert tap.verify().complete
    for segment in reversed(listed):
        data = Path(segment.path).read_bytes()
        os.unlink(segment.path)
        verdict = tap.verify()
        assert not verdict.complete
        assert verdict.faults
        Path(segment.path).write_bytes(data)
    for segment in listed:
        os.unlink(segment.path)
    os.rmdir(os.path.dirname(listed[0].path))
    assert "is gone" in tap.verify().faults[0]
    tap.ledger.deleted(processor.stream, listed[-1].limit, START + 3 * WINDOW_NS)
    verdict = tap.verify()
    assert (lines(verdict), verdict.faults) == ([("request", 0, 3, "cut"), ("response", 0, 3, "cut")], [])


def test_a_block_that_is_damaged_is_missing_and_what_follows_is_read(tap: Tap) -> None:
    processor = tap.begin()
    for number in range(3):
        processor.block([bytes(600)], at_ns=START + number * WINDOW_NS)
    tap.end(processor)
    ref = list(walk(str(tap.root), processor.stream))[1]
    data = bytearray(Path(ref.path).read_bytes())
    data[ref.position + 300] ^= 1
    Path(ref.path).write_bytes(data)
    verdict = tap.verify()
    assert "CRC" in verdict.faults[0]
    assert states(verdict) == ["missing", "missing", "complete"], "the damaged block had the totals of the first window and the frames of the second"


def test_a_frame_of_which_pieces_are_gone_is_lost(tap: Tap) -> None:
    processor = tap.begin(segment_size=1000)
    body = bytes(range(250)) * 8
    for run in pieces_of(body, [700, 700]):
        processor.part(run, len(body), at_ns=START)
        processor.flush()
    tap.end(processor)
    assert tap.verify().complete
    first, second, *_ = segments(str(tap.root), processor.stream)
    os.unlink(first.path)
    tap.ledger.deleted(processor.stream, second.base, START)
    verdict = tap.verify()
    assert [(counts(row), row.state, row.cut) for row in verdict.rows] == [((1, 0, 0, 0, 1), "lost", True), ((0,) * 5, "cut", True)]


def test_without_a_ledger_and_before_version_3_nothing_is_proved(tap: Tap) -> None:
    processor = tap.begin()
    processor.block([b"a"], at_ns=START)
    (segment,) = segments(str(tap.root), processor.stream)
    data = bytearray(Path(segment.path).read_bytes())
    data[8] = 2
    os.unlink(segment.path)
    Path(segment.path.replace(".open", ".seg")).write_bytes(data)
    tap.ledger.ended(processor.stream, segment.limit, START, settled=True)
    verdict = tap.verify()
    assert (states(verdict), "version before 3" in verdict.faults[0], verdict.complete) == (["unknown"], True, False)
    (tap.root / "_ledger.jsonl").unlink()
    assert "no ledger" in tap.verify().faults[0]


def test_what_could_not_be_settled_is_a_fault(tap: Tap) -> None:
    processor = tap.begin()
    processor.block([b"a"], at_ns=START)
    tap.end(processor, settled=False)
    verdict = tap.verify()
    assert "could not be written down" in verdict.faults[0]
    assert not verdict.complete


def test_a_cut_or_an_open_window_hides_no_loss(tap: Tap) -> None:
    processor = tap.begin(segment_size=1000, queue_size=1 << 16)
    for number in range(3):
        processor.block([bytes(600)], at_ns=START + number)
    for _ in range(3):
        processor.send([bytes(50_000)], at_ns=START + 9)
    processor.flush()
    tap.beat()
    assert (states(tap.verify()), tap.verify().complete) == (["lost"], False)
    processor.block([b"later"], at_ns=START + WINDOW_NS)
    tap.end(processor)
    first, second, *_ = segments(str(tap.root), processor.stream)
    os.unlink(first.path)
    tap.ledger.deleted(processor.stream, second.base, START)
    verdict = tap.verify()
    found = [(row.direction, row.missing, row.state) for row in verdict.rows]
    assert (found, verdict.faults) == ([("request", 1, "lost"), ("request", 0, "complete"), ("response", 0, "cut")], [])
    tap.recover(processor, FLAG_AT_MOST, 5)
    tap.ledger.born("edge.recovery.b0", [], START)
    assert states(tap.verify()) == ["at_most", "complete", "cut"]


def test_a_stream_that_the_ledger_does_not_know_is_a_fault(tap: Tap) -> None:
    """Lines at its end can be cut off without a trace in the file."""
    processor = tap.begin()
    processor.block([b"a"], at_ns=START)
    tap.end(processor)
    assert tap.verify().complete
    (tap.root / "_ledger.jsonl").write_bytes(b"")
    verdict = tap.verify()
    assert (verdict.faults, verdict.complete) == (["edge.0.b0 is not in the ledger: what else is not nobody can tell"], False)


def in_segments(tap: Tap, count: int, *, segment_size: int = 1000, **facts: Any) -> FakeProcessor:
    """A stream of as many blocks, each in a segment and a window of its own."""
    processor = tap.begin(segment_size=segment_size, **facts)
    for number in range(count):
        processor.block([bytes(600)], at_ns=START + number * WINDOW_NS)
    processor.flush()
    return processor


@pytest.mark.parametrize("segment_size", [1000, 3000])
@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize("left", [0, 1])
def test_what_retention_takes_while_it_is_read_is_no_fault(tap: Tap, segment_size: int, at: int, left: int) -> None:
    """The segment that is being read, those before it, and some, or all, of those behind it."""
    processor = in_segments(tap, 8, segment_size=segment_size)
    processor.block([b"last"] * 5, at_ns=START + 9 * WINDOW_NS)
    tap.end(processor)
    stays = segments(str(tap.root), processor.stream)[-1:]
    there = sum(ref.header.request_frames for ref in walk(str(tap.root), processor.stream, stays[0].base))
    verdict = tap.verify(lambda block: tap.keep(stays[0].size * left) if block == at else None)
    assert segments(str(tap.root), processor.stream) == stays * left
    assert (verdict.faults, verdict.complete) == ([], True)
    assert set(states(verdict)) <= {"complete", "cut"}
    assert sum(row.stored for row in verdict.rows) == at + there * left


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("forgets", [False, True])
def test_what_retention_takes_before_its_turn_has_come_is_no_fault(tap: Tap, whole: bool, forgets: bool) -> None:
    first, second = in_segments(tap, 3), in_segments(tap, 3, boot_id="b1")
    tap.end(first)
    tap.end(second)
    for segment in segments(str(tap.root), first.stream):
        os.utime(segment.path, ns=(START + WINDOW_NS, START + WINDOW_NS))  # the younger one
    for segment in segments(str(tap.root), second.stream):
        os.utime(segment.path, ns=(START, START))
    own = sum(segment.size for segment in segments(str(tap.root), first.stream))
    last = segments(str(tap.root), second.stream)[-1].size

    def take(block: int) -> None:
        if block == 1:
            tap.keep(own if whole else own + last)
            if forgets:
                tap.ledger.compact({}, START)

    verdict = tap.verify(take)
    assert streams(str(tap.root)) == ([first.stream] if whole else [first.stream, second.stream])
    assert (second.stream in read_ledger(str(tap.root)).streams) is not (whole and forgets)
    assert (verdict.faults, verdict.complete) == ([], True)


@pytest.mark.parametrize("at", [1, 2, 3])
def test_what_somebody_else_takes_while_it_is_read_is_a_fault(tap: Tap, at: int) -> None:
    processor = in_segments(tap, 6)
    tap.end(processor)
    slept: list[float] = []
    budget = segments(str(tap.root), processor.stream)[-1].size
    verdict = tap.verify(lambda block: tap.keep(budget, said=False) if block == at else None, slept.append)
    assert "retention took no more than what lies before 0" in verdict.faults[0]
    assert not verdict.complete
    assert "missing" in states(verdict)
    assert len(slept) == LOOKS, "a framegate is there, which may have had no room for the line"
    tap.lock.close()
    slept.clear()
    assert (tap.verify(sleep=slept.append).complete, slept) == (False, [])


def test_a_file_that_is_gone_before_what_retention_took_is_none_of_its_own(tap: Tap) -> None:
    """Somebody takes a segment in the middle, retention those before it."""
    processor = in_segments(tap, 6)
    tap.end(processor)
    listed = segments(str(tap.root), processor.stream)

    def take(block: int) -> None:
        if block == 1:
            os.unlink(listed[3].path)
            tap.keep(sum(segment.size for segment in (listed[2], *listed[4:])))

    verdict = tap.verify(take)
    assert len(verdict.faults) == 1
    assert f"offset {listed[3].base} is gone" in verdict.faults[0]
    assert not verdict.complete


def test_lines_that_a_full_disk_took_late_explain_what_is_gone(tap: Tap) -> None:
    processor = in_segments(tap, 6)
    tap.end(processor)
    listed = segments(str(tap.root), processor.stream)
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            tap.ledger.deleted(processor.stream, listed[-1].base, START)

    verdict = tap.verify(lambda block: tap.keep(listed[-1].size, said=False) if block == 1 else None, sleep)
    assert (verdict.faults, verdict.complete, len(slept)) == ([], True, 2)


def test_a_stream_that_is_adopted_meanwhile_is_known(tap: Tap) -> None:
    """A framegate starts for the first time on what an earlier one, without a ledger, has left."""
    processor = FakeProcessor(tap.root)
    processor.block([b"a"], at_ns=START)
    processor.close()
    end = end_offset(str(tap.root), processor.stream)
    assert "not in the ledger" in tap.verify().faults[0]
    verdict = tap.verify(sleep=lambda seconds: tap.ledger.adopted(processor.stream, end, START))
    assert (verdict.faults, verdict.complete) == ([], True)


@pytest.mark.parametrize("begins", [False, True])
def test_a_framegate_that_begins_or_ends_meanwhile_was_there(tap: Tap, monkeypatch: pytest.MonkeyPatch, begins: bool) -> None:
    if begins:
        tap.lock.close()

    def reads(directory: str) -> Ledger:
        monkeypatch.undo()
        if begins:
            tap.lock = (tap.root / LOCK_NAME).open("rb")
            fcntl.flock(tap.lock, fcntl.LOCK_EX)
        tap.begin()
        found = read_ledger(directory)
        if not begins:
            tap.lock.close()
        return found

    monkeypatch.setattr(completeness, "read_ledger", reads)
    assert tap.verify() == Verdict([], [], True)


def test_totals_that_are_due_are_not_missing_and_those_that_will_not_come_are(tap: Tap) -> None:
    processor = tap.begin()
    processor.block([b"a", b"b"], at_ns=START)
    assert [(row.seen, row.stored, row.missing, row.state) for row in tap.verify().rows] == [(0, 2, 0, "open")]
    tap.ledger.ended(processor.stream, end_offset(str(tap.root), processor.stream), START, settled=True)
    assert [(row.seen, row.stored, row.missing, row.state) for row in tap.verify().rows] == [(0, 2, -2, "missing")]


def test_the_minutes_of_a_stream_that_retention_took_whole_are_cut(tap: Tap) -> None:
    """While another that lived beside it is there, and complete."""
    taken, beside = in_segments(tap, 3), in_segments(tap, 5, boot_id="b1")
    tap.end(taken)
    tap.end(beside)
    tap.take(taken.stream)
    verdict = tap.verify()
    assert (verdict.faults, verdict.complete) == ([], True)
    assert [(row.stream, row.listener, row.seen) for row in verdict.rows[:2]] == [(taken.stream, "main", 0)] * 2
    assert lines(verdict)[:2] == [("request", 0, 2, "cut"), ("response", 0, 2, "cut")], "from its birth to the last time that it spoke of"
    assert states(verdict)[2:] == ["complete"] * 5


def test_what_control_wrote_for_a_stream_that_retention_took_whole_is_cut_and_not_missing(tap: Tap) -> None:
    processor = in_segments(tap, 2)
    tap.ledger.ended(processor.stream, end_offset(str(tap.root), processor.stream), START, settled=True)
    seal_stream(str(tap.root), processor.stream, START)
    tap.recover(processor, FLAG_AT_MOST, 5, START + 3 * WINDOW_NS, stated=2)
    tap.ledger.born("edge.recovery.b0", [], START)
    tap.take(processor.stream)
    verdict = tap.verify()
    assert verdict.faults == []
    assert lines(verdict) == [
        ("request", 0, 0, "at_most"), ("request", 1, 1, "at_most"), ("request", 2, 2, "at_most"), ("request", 3, 3, "at_most"),
        ("response", 0, 1, "cut"),
    ]  # fmt: skip
    assert [(row.seen, row.cut) for row in verdict.rows] == [(2, True), (0, True), (0, False), (0, False), (0, True)]
    tap.take("edge.recovery.b0")
    assert lines(tap.verify()) == [("request", 0, 3, "cut"), ("response", 0, 3, "cut")]


def test_totals_that_control_stated_for_a_stream_that_is_gone_are_cut(tap: Tap) -> None:
    processor = in_segments(tap, 1)
    seal_stream(str(tap.root), processor.stream, START)
    tap.ledger.ended(processor.stream, end_offset(str(tap.root), processor.stream), START, settled=True)
    tap.recover(processor, 0, 0, stated=3)
    tap.ledger.born("edge.recovery.b0", [], START)
    tap.take(processor.stream)
    verdict = tap.verify()
    assert [(row.direction, row.seen, row.stored, row.missing, row.state) for row in verdict.rows] == [
        ("request", 3, 0, 3, "cut"),
        ("response", 0, 0, 0, "cut"),
    ]
    assert verdict.faults == []


def test_a_stream_of_whose_losses_retention_took_the_record_is_cut(tap: Tap) -> None:
    """It took what control wrote first, because every consumer had read that: nothing else says that frames are lost."""
    processor = in_segments(tap, 4)
    tap.end(processor)
    tap.recover(processor, FLAG_AT_MOST, 5, START + WINDOW_NS)
    tap.ledger.born("edge.recovery.b0", [], START + 9 * WINDOW_NS)
    tap.ledger.ended("edge.recovery.b0", end_offset(str(tap.root), "edge.recovery.b0"), START, settled=True)
    assert states(tap.verify()) == ["at_most", "at_most", "complete", "complete"]
    tap.take("edge.recovery.b0")
    verdict = tap.verify()
    assert lines(verdict) == [
        ("request", 0, 0, "cut"), ("request", 1, 1, "cut"), ("request", 2, 2, "complete"), ("request", 3, 3, "complete"), ("response", 0, 1, "cut"),
    ]  # fmt: skip
    assert (verdict.faults, {row.stream for row in verdict.rows}) == ([], {processor.stream})


def test_a_window_to_which_the_clock_was_set_back_is_cut_too(tap: Tap) -> None:
    """It was stated twice: what retention left of it adds up."""
    processor = in_segments(tap, 3)
    processor.block([bytes(600)], at_ns=START)
    processor.block([bytes(600)], at_ns=START + 3 * WINDOW_NS)
    tap.end(processor)
    assert set(states(tap.verify())) == {"complete"}
    later = (segment for segment in segments(str(tap.root), processor.stream) if segment.base)
    kept = next(segment for segment in later if next(walk_segment(segment, segment.base)).header.first_ns == START)
    tap.keep(sum(segment.size for segment in segments(str(tap.root), processor.stream) if segment.base >= kept.base))
    verdict = tap.verify()
    assert (verdict.faults, verdict.rows[0].seen, verdict.rows[0].missing) == ([], 1, 0)
    assert lines(verdict) == [("request", 0, 0, "cut"), ("request", 1, 2, "cut"), ("request", 3, 3, "complete"), ("response", 0, 2, "cut")]


@pytest.mark.parametrize("whole", [False, True])
def test_of_what_an_earlier_version_deleted_nobody_knows_more_than_when(tap: Tap, whole: bool) -> None:
    """And of an adopted stream not since when there was one."""
    processor = FakeProcessor(tap.root, segment_size=1000)
    for number in range(4):
        processor.block([bytes(600)], at_ns=START + number * WINDOW_NS)
    processor.close()
    tap.ledger.adopted(processor.stream, end_offset(str(tap.root), processor.stream), START)
    listed = segments(str(tap.root), processor.stream)
    gone = listed if whole else listed[:2]
    tap.ledger.deleted(processor.stream, gone[-1].limit, START + WINDOW_NS)
    for segment in gone:
        os.unlink(segment.path)
    verdict = tap.verify()
    assert verdict.faults == []
    if whole:
        assert [(row.listener, row.window_ns, row.last_window_ns, row.state) for row in verdict.rows] == [(None, 0, START + WINDOW_NS, "cut")] * 2
        assert [row.direction for row in verdict.rows] == ["request", "response"]
    else:
        assert [(row.window_ns, row.last_window_ns) for row in verdict.rows[:2]] == [(0, START), (START + WINDOW_NS,) * 2]
        assert states(verdict) == ["cut", "cut", "complete", "complete"]


def test_streams_that_the_ledger_forgot_are_cut_without_a_name(tap: Tap) -> None:
    taken, beside = in_segments(tap, 2), in_segments(tap, 5, boot_id="b1")
    tap.end(taken)
    tap.end(beside)
    tap.take(taken.stream)
    assert tap.ledger.compact({}, START + HOUR_NS) == 1
    verdict = tap.verify()
    assert [(row.stream, row.listener) for row in verdict.rows[:2]] == [("", None)] * 2
    assert lines(verdict)[:2] == [("request", 0, 1, "cut"), ("response", 0, 1, "cut")]
    assert (states(verdict)[2:], verdict.faults, verdict.complete) == (["complete"] * 5, [], True)


def test_an_empty_stream_was_cut_by_nobody(tap: Tap) -> None:
    processor = tap.begin()
    tap.ledger.ended(processor.stream, 0, START, settled=True)
    tap.ledger.compact({}, START)
    assert tap.verify() == Verdict([], [], True)


def test_a_living_stream_of_which_nothing_is_left_is_cut_up_to_what_comes(tap: Tap) -> None:
    processor = in_segments(tap, 2)
    for segment in segments(str(tap.root), processor.stream):
        tap.ledger.deleted(processor.stream, segment.limit, START + HOUR_NS, *segment_times(segment))
        os.unlink(segment.path)
    verdict = tap.verify()
    assert (lines(verdict), verdict.faults) == ([("request", 0, 1, "cut"), ("response", 0, 1, "cut")], [])
