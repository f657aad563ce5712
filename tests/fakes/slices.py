"""Slices of a log, as a planner cuts them, and what is read of them."""

from collections.abc import Callable
from pathlib import Path

from framegate.proxy.pipeline.planner import Part, Planner, Slice
from framegate.proxy.pipeline.position import Position
from framegate.proxy.pipeline.slices import Block, read_slice
from framegate.proxy.tap import record
from tests.fakes.tap_log import FakeProcessor


def slices(directory: Path) -> list[Slice]:
    planner = Planner(directory, parallelism=1)
    return whole(planner.partitions(Position(planner.starts()), Position(planner.ends())))


def whole(planned: list[list[Part]]) -> list[Slice]:
    return [part for parts in planned for part in parts if isinstance(part, Slice)]


def blocks(directory: Path) -> list[Block]:
    return [block for part in slices(directory) for block in read_slice(part) if isinstance(block, Block)]


def segment(directory: Path) -> Path:
    (found,) = directory.glob("*/*.*")
    return found


def damage(position_of: Callable[[Block], int], directory: Path) -> list[Slice]:
    """Three blocks, one byte of the second one wrong; the slices as planned before."""
    processor = FakeProcessor(directory)
    for body in (b"one", b"two", b"three"):
        processor.block([body])
    planned = slices(directory)
    second = blocks(directory)[1]
    data = bytearray(segment(directory).read_bytes())
    data[record.SEGMENT_HEADER_BYTES + second.header.offset + position_of(second)] ^= 1
    segment(directory).write_bytes(data)
    return planned
