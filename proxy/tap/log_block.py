"""One block of the tap's log, decoded: its chunks, gaps and totals."""

import dataclasses
import json
from collections.abc import Iterator

from framegate.proxy.tap import record
from framegate.proxy.tap.headers import BlockHeader
from framegate.proxy.tap.pieces import chunk_rows


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

    def chunk_data(self, row: record.ChunkRow) -> memoryview:
        """A chunk's stored bytes."""
        start = self.header.data_at + row.data_offset
        return self.data[start : start + row.data_length]

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

    def _ints(self, section: int, index: int, count: int) -> memoryview:
        start = section + 4 * index
        return self.data[start : start + 4 * count].cast("i")
