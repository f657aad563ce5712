"""Joins frames that were cut through with their pieces in the log (``record`` describes them): an index of pieces, and the block as if the frame had
come whole. ``log_reader.Joiner`` finds the blocks.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from framegate.proxy.tap import record
from framegate.proxy.tap.headers import BlockHeader


class Place(NamedTuple):
    """The place of a piece."""

    at: int  # its begin in the stored frame
    path: str  # of its segment, as listed
    position: int  # of its bytes in the file
    length: int  # bytes


class PieceIndex:
    """The places of the pieces of incomplete frames in the blocks noted; 100 to 200 bytes for each piece."""

    def __init__(self) -> None:
        self._places: dict[tuple[int, int, int], list[Place]] = {}

    def __len__(self) -> int:
        return len(self._places)

    def note(self, path: str, position: int, header: BlockHeader, rows: Sequence[record.ChunkRow]) -> record.ChunkRow | None:
        """Note the pieces of the next block, and forget those of frames that its gaps count. Returns the chunk that completes a frame, for ``take``;
        None: there is none.
        """
        completing = None
        for row in rows:
            if row.kind == record.KIND_PIECE:
                place = Place(row.original_bytes, path, position + header.data_at + row.data_offset, row.data_length)
                if place.at == 0:
                    self._places[_key(row)] = []  # an earlier frame of this number was cut short
                self._places.setdefault(_key(row), []).append(place)
            elif row.kind == record.KIND_GAP:
                self._places.pop(_key(row), None)
            elif row.flags & record.FLAG_PIECES:
                completing = row
        return completing

    def note_before(self, earlier: "PieceIndex") -> None:
        """Add what was noted of blocks before all blocks noted here."""
        for key, places in earlier._places.items():
            later = self._places.get(key, [])
            if not later or later[0].at > 0:
                self._places[key] = places + later

    def take(self, row: record.ChunkRow) -> list[Place]:
        """Remove and return the pieces of the frame that a chunk completes, in order."""
        return self._places.pop(_key(row), [])


def _key(row: record.ChunkRow) -> tuple[int, int, int]:
    return row.connection, row.direction, row.first_frame


def chunk_rows(header: BlockHeader, body: memoryview) -> list[record.ChunkRow]:
    """The chunk table of a block with the bytes ``body``."""
    table = body[header.chunks_at : header.chunks_at + header.chunk_count * record.CHUNK_ROW_BYTES]
    return [record.ChunkRow(*fields) for fields in record.CHUNK_ROW.iter_unpack(table)]


def joined(
    header: BlockHeader,
    body: memoryview,
    rows: Sequence[record.ChunkRow],
    places: Sequence[Place],
    read: Callable[[Place, memoryview], bool],
) -> tuple[BlockHeader, memoryview]:
    """A block without pieces, in which the chunk that completes a frame has all of it.

    ``places``: of the pieces of the frame that it completes, in order. ``read``: reads the bytes at a place into a view of that length; False: they
    are deleted.

    Returns a header, and new bytes. The header has the positions in these bytes; offset, length and counts of frames are those of the block on disk.
    A frame with missing pieces ends at the first hole, with the reason ``REASON_PIECES_LOST``.
    """
    kept = [row for row in rows if row.kind != record.KIND_PIECE]
    shift = len(kept) * record.CHUNK_ROW_BYTES - (header.starts_at - header.chunks_at)
    data_at = header.data_at + shift
    made = memoryview(bytearray(data_at + sum(row.data_length + _ahead(row) for row in kept)))
    made[: header.chunks_at] = body[: header.chunks_at]
    made[header.starts_at + shift : data_at] = body[header.starts_at : header.data_at]
    at = data_at
    for index, row in enumerate(kept):
        begin = header.data_at + row.data_offset
        data = body[begin : begin + row.data_length]
        if row.flags & record.FLAG_PIECES:
            fresh = _whole(row, data, made[at : at + row.data_length + _ahead(row)], places, read)
        else:
            fresh = row
            made[at : at + len(data)] = data
        fresh = fresh._replace(data_offset=at - data_at)
        at += fresh.data_length
        record.CHUNK_ROW.pack_into(made, header.chunks_at + index * record.CHUNK_ROW_BYTES, *fresh)
    fresh_header = header._replace(
        flags=header.flags & ~record.BLOCK_PIECES,
        chunk_count=len(kept),
        starts_at=header.starts_at + shift,
        sizes_at=header.sizes_at + shift,
        answers_at=header.answers_at + shift,
        data_at=data_at,
        data_len=at - data_at,
    )
    return fresh_header, made[:at]


def _ahead(row: record.ChunkRow) -> int:
    """Bytes of the stored frame before a chunk's own data."""
    return row.original_bytes - row.lost_bytes - row.data_length if row.flags & record.FLAG_PIECES else 0


def _whole(
    row: record.ChunkRow, last: memoryview, room: memoryview, places: Sequence[Place], read: Callable[[Place, memoryview], bool]
) -> record.ChunkRow:
    """Put a stored frame into ``room``, up to the first missing piece; all of them fill it. Returns the chunk's row."""
    ahead = len(room) - len(last)
    filled = 0
    for place in places:
        end = filled + place.length
        if place.at != filled or end > ahead or not read(place, room[filled:end]):
            break
        filled = end
    row = row._replace(lost_frames=0, flags=row.flags & ~record.FLAG_PIECES)
    if filled == ahead:
        room[ahead:] = last
        return row._replace(data_length=len(room))
    if filled < record.FRAME_HEADER_BYTES:
        filled = record.FRAME_HEADER_BYTES
        room[:filled] = (row.original_bytes - record.FRAME_HEADER_BYTES).to_bytes(record.FRAME_HEADER_BYTES, "big")
    return row._replace(data_length=filled, lost_bytes=row.original_bytes - filled, reason=record.REASON_PIECES_LOST)
