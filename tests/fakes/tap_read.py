"""The tap's log, read whole: blocks, frames and gaps, as tests look at it."""

import os
from collections.abc import Iterator
from typing import Any

from framegate.proxy.tap.headers import decode_segment_header
from framegate.proxy.tap.log_block import Frame, GapRecord, LogBlock
from framegate.proxy.tap.log_reader import START, DamagedBlockError, Joiner, first_offset, open_segment, read_block, segments, streams, walk
from framegate.proxy.tap.record import SEGMENT_HEADER_BYTES


def segment_facts(path: str) -> dict[str, str | int]:
    """What a segment's header says: node, slot, stream, boot_id, created_ns, base, version. Raises FormatError: not a segment; FileNotFoundError: it
    was deleted.
    """
    fd = open_segment(path)
    try:
        return decode_segment_header(os.pread(fd, SEGMENT_HEADER_BYTES, 0))
    finally:
        os.close(fd)


def read_blocks(root: str, stream: str, offset: int = START, limit: int | None = None) -> Iterator[LogBlock]:
    """``walk`` and ``read_block`` in one; raises what they raise. A damaged block with nothing behind it, in a segment that is not sealed, is the
    end, not an error: a power loss leaves such tails.
    """
    joiner = Joiner()
    for ref in walk(root, stream, offset, limit):
        try:
            block = read_block(ref, joiner)
        except DamagedBlockError:
            last = segments(root, stream)[-1]
            if not last.sealed and ref.header.end >= last.limit:
                return
            raise
        yield block


def _blocks(root: str, stream: str | None = None) -> Iterator[LogBlock]:
    for name in streams(root) if stream is None else [stream]:
        yield from read_blocks(root, name, first_offset(root, name))


def read_frames(root: str, stream: str | None = None) -> Iterator[Frame]:
    """Every frame of a stream, or of all streams one after the other, from the oldest block that exists."""
    for block in _blocks(root, stream):
        yield from block.frames()


def read_gaps(root: str, stream: str | None = None) -> Iterator[GapRecord]:
    for block in _blocks(root, stream):
        yield from block.gaps()


def read_ends(root: str) -> Iterator[dict[str, Any]]:
    """What each connection was whose end is in the log."""
    for block in _blocks(root):
        yield from block.ends()
