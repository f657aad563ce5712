from pathlib import Path

import pytest

from framegate.proxy.tap.log_reader import first_offset, segments, streams
from framegate.proxy.tap.record import FLAG_AT_MOST, FLAG_UNKNOWN, REASON_DISK_FULL, REASON_NONE, REASON_PROCESSOR_DIED, WINDOW_NS, certainty
from framegate.proxy.tap.recovery import ends_finally, seal_dead
from framegate.proxy.tap.settlement import Bound, Entry, missing_entries, recovery_stream, settled_end, write_settlement
from framegate.proxy.tap.sums import PairSums, WindowSums
from tests.fakes.cases import each_of
from tests.fakes.disk import FakeDisk
from tests.fakes.tap_read import read_blocks, segment_facts

PAIR = ("main", "request")
W = WINDOW_NS
END = 10 * W + 100
DIED = REASON_PROCESSOR_DIED


def died(frames: int | None) -> Bound:
    return Bound(frames, False, DIED, 7 * W + 5, END)


def ended(frames: int) -> Bound:
    return Bound(frames, True, REASON_DISK_FULL, 7 * W + 5, END)


def pair_sums(**windows: tuple[int, int]) -> PairSums:
    """By ``w<number>``: frames and those stated; the first frame of a window comes 10 ns into it, the last 20 ns."""
    sums = PairSums()
    for name, (frames, stated) in windows.items():
        number = int(name[1:])
        sums.windows[number] = WindowSums(frames, 10 * frames, stated, 10 * stated, number * W + 10 if frames else 0)
        sums.last_ns = number * W + 20
    return sums


def gap(flags: int, frames: int, from_ns: int, until_ns: int, reason: int = DIED) -> Entry:
    return Entry(*PAIR, reason, flags, frames, 0, from_ns, until_ns)


def totals(frames: int, size: int, from_ns: int, until_ns: int) -> Entry:
    return Entry(*PAIR, REASON_NONE, 0, frames, size, from_ns, until_ns)


@each_of(
    ("case", "sums", "bound", "entries"),
    [
        ("nothing is missing", pair_sums(w8=(3, 3), w9=(4, 4)), ended(7), []),
        ("nothing is missing", pair_sums(w8=(3, 3), w9=(4, 4)), died(7), []),
        ("nothing was seen", PairSums(), died(0), []),
        (
            "at most what was reserved; the last window is stated from the log",
            pair_sums(w8=(3, 3), w10=(4, 0)),
            died(17),
            [gap(FLAG_AT_MOST, 10, 10 * W + 10, END), totals(4, 40, 10 * W + 10, END)],
        ),
        ("died before its first block", PairSums(), died(64), [gap(FLAG_AT_MOST, 64, 7 * W + 5, END)]),
        ("totals are all there", pair_sums(w8=(3, 3)), died(5), [gap(FLAG_AT_MOST, 2, 8 * W + 20, END)]),
        (
            "a full disk before an orderly end: exact, and seen",
            pair_sums(w9=(3, 3), w10=(4, 0)),
            ended(12),
            [gap(0, 5, 10 * W + 10, END, REASON_DISK_FULL), totals(4, 40, 10 * W + 10, END), totals(5, 0, 10 * W + 10, 10 * W + 10)],
        ),
        ("a full disk from the start", PairSums(), ended(6), [gap(0, 6, 7 * W + 5, END, REASON_DISK_FULL), totals(6, 0, 7 * W + 5, 7 * W + 5)]),
        ("not known, no block", PairSums(), died(None), [gap(FLAG_UNKNOWN, 0, 7 * W + 5, END)]),
        (
            "not known, and the log is stated all the same",
            pair_sums(w8=(3, 3), w9=(4, 1)),
            died(None),
            [gap(FLAG_UNKNOWN, 0, 9 * W + 10, END), totals(3, 30, 9 * W + 10, 10 * W - 1)],
        ),
        (
            "the clock was set back: the gap reaches to that time",
            pair_sums(w12=(4, 0)),
            died(5),
            [gap(FLAG_AT_MOST, 1, END, 12 * W + 10), totals(4, 40, 12 * W + 10, 12 * W + 10)],
        ),
    ],
)
def test_entries_say_what_a_stream_lacks(case: str, sums: PairSums, bound: Bound, entries: list[Entry]) -> None:
    assert missing_entries(PAIR, sums, bound) == entries


@each_of("bound", [died(30), died(None), ended(24)])
def test_what_totals_say_was_seen_and_is_not_there_is_missing_in_that_window(bound: Bound) -> None:
    """The block of the frames failed, the next one with the totals did not, and then the disk was full for good."""
    entries = missing_entries(PAIR, pair_sums(w8=(10, 15), w9=(4, 0)), bound)
    assert entries[0] == gap(0, 5, 8 * W, 9 * W - 1, bound.reason)
    rest = {30: (FLAG_AT_MOST, 11), None: (FLAG_UNKNOWN, 0), 24: (0, 5)}[bound.frames]
    assert entries[1] == gap(*rest, 9 * W + 10, END, bound.reason)
    assert entries[2] == totals(4, 40, 9 * W + 10, 10 * W - 1)
    assert entries[3:] == ([totals(5, 0, 9 * W + 10, 9 * W + 10)] if bound.exact else [])


def test_a_gap_over_windows_may_be_what_totals_say_was_seen() -> None:
    sums = pair_sums(w8=(10, 15), w9=(4, 6))
    sums.shared, sums.shared_until_ns = 9, 9 * W + 15
    assert missing_entries(PAIR, sums, ended(23)) == [totals(2, 0, 9 * W + 15, 9 * W + 15)], "two of the nine are in no totals"
    sums.windows[9].stated = 8
    assert missing_entries(PAIR, sums, ended(23)) == []


ENTRIES = [totals(4, 40, 9 * W, 9 * W + 5), gap(FLAG_AT_MOST, 3, 9 * W, END), Entry("b", "response", DIED, FLAG_UNKNOWN, 0, 0, 9 * W, END)]


def test_a_settlement_is_one_block_of_a_stream_of_its_own_that_ends_finally(tmp_path: Path) -> None:
    assert settled_end(str(tmp_path), "edge.0.b0") is None
    end = write_settlement(str(tmp_path), "edge.0.b0", ENTRIES)
    stream = recovery_stream("edge.0.b0")
    assert streams(str(tmp_path)) == [stream] == ["edge.recovery.b0"]
    (block,) = read_blocks(str(tmp_path), stream, first_offset(str(tmp_path), stream))
    assert [
        (found.listener, found.direction, found.frames, found.from_ns, found.until_ns, found.certainty, found.reason) for found in block.gaps()
    ] == [
        ("main", "request", 3, 9 * W, END, "at_most", "processor_died"),
        ("b", "response", 0, 9 * W, END, "unknown", "processor_died"),
    ]
    assert [(found.listener, found.frames, found.bytes, found.from_ns, found.until_ns) for found in block.totals()] == [
        ("main", 4, 40, 9 * W, 9 * W + 5)
    ]
    assert {certainty(row.flags) for row in block.rows} == {"exact", "at_most", "unknown"}
    (segment,) = segments(str(tmp_path), stream)
    assert segment.sealed
    assert segment_facts(segment.path)["slot"] == "recovery"
    assert ends_finally(str(tmp_path), stream)
    assert settled_end(str(tmp_path), "edge.0.b0") == end == segment.limit


@pytest.mark.parametrize("failing", [{"write"}, {"rename"}, {"write", "remove", "truncate"}, {"create"}, set()])
def test_a_settlement_that_the_disk_did_not_take_is_written_at_the_next_try_and_once(tmp_path: Path, failing: set[str]) -> None:
    disk = FakeDisk(room=None if failing else 4200)  # room for half of it
    disk.failing = failing
    for _ in range(2):
        with pytest.raises(OSError, match=r"Input/output|No space"):
            write_settlement(str(tmp_path), "edge.0.b0", ENTRIES, disk)
        if failing == {"rename"}:
            break
        assert settled_end(str(tmp_path), "edge.0.b0") is None
    disk.failing, disk.room = set(), None
    write_settlement(str(tmp_path), "edge.0.b0", ENTRIES, disk)
    stream = recovery_stream("edge.0.b0")
    assert [sealed.error for sealed in seal_dead(str(tmp_path), set(), 1)] == [""] * (failing == {"rename"})
    assert [listed.sealed for listed in segments(str(tmp_path), stream)] == [True]
    assert sum(len(list(block.gaps())) for block in read_blocks(str(tmp_path), stream)) == 2
    assert ends_finally(str(tmp_path), stream)
