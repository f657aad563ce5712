"""The tap's log, read whole: blocks, frames and gaps, as tests look at it."""

import dataclasses
import json
import os
from collections.abc import Iterator
from typing import Any

from framegate.proxy.tap.headers import decode_segment_header
from framegate.proxy.tap.log_block import GapRecord, LogBlock
from framegate.proxy.tap.log_reader import START, DamagedBlockError, Joiner, first_offset, open_segment, read_block, segments, streams, walk
from framegate.proxy.tap.record import (
    BLOCK_REQUESTS,
    DIRECTIONS,
    FLAG_ANSWERS,
    FRAME_HEADER_BYTES,
    KIND_CONNECTION,
    KIND_FRAMES,
    SEGMENT_HEADER_BYTES,
    ChunkRow,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Frame:
    """One frame of the log, with the facts of its chunk."""

    stream: str  # the folder's name
    capture_ns: int  # wall clock
    connection: int  # id of the pair
    # listener, direction, principal, peer, rule: words
    listener: str
    direction: str
    principal: str | None
    peer: str | None
    rule: str | None
    number: int  # the frame's number on its connection and direction, from 0
    size: int  # bytes of the body on the wire
    body: bytes  # the stored part of it: all, a part, nothing, or a hash
    request_key: int | None  # ``api key << 16 | version`` of the request that this answers; -1 unknown, None not paired
    latency_us: int | None  # from request to the answer's first byte; -1 unknown, None not paired
    transfer_us: int | None  # from the first to the last bytes of a frame that was cut through; None for other frames
    flags: int  # of the chunk
    request_size: int | None = None  # bytes of the request's body; -1 unknown, None not paired, or an older log
    correlation_id: int | None = None  # of the request; likewise


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


def frames_in(block: LogBlock) -> Iterator[Frame]:
    """Every stored frame, in order."""
    for row in block.rows:
        if row.kind == KIND_FRAMES:
            yield from _of_chunk(block, row)


def _requests_of(block: LogBlock, row: ChunkRow) -> tuple[memoryview, memoryview] | None:
    """Body sizes and correlation ids of the requests that a chunk's frames answer; None when the chunk has none."""
    if not row.flags & FLAG_ANSWERS or not block.header.flags & BLOCK_REQUESTS:
        return None
    section = 4 * block.header.answers_count
    sizes = block._ints(block.header.answers_at + 2 * section, row.answers_index, row.frame_count)
    return sizes, block._ints(block.header.answers_at + 3 * section, row.answers_index, row.frame_count)


def _of_chunk(block: LogBlock, row: ChunkRow) -> Iterator[Frame]:
    data = block.chunk_data(row)
    ends = [*block.starts(row)[1:], row.data_length]
    answers = block.answers(row)
    requests = _requests_of(block, row)
    for index, (start, end) in enumerate(zip(block.starts(row), ends, strict=True)):
        yield Frame(
            stream=block.stream,
            capture_ns=row.capture_ns,
            connection=row.connection,
            listener=block.strings[row.listener],
            direction=DIRECTIONS[row.direction],
            principal=block.word(row.principal),
            peer=block.word(row.peer),
            rule=block.word(row.rule),
            number=row.first_frame + index,
            size=int.from_bytes(data[start : start + FRAME_HEADER_BYTES], "big"),
            body=bytes(data[start + FRAME_HEADER_BYTES : end]),
            request_key=None if answers is None else answers[0][index],
            latency_us=None if answers is None else answers[1][index],
            transfer_us=(row.capture_ns - row.lost_from_ns) // 1000 if row.lost_from_ns else None,
            flags=row.flags,
            request_size=None if requests is None else requests[0][index],
            correlation_id=None if requests is None else requests[1][index],
        )


def read_frames(root: str, stream: str | None = None) -> Iterator[Frame]:
    """Every frame of a stream, or of all streams one after the other, from the oldest block that exists."""
    for block in _blocks(root, stream):
        yield from frames_in(block)


def read_gaps(root: str, stream: str | None = None) -> Iterator[GapRecord]:
    for block in _blocks(root, stream):
        yield from block.gaps()


def read_ends(root: str) -> Iterator[dict[str, Any]]:
    """What each connection was whose end is in the log."""
    for block in _blocks(root):
        yield from (json.loads(block.strings[row.rule]) for row in block.rows if row.kind == KIND_CONNECTION and row.connection >= 0)
