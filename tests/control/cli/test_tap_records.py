"""Which records are wanted, and what a frame says of itself."""

import struct
from pathlib import Path
from typing import Any

import pytest

from framegate.control.cli.tap_records import Frame, Request, Wanted, frames_of
from framegate.proxy.config.model import TapRule
from framegate.proxy.tap.headers import BlockHeader
from framegate.proxy.tap.log_block import LogBlock
from framegate.proxy.tap.record import FLAG_UNKNOWN, KIND_CLOCK, KIND_FRAMES, KIND_GAP, KIND_RULES, KIND_TOTALS, ChunkRow
from tests.fakes.cases import each_of
from tests.fakes.tap_log import START_NS, FakeProcessor
from tests.fakes.tap_read import read_blocks

PRODUCE = struct.pack(">hhih", 0, 9, 7, 3) + b"abc" + bytes(20)
FETCH = struct.pack(">hhih", 1, 13, -8, -1) + bytes(5)


def blocks_of(root: Path, processor: FakeProcessor) -> list[LogBlock]:
    return list(read_blocks(str(root), processor.stream))


def shown(blocks: list[LogBlock], **wanted: Any) -> list[Frame]:
    which = Wanted(**wanted)
    return [
        frame
        for block in blocks
        for row in block.rows
        if row.kind == KIND_FRAMES and which.chunk(block, row)
        for frame in frames_of(block, row, which)
    ]


def kafka(root: Path, rule: TapRule | None = None) -> list[LogBlock]:
    processor = FakeProcessor(root, rule=rule)
    processor.send([PRODUCE, FETCH], protocol="kafka")
    processor.send(
        [struct.pack(">i", 7) + b"abc", struct.pack(">i", -8) + b"abcd"],
        direction="response",
        protocol="kafka",
        keys=[9, 1 << 16 | 13],
        latencies=[1500, -1],
    )
    processor.flush()
    return blocks_of(root, processor)


@pytest.mark.parametrize("body", [b"", b"short", struct.pack(">hhi", -1, 0, 1), struct.pack(">hhi", 0, -1, 1)])
def test_a_body_that_has_no_header_of_kafka_is_of_no_api(tmp_path: Path, body: bytes) -> None:
    processor = FakeProcessor(tmp_path)
    processor.block([body], protocol="kafka")
    assert [frame.request for frame in shown(blocks_of(tmp_path, processor))] == [None]


@pytest.mark.parametrize(
    ("body", "client"),
    [
        (struct.pack(">hhi", 18, 4, 1), None),
        (struct.pack(">hhih", 18, 4, 1, 0), ""),
        (struct.pack(">hhih", 18, 4, 1, 9) + b"abc", "abc"),
        (struct.pack(">hhih", 18, 4, 1, 2) + b"\xff\xfe", "\ufffd\ufffd"),
        (struct.pack(">hhih", 18, 4, 1, 600) + b"x" * 600, "x" * 512),
    ],
)
def test_a_clients_name_may_be_anything(tmp_path: Path, body: bytes, client: str | None) -> None:
    processor = FakeProcessor(tmp_path)
    processor.block([body], protocol="kafka")
    assert [frame.request for frame in shown(blocks_of(tmp_path, processor))] == [Request(18, 4, 1, client)]


@pytest.mark.parametrize(
    ("wanted", "sizes"),
    [
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
    ],
)
def test_each_filter_shows_what_it_says(tmp_path: Path, wanted: dict[str, Any], sizes: list[int]) -> None:
    assert [frame.size for frame in shown(kafka(tmp_path), **wanted)] == sizes


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


class Words:
    strings = ("main",)


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
