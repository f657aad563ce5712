"""The tap's records as people ask for them: frames, gaps, what else is a row, what cannot be read; and which of them are wanted."""

import dataclasses
import fnmatch
import itertools
from collections.abc import Iterator
from typing import Final, NamedTuple

from proxy.tap.headers import BlockHeader
from proxy.tap.log_block import LogBlock
from proxy.tap.record import (
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
"""Of a body, that are looked at for the client's name; longer names are cut."""


class Request(NamedTuple):
    """What Kafka's header of a request says, or the pairing of an answer.

    Attributes:
        api: the API's key.
        version: of the API.
        correlation: id; None: the log does not say.
        client: its name; None: none, or an answer.
    """

    api: int
    version: int
    correlation: int | None
    client: str | None


class Frame(NamedTuple):
    """One frame; ``kept`` is what the log has of its body, ``size`` what it was on the wire. The view is good until the next record is asked for."""

    stream: str
    row: ChunkRow
    block: LogBlock
    number: int
    size: int
    kept: memoryview
    request: Request | None
    latency_us: int | None


class Entry(NamedTuple):
    """A row of the log, of any kind but ``piece``, in its block."""

    row: ChunkRow
    block: LogBlock


class Trouble(NamedTuple):
    """What cannot be read: from ``offset`` of a stream up to ``available``, None: nothing behind it can be read either. ``taken``: it vanished, and
    it was retention that took it.
    """

    stream: str
    offset: int
    available: int | None
    vanished: bool
    detail: str
    taken: bool = False


class Timed(NamedTuple):
    """When something comes in the order of records; None: nothing yet."""

    at_ns: int
    item: Entry | Trouble | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which records to show; what is empty or None wants all. All of it must hold.

    Attributes:
        since_ns, until_ns: capture time, from and before.
        connections: ids.
        listeners: names.
        direction: of ``DIRECTIONS``.
        apis: keys.
        client: name of Kafka's client, a pattern of the shell; requests only have one.
        min_size, max_size: of the body on the wire, bytes.
        totals: rows of totals as well.
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
        """Whether a block may hold something: by the times in its header, which say nothing where the clock was set back. A gap may be of a time
        long before its block.
        """
        if header.first_ns > header.last_ns:
            return True
        if self.since_ns is not None and header.last_ns < self.since_ns:
            return False
        stores = header.request_frames + header.response_frames
        return self.until_ns is None or header.first_ns < self.until_ns or header.lost_frames > 0 or not stores

    def chunk(self, block: LogBlock, row: ChunkRow) -> bool:
        """Whether a row may be shown: a gap when some of what it lacks may be wanted."""
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
        """Whether a frame of a chunk that may be shown is."""
        if size < self.min_size or (self.max_size is not None and size > self.max_size):
            return False
        if self.apis and (request is None or request.api not in self.apis):
            return False
        return self.client is None or (request is not None and request.client is not None and fnmatch.fnmatchcase(request.client, self.client))


def _span(row: ChunkRow) -> tuple[int, int]:
    """The first and the last time that a row speaks of."""
    if row.kind in (KIND_GAP, KIND_TOTALS):
        return row.lost_from_ns or row.capture_ns, row.original_bytes or row.capture_ns
    return row.capture_ns, row.capture_ns


def frames_of(block: LogBlock, row: ChunkRow, wanted: Wanted) -> Iterator[Frame]:
    """The frames of a chunk that are to be shown, in order."""
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
    """What an answer answers; its own header is the correlation id."""
    correlation = int.from_bytes(body[:4], "big", signed=True) if len(body) >= 4 else None
    return None if key < 0 else Request(key >> 16, key & 0xFFFF, correlation, None)


def _header(body: memoryview) -> Request | None:
    """What the header of a request says; None: there is none, or not all of what every version has."""
    if len(body) < 8:
        return None
    key, version = int.from_bytes(body[:2], "big", signed=True), int.from_bytes(body[2:4], "big", signed=True)
    if key < 0 or version < 0:
        return None
    length = int.from_bytes(body[8:10], "big", signed=True) if len(body) >= 10 else -1
    name = bytes(body[10 : 10 + min(length, _CLIENT_BYTES)]).decode(errors="replace") if length >= 0 else None
    return Request(key, version, int.from_bytes(body[4:8], "big", signed=True), name)
