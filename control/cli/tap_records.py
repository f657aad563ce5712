"""Records of the tap for display: frames, other rows, and unreadable parts; and the filter that selects them."""

import dataclasses
import fnmatch
import itertools
from collections.abc import Iterator
from typing import Final, NamedTuple

from framegate.proxy.tap.headers import BlockHeader
from framegate.proxy.tap.log_block import LogBlock
from framegate.proxy.tap.record import (
    CAPTURE_FULL,
    DIRECTION_REQUEST,
    DIRECTIONS,
    FRAME_HEADER_BYTES,
    KIND_FRAMES,
    KIND_GAP,
    KIND_TOTALS,
    PROTOCOL_KAFKA,
    ChunkRow,
)

__all__ = ["Entry", "Frame", "Request", "Timed", "Trouble", "Wanted", "frames_of"]

_CLIENT_BYTES: Final = 512
"""Body bytes that are searched for the client's name; longer names are cut."""


class Request(NamedTuple):
    """The header of a Kafka request, or the request that a response belongs to.

    Attributes:
        api: the API's key.
        version: of the API.
        correlation: correlation id; None when it is not in the log.
        client: client.id; None when there is none, or for a response.
    """

    api: int
    version: int
    correlation: int | None
    client: str | None


class Frame(NamedTuple):
    """One frame. ``kept`` is the part of the body in the log, valid until the next record is read; ``size`` is the body's size on the wire."""

    stream: str
    row: ChunkRow
    block: LogBlock
    number: int
    size: int
    kept: memoryview
    request: Request | None
    latency_us: int | None


class Entry(NamedTuple):
    """A row of the log, of any kind except ``piece``, and its block."""

    row: ChunkRow
    block: LogBlock


class Trouble(NamedTuple):
    """A part of a stream that cannot be read, from ``offset`` to ``available``; None: to the end. ``vanished``: it was deleted. ``taken``: retention
    deleted it.
    """

    stream: str
    offset: int
    available: int | None
    vanished: bool
    detail: str
    taken: bool = False


class Timed(NamedTuple):
    """An item with its time for sorting; without an item, the earliest time of the next items."""

    at_ns: int
    item: Entry | Trouble | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A filter for records. Empty fields and None select all; a record must match every field.

    Attributes:
        since_ns, until_ns: capture time, from and before.
        connections: ids.
        listeners: names.
        direction: of ``DIRECTIONS``.
        apis: keys.
        client: shell pattern of a Kafka client.id; only requests have one.
        min_size, max_size: of the body on the wire, bytes.
        totals: whether rows of totals are wanted, too.
    """

    since_ns: int | None = None
    until_ns: int | None = None
    connections: frozenset[int] = frozenset()
    listeners: frozenset[str] = frozenset()
    direction: str | None = None
    apis: frozenset[int] = frozenset()
    client: str | None = None
    min_size: int = 0
    max_size: int | None = None
    totals: bool = False

    def block(self, header: BlockHeader) -> bool:
        """Whether a block may have wanted records, by the times in its header. These are not reliable when the clock was set back, and a gap may be
        much older than its block.
        """
        if header.first_ns > header.last_ns:
            return True
        if self.since_ns is not None and header.last_ns < self.since_ns:
            return False
        stores = header.request_frames + header.response_frames
        return self.until_ns is None or header.first_ns < self.until_ns or header.lost_frames > 0 or not stores

    def chunk(self, block: LogBlock, row: ChunkRow) -> bool:
        """Whether a row may have wanted records; a gap may have when its frames could match."""
        if row.kind == KIND_TOTALS and not self.totals:
            return False
        if not self._overlaps(row):
            return False
        if row.kind not in (KIND_FRAMES, KIND_GAP, KIND_TOTALS):
            return True
        if self.direction is not None and DIRECTIONS[row.direction] != self.direction:
            return False
        if self.listeners and row.listener >= 0 and block.strings[row.listener] not in self.listeners:
            return False
        return not self.connections or row.kind == KIND_TOTALS or row.connection < 0 or row.connection in self.connections

    def _overlaps(self, row: ChunkRow) -> bool:
        start, end = _span(row)
        return (self.since_ns is None or end >= self.since_ns) and (self.until_ns is None or start < self.until_ns)

    def frame(self, size: int, request: Request | None) -> bool:
        """Whether a frame of a wanted chunk is wanted."""
        if size < self.min_size or (self.max_size is not None and size > self.max_size):
            return False
        if self.apis and (request is None or request.api not in self.apis):
            return False
        return self.client is None or (request is not None and request.client is not None and fnmatch.fnmatchcase(request.client, self.client))


def _span(row: ChunkRow) -> tuple[int, int]:
    """The first and the last capture time of a row."""
    if row.kind in (KIND_GAP, KIND_TOTALS):
        return row.lost_from_ns or row.capture_ns, row.original_bytes or row.capture_ns
    return row.capture_ns, row.capture_ns


def frames_of(block: LogBlock, row: ChunkRow, wanted: Wanted) -> Iterator[Frame]:
    """The wanted frames of a chunk, in order."""
    data = block.chunk_data(row)
    starts = block.starts(row)
    answers = block.answers(row)
    kafka = row.protocol == PROTOCOL_KAFKA
    for index, (start, end) in enumerate(zip(starts, itertools.chain(starts[1:], (row.data_length,)), strict=True)):
        size = int.from_bytes(data[start : start + FRAME_HEADER_BYTES], "big")
        kept = data[start + FRAME_HEADER_BYTES : end]
        latency = None
        request = None
        if answers is not None:
            request = _answered(answers[0][index], kept if row.capture == CAPTURE_FULL else kept[:0])
            latency = answers[1][index] if answers[1][index] >= 0 else None
        elif kafka and row.direction == DIRECTION_REQUEST and row.capture == CAPTURE_FULL:
            request = _header(kept)
        if wanted.frame(size, request):
            yield Frame(block.stream, row, block, row.first_frame + index, size, kept, request, latency)


def _answered(key: int, body: memoryview) -> Request | None:
    """The request that a response belongs to; the response's header is the correlation id."""
    correlation = int.from_bytes(body[:4], "big", signed=True) if len(body) >= 4 else None
    return None if key < 0 else Request(key >> 16, key & 0xFFFF, correlation, None)


def _header(body: memoryview) -> Request | None:
    """The header of a request; None when it is too short."""
    if len(body) < 8:
        return None
    key, version = int.from_bytes(body[:2], "big", signed=True), int.from_bytes(body[2:4], "big", signed=True)
    if key < 0 or version < 0:
        return None
    length = int.from_bytes(body[8:10], "big", signed=True) if len(body) >= 10 else -1
    name = bytes(body[10 : 10 + min(length, _CLIENT_BYTES)]).decode(errors="replace") if length >= 0 else None
    return Request(key, version, int.from_bytes(body[4:8], "big", signed=True), name)
