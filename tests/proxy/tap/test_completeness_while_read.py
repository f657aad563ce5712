"""``verify`` reads a log while retention, somebody else or a framegate is at work on it."""

import fcntl
import os

import pytest

from framegate.proxy.tap import completeness
from framegate.proxy.tap.completeness import RETRIES, Verdict
from framegate.proxy.tap.ledger import Ledger, read_ledger
from framegate.proxy.tap.log_reader import end_offset, segments, streams, walk
from framegate.proxy.tap.record import LOCK_NAME, WINDOW_NS
from tests.fakes.kept_tap import START, KeptTap, in_segments, states
from tests.fakes.tap_log import FakeProcessor


@pytest.mark.parametrize("segment_size", [1000, 3000])
@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize("left", [0, 1])
def test_what_retention_takes_while_it_is_read_is_no_fault(tap: KeptTap, segment_size: int, at: int, left: int) -> None:
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
def test_what_retention_takes_before_its_turn_has_come_is_no_fault(tap: KeptTap, whole: bool, forgets: bool) -> None:
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
def test_what_somebody_else_takes_while_it_is_read_is_a_fault(tap: KeptTap, at: int) -> None:
    processor = in_segments(tap, 6)
    tap.end(processor)
    slept: list[float] = []
    budget = segments(str(tap.root), processor.stream)[-1].size
    verdict = tap.verify(lambda block: tap.keep(budget, said=False) if block == at else None, slept.append)
    assert "retention took no more than what lies before 0" in verdict.faults[0]
    assert not verdict.complete
    assert "missing" in states(verdict)
    assert len(slept) == RETRIES, "a framegate is there, which may have had no room for the line"
    tap.lock.close()
    slept.clear()
    assert (tap.verify(sleep=slept.append).complete, slept) == (False, [])


def test_a_file_that_is_gone_before_what_retention_took_is_none_of_its_own(tap: KeptTap) -> None:
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


def test_lines_that_a_full_disk_took_late_explain_what_is_gone(tap: KeptTap) -> None:
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


def test_a_stream_that_is_adopted_meanwhile_is_known(tap: KeptTap) -> None:
    """A framegate starts for the first time on what an earlier one, without a ledger, has left."""
    processor = FakeProcessor(tap.root)
    processor.block([b"a"], at_ns=START)
    processor.close()
    end = end_offset(str(tap.root), processor.stream)
    assert "not in the ledger" in tap.verify().faults[0]
    verdict = tap.verify(sleep=lambda seconds: tap.ledger.adopted(processor.stream, end, START))
    assert (verdict.faults, verdict.complete) == ([], True)


@pytest.mark.parametrize("begins", [False, True])
def test_a_framegate_that_begins_or_ends_meanwhile_was_there(tap: KeptTap, monkeypatch: pytest.MonkeyPatch, begins: bool) -> None:
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
    assert tap.verify() == Verdict([], [], False)
