"""A line for each record."""

from pathlib import Path
from typing import Any

from framegate.control.cli.tap_lines import api_text, entry_line, frame_line, is_whole, moment_text
from framegate.control.cli.tap_records import Entry, Frame, Request, Wanted, frames_of
from framegate.proxy.config.model import TapRule
from framegate.proxy.tap.record import (
    FLAG_AT_MOST,
    FLAG_UNKNOWN,
    KIND_CLOCK,
    KIND_GAP,
    KIND_RULES,
    KIND_TOTALS,
    REASONS,
    ChunkRow,
)
from tests.fakes.cases import each_of
from tests.fakes.tap_log import START_NS, FakeProcessor
from tests.fakes.tap_read import read_blocks

START = "2023-11-14T22:13:20.000000Z"


def first(root: Path, bodies: list[bytes], rule: TapRule | None = None, **facts: Any) -> Frame:
    processor = FakeProcessor(root, rule=rule)
    processor.block(bodies, **facts)
    (block, *_) = read_blocks(str(root), processor.stream)
    return next(frames_of(block, block.rows[0], Wanted()))


def test_moments_are_what_since_takes() -> None:
    assert moment_text(START_NS + 1_999) == "2023-11-14T22:13:20.000001Z"
    assert moment_text(-1) == "1969-12-31T23:59:59.999999Z"
    assert moment_text(2**63 - 1) == "2262-04-11T23:47:16.854775Z"
    assert moment_text(10**30) == f"{10**30}ns"


@each_of(
    ("request_", "text"),
    [
        (None, "-"),
        (Request(0, 9, 7, "me"), "Produce v9 #7 me"),
        (Request(1, 13, None, None), "Fetch v13"),
        (Request(999, 0, -1, ""), "api-999 v0 #-1"),
    ],
)
def test_apis_have_names(request_: Request | None, text: str) -> None:
    assert api_text(request_) == text


def test_what_was_not_kept_is_said(tmp_path: Path) -> None:
    cut = first(tmp_path / "a", [b"a" * 100], TapRule(name="cut", max_frame_bytes=10))
    assert frame_line(cut, 2).endswith("cut  61 61 |aa| (10 of 100 B kept)")
    lengths = first(tmp_path / "b", [b"a" * 100], TapRule(name="n", capture="lengths"))
    assert frame_line(lengths, 2).endswith("n  (0 of 100 B kept)")
    hashed = first(tmp_path / "c", [b"a" * 100], TapRule(name="n", capture="hash"))
    assert frame_line(hashed, 2).endswith(f"n  (hash {bytes(hashed.kept).hex()})")
    withheld = first(tmp_path / "d", [b"secret"], sensitive=[0], protocol="kafka")
    assert frame_line(withheld, 16).endswith("all  (withheld)")
    assert "secret" not in frame_line(withheld, 16)
    assert [is_whole(frame) for frame in (cut, lengths, hashed, withheld)] == [False] * 4
    assert is_whole(first(tmp_path / "e", [b""]))


def test_what_clients_wrote_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    frame = first(tmp_path, [b"x"])
    line = frame_line(frame._replace(request=Request(0, 9, 1, "\x1b[2J\n\u202e")), 16)
    assert line.isprintable()
    assert "\\x1b[2J\\n\\u202e" in line


class Words:
    strings = ("main", "all", '[{"name":"all","apis":[]},{"name":"errors","apis":[]}]', "[]", "of another")

    def word(self, index: int) -> str | None:
        return None if index < 0 else self.strings[index]


def entry(**facts: int) -> Entry:
    row = ChunkRow(*([0] * len(ChunkRow._fields)))._replace(capture_ns=START_NS + 5000, connection=-1, listener=-1, rule=-1, **facts)
    return Entry(row, Words())  # type: ignore[arg-type]


def test_a_gap_says_how_much_is_missing_and_how_far_that_is_known() -> None:
    facts = {"kind": KIND_GAP, "lost_from_ns": START_NS, "lost_bytes": 2048}
    gap = entry(**facts, lost_frames=12, reason=REASONS.index("queue_full"), original_bytes=START_NS + 3000)
    where = Entry(gap.row._replace(connection=5, listener=0, rule=1, direction=1), gap.block)
    span = f"{START} to 2023-11-14T22:13:20.000003Z"
    assert entry_line(where) == f"-- 12 frames lost: queue_full (exact), 2 KiB, {span}, 0-0-5 response main all"
    died = {**facts, "reason": REASONS.index("processor_died")}
    to_row = f"{START} to 2023-11-14T22:13:20.000005Z"
    assert (
        entry_line(entry(**died, lost_frames=1, flags=FLAG_AT_MOST)) == f"-- at most 1 frame lost: processor_died (at_most), 2 KiB, {to_row}, request"
    )
    assert entry_line(entry(**died, flags=FLAG_UNKNOWN)).startswith("-- unknown frames lost: processor_died (unknown)")
    assert entry_line(entry(**facts, lost_frames=3, reason=REASONS.index("sampled"))).startswith("-- 3 frames left out: sampled (exact)")


def test_other_rows_are_lines_too() -> None:
    totals = entry(kind=KIND_TOTALS, lost_frames=1000, lost_bytes=10, lost_from_ns=START_NS, original_bytes=START_NS)
    assert entry_line(totals) == f"-- 1,000 frames seen, 10 B, {START}, request"
    assert entry_line(entry(kind=KIND_CLOCK, lost_from_ns=START_NS + 9000)) == (
        "-- the clock was set back from 2023-11-14T22:13:20.000009Z to 2023-11-14T22:13:20.000005Z"
    )
    rules = entry(kind=KIND_RULES)
    lines = [entry_line(Entry(rules.row._replace(rule=word), rules.block)) for word in (2, 3, 4)]
    assert [line.partition(" tap rules from here on: ")[2] for line in lines] == ["all, errors", "none", "of another"]
