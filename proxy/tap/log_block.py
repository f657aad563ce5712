"""One block of the tap's log, decoded: its frames, gaps and totals."""

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

from framegate.proxy.tap import record
from framegate.proxy.tap.headers import BlockHeader
from framegate.proxy.tap.pieces import chunk_rows


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


@dataclasses.dataclass(frozen=True, slots=True)
class GapRecord:
    """A gap chunk, decoded; fields as in ``record``."""

    stream: str
    capture_ns: int
    # from_ns, until_ns: when the first and the last frame were lost
    from_ns: int
    until_ns: int
    connection: int
    listener: str | None
    direction: str
    principal: str | None
    peer: str | None
    rule: str | None
    reason: str
    first_frame: int
    frames: int
    bytes: int
    certainty: str = "exact"  # of ``frames`` and ``bytes``, from ``CERTAINTIES``


@dataclasses.dataclass(frozen=True, slots=True)
class TotalsRecord:
    """How many frames of a listener and direction were seen between two times of one window."""

    stream: str
    listener: str
    direction: str
    from_ns: int
    until_ns: int
    frames: int
    bytes: int


class LogBlock:
    """A block with correct CRCs."""

    def __init__(self, stream: str, header: BlockHeader, data: memoryview) -> None:
        self.stream = stream  # the folder's name
        self.header = header  # its header
        self.data = data  # a view of the whole block, header included
        strings: list[str] = json.loads(bytes(data[header.header_len : header.header_len + header.strings_len]) or b"[]")
        self.strings = strings  # its string table
        self.rows = chunk_rows(header, data)  # its chunk table; with pieces as on disk, or without them once joined (``log_reader``)

    def word(self, index: int) -> str | None:
        """The string at an index; None for -1."""
        return None if index < 0 else self.strings[index]

    def starts(self, row: record.ChunkRow) -> memoryview:
        """The start of each frame of a chunk, in its data."""
        return self._ints(self.header.starts_at, row.starts_index, row.frame_count)

    def sizes(self, row: record.ChunkRow) -> memoryview | None:
        """The body sizes on the wire; None when they equal the stored ones."""
        return self._ints(self.header.sizes_at, row.sizes_index, row.frame_count) if row.flags & record.FLAG_SIZES else None

    def answers(self, row: record.ChunkRow) -> tuple[memoryview, memoryview] | None:
        """Request keys and latencies; None when the chunk has none."""
        if not row.flags & record.FLAG_ANSWERS:
            return None
        keys = self._ints(self.header.answers_at, row.answers_index, row.frame_count)
        return keys, self._ints(self.header.answers_at + 4 * self.header.answers_count, row.answers_index, row.frame_count)

    def requests(self, row: record.ChunkRow) -> tuple[memoryview, memoryview] | None:
        """Body sizes and correlation ids of the requests that a chunk's frames answer; None when the chunk has none."""
        if not row.flags & record.FLAG_ANSWERS or not self.header.flags & record.BLOCK_REQUESTS:
            return None
        section = 4 * self.header.answers_count
        sizes = self._ints(self.header.answers_at + 2 * section, row.answers_index, row.frame_count)
        return sizes, self._ints(self.header.answers_at + 3 * section, row.answers_index, row.frame_count)

    def chunk_data(self, row: record.ChunkRow) -> memoryview:
        """A chunk's stored bytes."""
        start = self.header.data_at + row.data_offset
        return self.data[start : start + row.data_length]

    def frames(self) -> Iterator[Frame]:
        """Every stored frame, in order."""
        for row in self.rows:
            if row.kind == record.KIND_FRAMES:
                yield from self._frames_of(row)

    def gaps(self) -> Iterator[GapRecord]:
        """Every gap chunk, in order."""
        for row in self.rows:
            if row.kind == record.KIND_GAP:
                yield GapRecord(
                    stream=self.stream,
                    capture_ns=row.capture_ns,
                    from_ns=row.lost_from_ns,
                    until_ns=row.original_bytes or row.capture_ns,
                    connection=row.connection,
                    listener=self.word(row.listener),
                    direction=record.DIRECTIONS[row.direction],
                    principal=self.word(row.principal),
                    peer=self.word(row.peer),
                    rule=self.word(row.rule),
                    reason=record.REASONS[row.reason],
                    first_frame=row.first_frame,
                    frames=row.lost_frames,
                    bytes=row.lost_bytes,
                    certainty=record.certainty(row.flags),
                )

    def totals(self) -> Iterator[TotalsRecord]:
        """Every totals row, in order."""
        for row in self.rows:
            if row.kind == record.KIND_TOTALS:
                yield TotalsRecord(
                    stream=self.stream,
                    listener=self.strings[row.listener],
                    direction=record.DIRECTIONS[row.direction],
                    from_ns=row.lost_from_ns,
                    until_ns=row.original_bytes,
                    frames=row.lost_frames,
                    bytes=row.lost_bytes,
                )

    def ends(self) -> Iterator[dict[str, Any]]:
        """What each connection was that ended, in order; ends that are lost are not in it."""
        for row in self.rows:
            if row.kind == record.KIND_CONNECTION and row.connection >= 0:
                yield json.loads(self.strings[row.rule])

    def _frames_of(self, row: record.ChunkRow) -> Iterator[Frame]:
        data = self.chunk_data(row)
        ends = [*self.starts(row)[1:], row.data_length]
        answers = self.answers(row)
        requests = self.requests(row)
        for index, (start, end) in enumerate(zip(self.starts(row), ends, strict=True)):
            yield Frame(
                stream=self.stream,
                capture_ns=row.capture_ns,
                connection=row.connection,
                listener=self.strings[row.listener],
                direction=record.DIRECTIONS[row.direction],
                principal=self.word(row.principal),
                peer=self.word(row.peer),
                rule=self.word(row.rule),
                number=row.first_frame + index,
                size=int.from_bytes(data[start : start + record.FRAME_HEADER_BYTES], "big"),
                body=bytes(data[start + record.FRAME_HEADER_BYTES : end]),
                request_key=None if answers is None else answers[0][index],
                latency_us=None if answers is None else answers[1][index],
                transfer_us=(row.capture_ns - row.lost_from_ns) // 1000 if row.lost_from_ns else None,
                flags=row.flags,
                request_size=None if requests is None else requests[0][index],
                correlation_id=None if requests is None else requests[1][index],
            )

    def _ints(self, section: int, index: int, count: int) -> memoryview:
        start = section + 4 * index
        return self.data[start : start + 4 * count].cast("i")
