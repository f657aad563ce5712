"""What retention took is ``cut``, and hides nothing else."""

import os

import pytest

from framegate.proxy.tap.log_reader import end_offset, segments, walk_segment
from framegate.proxy.tap.record import FLAG_AT_MOST, WINDOW_NS
from framegate.proxy.tap.recovery import seal_stream
from framegate.proxy.tap.sums import segment_times
from tests.fakes.kept_tap import HOUR_NS, START, KeptTap, in_segments, lines, states
from tests.fakes.tap_log import FakeProcessor


def test_what_retention_took_is_cut_and_what_somebody_else_took_is_a_fault(tap: KeptTap) -> None:
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


def test_a_cut_or_an_open_window_hides_no_loss(tap: KeptTap) -> None:
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


def test_the_minutes_of_a_stream_that_retention_took_whole_are_cut(tap: KeptTap) -> None:
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


def test_what_control_wrote_for_a_stream_that_retention_took_whole_is_cut_and_not_missing(tap: KeptTap) -> None:
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


def test_totals_that_control_stated_for_a_stream_that_is_gone_are_cut(tap: KeptTap) -> None:
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


def test_a_stream_of_whose_losses_retention_took_the_record_is_cut(tap: KeptTap) -> None:
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


def test_a_window_to_which_the_clock_was_set_back_is_cut_too(tap: KeptTap) -> None:
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
def test_of_what_an_earlier_version_deleted_nobody_knows_more_than_when(tap: KeptTap, whole: bool) -> None:
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


def test_streams_that_the_ledger_forgot_are_cut_without_a_name(tap: KeptTap) -> None:
    taken, beside = in_segments(tap, 2), in_segments(tap, 5, boot_id="b1")
    tap.end(taken)
    tap.end(beside)
    tap.take(taken.stream)
    assert tap.ledger.compact({}, START + HOUR_NS) == 1
    verdict = tap.verify()
    assert [(row.stream, row.listener) for row in verdict.rows[:2]] == [("", None)] * 2
    assert lines(verdict)[:2] == [("request", 0, 1, "cut"), ("response", 0, 1, "cut")]
    assert (states(verdict)[2:], verdict.faults, verdict.complete) == (["complete"] * 5, [], True)


def test_a_living_stream_of_which_nothing_is_left_is_cut_up_to_what_comes(tap: KeptTap) -> None:
    processor = in_segments(tap, 2)
    for segment in segments(str(tap.root), processor.stream):
        tap.ledger.deleted(processor.stream, segment.limit, START + HOUR_NS, *segment_times(segment))
        os.unlink(segment.path)
    verdict = tap.verify()
    assert (lines(verdict), verdict.faults) == ([("request", 0, 1, "cut"), ("response", 0, 1, "cut")], [])
