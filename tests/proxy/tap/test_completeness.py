"""``verify`` says "complete" when all of a log is there, and never when something is missing."""

import os
import shutil
from pathlib import Path

import pytest

from framegate.proxy.config.model import TapRule
from framegate.proxy.tap.completeness import EVERYTHING, Verdict, verify
from framegate.proxy.tap.log_reader import end_offset, segments, walk
from framegate.proxy.tap.record import FLAG_AT_MOST, FLAG_UNKNOWN, WINDOW_NS
from tests.fakes.kept_tap import HOUR_NS, START, KeptTap, counts, lines, states
from tests.fakes.runs import pieces_of


@pytest.mark.parametrize(("later_ns", "read"), [(-1, 6), (0, 6), (1, 5)])
def test_a_time_is_judged_by_what_was_written_an_hour_before_and_later(tap: KeptTap, later_ns: int, read: int) -> None:
    processor = tap.begin(segment_size=1000)
    for number in range(6):
        processor.block([bytes(600)], at_ns=START + 2 * number * HOUR_NS)
    tap.end(processor)
    tap.lock.close()
    listed = segments(str(tap.root), processor.stream)
    for number, segment in enumerate(listed):
        os.utime(segment.path, ns=(0, START + 2 * number * HOUR_NS))
    blocks: list[int] = []
    assert verify(str(tap.root), blocks.append, within=(START + HOUR_NS + later_ns, EVERYTHING)).complete
    assert len(blocks) - 1 == read, "and the block of the end"
    for number, fault in ((0, False), (2, True), (4, False)):
        path = Path(listed[number].path)
        whole = path.read_bytes()
        path.write_bytes(whole[:-1])
        verdict = verify(str(tap.root), within=(START + 4 * HOUR_NS, START + 4 * HOUR_NS + WINDOW_NS))
        assert (bool(verdict.faults), verdict.complete) == (fault, not fault), (number, verdict.faults)
        assert not verify(str(tap.root)).complete
        path.write_bytes(whole)
    assert [row.window_ns for row in verify(str(tap.root), within=(START + WINDOW_NS, START + 4 * HOUR_NS)).rows] == [START + 2 * HOUR_NS]


def test_an_empty_directory_proves_nothing(tap: KeptTap) -> None:
    processor = tap.begin()
    tap.ledger.ended(processor.stream, 0, START, settled=True)
    assert tap.verify() == Verdict([], [], False)
    tap.ledger.compact({}, START)
    assert tap.verify() == Verdict([], [], False), "an empty stream that was left out is not cut"


def test_what_could_not_be_settled_or_the_ledger_does_not_know_is_a_fault(tap: KeptTap) -> None:
    """Lines at its end can be cut off without a trace in the file."""
    processor = tap.begin()
    processor.block([b"a"], at_ns=START)
    tap.end(processor, settled=False)
    assert "could not be written down" in tap.verify().faults[0]
    tap.ledger.ended(processor.stream, end_offset(str(tap.root), processor.stream), START, settled=True)
    assert tap.verify().complete
    (tap.root / "_ledger.jsonl").write_bytes(b"")
    verdict = tap.verify()
    assert (verdict.faults, verdict.complete) == (["edge.0.b0 is not in the ledger; it is not known what else the ledger lacks"], False)


def test_all_that_was_seen_is_there(tap: KeptTap) -> None:
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


def test_what_is_withheld_and_sampled_is_complete_and_apart(tap: KeptTap) -> None:
    processor = tap.begin()
    processor.block([b"secret", b"", b"open"], at_ns=START, sensitive=[0, 1])
    tap.end(processor)
    sampled = tap.begin(boot_id="b1", rule=TapRule(name="none", sample_connections=0.0))
    sampled.block([b"x"] * 4, at_ns=START)
    tap.end(sampled)
    verdict = tap.verify()
    assert [counts(row) for row in verdict.rows] == [(3, 2, 1, 0, 0), (4, 0, 0, 4, 0)]
    assert verdict.complete


def test_while_it_is_written_the_last_window_is_open(tap: KeptTap) -> None:
    processor = tap.begin()
    processor.block([b"a"], at_ns=START)
    processor.block([b"b"], at_ns=START + WINDOW_NS)
    verdict = tap.verify()
    assert (states(verdict), verdict.complete) == (["complete", "open"], True)
    assert [(row.seen, row.stored, row.missing) for row in verdict.rows] == [(1, 1, 0), (0, 1, 0)], "totals that are due are not missing"
    copy = tap.root.with_name("copy")
    shutil.copytree(tap.root, copy)
    assert not verify(str(copy)).complete, "as fresh as can be, and nobody holds it"
    tap.beat(3600)
    assert tap.verify().complete, "our clock may be ahead: who holds the lock is there"
    tap.lock.close()
    verdict = tap.verify()
    assert "was being written" in verdict.faults[0]
    assert (states(verdict), verdict.complete) == (["complete", "missing"], False), "who wrote it is gone"
    tap.ledger.ended(processor.stream, end_offset(str(tap.root), processor.stream), START, settled=True)
    found = [(row.seen, row.stored, row.missing, row.state) for row in tap.verify().rows]
    assert found == [(1, 1, 0, "complete"), (0, 1, -1, "missing")], "totals that will not come any more"


@pytest.mark.parametrize(("flags", "state"), [(FLAG_AT_MOST, "at_most"), (FLAG_UNKNOWN, "unknown"), (0, "lost")])
def test_what_control_says_for_the_dead_counts_in_their_windows(tap: KeptTap, flags: int, state: str) -> None:
    processor = tap.begin()
    for number in range(3):
        processor.block([b"a"], at_ns=START + number * WINDOW_NS)
    tap.end(processor)
    tap.recover(processor, flags, 0 if flags == FLAG_UNKNOWN else 5, START + WINDOW_NS)
    verdict = tap.verify()
    assert states(verdict) == [state, state, "complete"]
    assert {row.stream for row in verdict.rows} == {processor.stream}
    assert [row.at_most for row in verdict.rows] == ([5, 5, 0] if flags == FLAG_AT_MOST else [0, 0, 0])
    assert [row.shared for row in verdict.rows] == ([0, 0, 0] if flags else [5, 5, 0])
    assert not verdict.complete


def test_what_nobody_was_named_for_is_said_too(tap: KeptTap) -> None:
    processor = tap.begin()
    tap.ledger.ended(processor.stream, 0, START, settled=True)
    tap.recover(processor, FLAG_UNKNOWN, 0, listener=None)
    assert [(row.listener, row.state) for row in tap.verify().rows] == [(None, "unknown")]


def test_whoever_takes_a_segment_or_a_stream_is_found_out(tap: KeptTap) -> None:
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


def test_a_block_that_is_damaged_is_missing_and_what_follows_is_read(tap: KeptTap) -> None:
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


def test_a_frame_of_which_pieces_are_gone_is_lost(tap: KeptTap) -> None:
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


def test_without_a_ledger_and_before_version_3_nothing_is_proved(tap: KeptTap) -> None:
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
    assert "the ledger is missing" in tap.verify().faults[0]
