"""Which records are wanted, what a frame says of itself, and the line of each record."""

import struct
from pathlib import Path
from typing import Any

from framegate.control.cli.tap_records import Entry, Frame, Request, Wanted, api_text, entry_line, frame_line, frames_of, is_whole, moment_text
from framegate.proxy.config.model import TapRule
from framegate.proxy.tap.headers import BlockHeader
from framegate.proxy.tap.log_block import LogBlock
from framegate.proxy.tap.record import FLAG_AT_MOST, FLAG_UNKNOWN, KIND_CLOCK, KIND_FRAMES, KIND_GAP, KIND_RULES, KIND_TOTALS, REASONS, ChunkRow
from tests.fakes.cases import each_of
from tests.fakes.tap_log import START_NS, FakeProcessor
from tests.fakes.tap_read import read_blocks

PRODUCE = struct.pack(">hhih", 0, 9, 7, 3) + b"abc" + bytes(20)
FETCH = struct.pack(">hhih", 1, 13, -8, -1) + bytes(5)


def shown(blocks: list[LogBlock], **wanted: Any) -> list[Frame]:
    which = Wanted(**wanted)
    return [
        frame
        for block in blocks
        for row in block.rows
        if row.kind == KIND_FRAMES and which.chunk(block, row)
        for frame in frames_of(block, row, which)
    ]


def kafka(root: Path) -> list[LogBlock]:
    processor = FakeProcessor(root)
    processor.send([PRODUCE, FETCH], protocol="kafka")
    processor.send(
        [struct.pack(">i", 7) + b"abc", struct.pack(">i", -8) + b"abcd"],
        direction="response",
        protocol="kafka",
        keys=[9, 1 << 16 | 13],
        latencies=[1500, -1],
    )
    processor.flush()
    return list(read_blocks(str(root), processor.stream))


def test_a_request_is_read_from_its_kafka_header(tmp_path: Path) -> None:
    cases: list[tuple[bytes, Request | None]] = [
        (b"", None),
        (b"short", None),
        (struct.pack(">hhi", -1, 0, 1), None),
        (struct.pack(">hhi", 0, -1, 1), None),
        (struct.pack(">hhi", 18, 4, 1), Request(18, 4, 1, None)),
        (struct.pack(">hhih", 18, 4, 1, 0), Request(18, 4, 1, "")),
        (struct.pack(">hhih", 18, 4, 1, 9) + b"abc", Request(18, 4, 1, "abc")),
        (struct.pack(">hhih", 18, 4, 1, 2) + b"\xff\xfe", Request(18, 4, 1, "\ufffd\ufffd")),
        (struct.pack(">hhih", 18, 4, 1, 600) + b"x" * 600, Request(18, 4, 1, "x" * 512)),
    ]
    processor = FakeProcessor(tmp_path)
    processor.block([body for body, _ in cases], protocol="kafka")
    assert [frame.request for frame in shown(list(read_blocks(str(tmp_path), processor.stream)))] == [request for _, request in cases]


def test_each_filter_shows_what_it_says(tmp_path: Path) -> None:
    cases: list[tuple[dict[str, Any], list[int]]] = [
        ({}, [33, 15, 7, 8]),
        ({"min_size": 8}, [33, 15, 8]),
        ({"max_size": 8}, [7, 8]),
        ({"min_size": 8, "max_size": 15}, [15, 8]),
        ({"apis": frozenset([0])}, [33, 7]),
        ({"apis": frozenset([0, 1])}, [33, 15, 7, 8]),
        ({"apis": frozenset([3])}, []),
        ({"client": "a*"}, [33]),
        ({"client": "A*"}, []),
        ({"client": "*"}, [33]),
        ({"direction": "request"}, [33, 15]),
        ({"direction": "response", "apis": frozenset([1])}, [8]),
        ({"listeners": frozenset(["main"])}, [33, 15, 7, 8]),
        ({"listeners": frozenset(["other"])}, []),
        ({"connections": frozenset([1])}, [33, 15, 7, 8]),
        ({"connections": frozenset([2])}, []),
        ({"since_ns": START_NS, "until_ns": START_NS + 1}, [33, 15, 7, 8]),
        ({"since_ns": START_NS + 1}, []),
        ({"until_ns": START_NS}, []),
    ]
    blocks = kafka(tmp_path)
    found = [(wanted, [frame.size for frame in shown(blocks, **wanted)]) for wanted, _ in cases]
    assert found == cases


class Words:
    strings = ("main", "all", '[{"name":"all","apis":[]},{"name":"errors","apis":[]}]', "[]", "of another")

    def word(self, index: int) -> str | None:
        return None if index < 0 else self.strings[index]


def header(**facts: int) -> BlockHeader:
    return BlockHeader(*([0] * len(BlockHeader._fields)))._replace(**facts)


@each_of(
    ("facts", "may"),
    [
        ({"first_ns": 100, "last_ns": 199, "request_frames": 1}, False),
        ({"first_ns": 100, "last_ns": 200, "request_frames": 1}, True),
        ({"first_ns": 299, "last_ns": 400, "response_frames": 1}, True),
        ({"first_ns": 300, "last_ns": 400, "response_frames": 1}, False),
        ({"first_ns": 300, "last_ns": 400, "response_frames": 1, "lost_frames": 1}, True),  # a gap of long ago
        ({"first_ns": 300, "last_ns": 400}, True),  # gaps without a count
        ({"first_ns": 400, "last_ns": 100, "request_frames": 1}, True),  # the clock was set back
    ],
)
def test_a_block_is_passed_over_only_when_nothing_in_it_can_be_of_the_time(facts: dict[str, int], may: bool) -> None:
    assert Wanted(since_ns=200, until_ns=300).block(header(**facts)) is may


@each_of(
    ("wanted", "row", "may"),
    [
        ({}, {"kind": KIND_TOTALS}, False),
        ({"totals": True}, {"kind": KIND_TOTALS}, True),
        ({"totals": True, "connections": frozenset([5])}, {"kind": KIND_TOTALS, "connection": -1}, True),
        ({"connections": frozenset([5])}, {"kind": KIND_GAP, "connection": -1}, True),
        ({"connections": frozenset([5])}, {"kind": KIND_GAP, "connection": 6}, False),
        ({"listeners": frozenset(["x"])}, {"kind": KIND_GAP, "listener": -1, "flags": FLAG_UNKNOWN}, True),
        ({"listeners": frozenset(["x"])}, {"kind": KIND_GAP, "listener": 0}, False),
        ({"apis": frozenset([1]), "client": "x", "min_size": 9}, {"kind": KIND_GAP}, True),
        ({"listeners": frozenset(["x"]), "direction": "response"}, {"kind": KIND_CLOCK}, True),
        ({"connections": frozenset([5])}, {"kind": KIND_RULES}, True),
        ({"since_ns": 50, "until_ns": 60}, {"kind": KIND_GAP, "capture_ns": 90, "lost_from_ns": 30, "original_bytes": 50}, True),
        ({"since_ns": 51, "until_ns": 60}, {"kind": KIND_GAP, "capture_ns": 90, "lost_from_ns": 30, "original_bytes": 50}, False),
        ({"until_ns": 30}, {"kind": KIND_GAP, "capture_ns": 90, "lost_from_ns": 30, "original_bytes": 50}, False),
        ({"since_ns": 60}, {"kind": KIND_GAP, "capture_ns": 90, "lost_from_ns": 30}, True),  # of version 2: until the row, or earlier
    ],
)
def test_rows_that_are_no_frames_are_shown_when_they_may_concern_what_is_wanted(wanted: dict[str, Any], row: dict[str, int], may: bool) -> None:
    full = ChunkRow(*([0] * len(ChunkRow._fields)))._replace(**row)
    assert Wanted(**wanted).chunk(Words(), full) is may  # type: ignore[arg-type]


STARTED = "2023-11-14T22:13:20.000000Z"


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


def test_apis_have_names() -> None:
    requests = [None, Request(0, 9, 7, "me"), Request(1, 13, None, None), Request(999, 0, -1, "")]
    assert [api_text(request) for request in requests] == ["-", "Produce v9 #7 me", "Fetch v13", "api-999 v0 #-1"]


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


def entry(**facts: int) -> Entry:
    row = ChunkRow(*([0] * len(ChunkRow._fields)))._replace(capture_ns=START_NS + 5000, connection=-1, listener=-1, rule=-1, **facts)
    return Entry(row, Words())  # type: ignore[arg-type]


def test_a_gap_says_how_much_is_missing_and_how_far_that_is_known() -> None:
    facts = {"kind": KIND_GAP, "lost_from_ns": START_NS, "lost_bytes": 2048}
    gap = entry(**facts, lost_frames=12, reason=REASONS.index("queue_full"), original_bytes=START_NS + 3000)
    where = Entry(gap.row._replace(connection=5, listener=0, rule=1, direction=1), gap.block)
    span = f"{STARTED} to 2023-11-14T22:13:20.000003Z"
    assert entry_line(where) == f"-- 12 frames lost: queue_full (exact), 2 KiB, {span}, 0-0-5 response main all"
    died = {**facts, "reason": REASONS.index("processor_died")}
    to_row = f"{STARTED} to 2023-11-14T22:13:20.000005Z"
    assert (
        entry_line(entry(**died, lost_frames=1, flags=FLAG_AT_MOST)) == f"-- at most 1 frame lost: processor_died (at_most), 2 KiB, {to_row}, request"
    )
    assert entry_line(entry(**died, flags=FLAG_UNKNOWN)).startswith("-- unknown frames lost: processor_died (unknown)")
    assert entry_line(entry(**facts, lost_frames=3, reason=REASONS.index("sampled"))).startswith("-- 3 frames left out: sampled (exact)")


def test_other_rows_are_lines_too() -> None:
    totals = entry(kind=KIND_TOTALS, lost_frames=1000, lost_bytes=10, lost_from_ns=START_NS, original_bytes=START_NS)
    assert entry_line(totals) == f"-- 1,000 frames seen, 10 B, {STARTED}, request"
    assert entry_line(entry(kind=KIND_CLOCK, lost_from_ns=START_NS + 9000)) == (
        "-- the clock was set back from 2023-11-14T22:13:20.000009Z to 2023-11-14T22:13:20.000005Z"
    )
    rules = entry(kind=KIND_RULES)
    lines = [entry_line(Entry(rules.row._replace(rule=word), rules.block)) for word in (2, 3, 4)]
    assert [line.partition(" tap rules from here on: ")[2] for line in lines] == ["all, errors", "none", "of another"]
