"""Encodes and decodes the headers of segments and blocks, and the seal of a segment; ``record`` describes them."""

import itertools
import json
import struct
import zlib
from typing import TYPE_CHECKING, Final, NamedTuple

from framegate.proxy.tap.record import (
    BLOCK_ALIGNMENT,
    BLOCK_HEADER_BYTES,
    BLOCK_PIECES,
    BLOCK_REQUESTS,
    CHUNK_ROW_BYTES,
    FORMAT_VERSION,
    SEAL_AT,
    SEGMENT_HEADER_BYTES,
    FormatError,
    VersionError,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

SEGMENT_MAGIC: Final = b"FGTAPLOG"
BLOCK_MAGIC: Final = b"FGB1"
BLOCK_MAGIC_PIECES: Final = b"FGB2"
SEAL_MAGIC: Final = b"FGSEALED"
CRC_KIND_CRC32: Final = 1

# magic, version, length of the JSON, CRC32 of the JSON
SEGMENT_HEADER: Final = struct.Struct("<8sIII")
# magic, end, blocks, request_frames, response_frames, lost_frames, sealed_ns, flags; then the CRC of those 64 bytes
SEAL: Final = struct.Struct("<8s7q")
SEAL_CRC: Final = struct.Struct("<I")

# magic, header_len, crc_kind, reserved, flags, chunk_count, block_len, offset, sequence, first_ns, last_ns, request_frames,
# response_frames, lost_frames, strings_len, chunks_at, starts_at, sizes_at, answers_at, data_at, data_len, starts_count, sizes_count,
# answers_count, body_crc, reserved; then the CRC of those 124 bytes
BLOCK_HEADER: Final = struct.Struct("<4sHBBIiqqqqqiiqiiiiiiqiiiII")
HEADER_CRC: Final = struct.Struct("<I")


class Seal(NamedTuple):
    """The end of a segment."""

    end: int  # the logical offset behind its last block
    blocks: int  # their number
    # request_frames, response_frames, lost_frames: sums over the blocks' headers
    request_frames: int
    response_frames: int
    lost_frames: int
    sealed_ns: int  # wall clock
    flags: int  # SEAL_FINAL, SEAL_CUT


class BlockHeader(NamedTuple):
    """A block's header. Positions are relative to the block's start; ``record`` describes the fields."""

    header_len: int
    flags: int  # BLOCK_*
    chunk_count: int
    block_len: int
    offset: int  # the block's logical offset in its stream
    sequence: int  # number of the block in its stream, from 0
    # first_ns, last_ns: capture time of the first and last chunk
    first_ns: int
    last_ns: int
    # request_frames, response_frames: frames stored, by direction
    request_frames: int
    response_frames: int
    lost_frames: int  # the sum over the gap chunks
    strings_len: int
    chunks_at: int
    starts_at: int
    sizes_at: int
    answers_at: int
    data_at: int
    data_len: int
    starts_count: int  # frames stored; equals request_frames + response_frames
    sizes_count: int
    answers_count: int
    body_crc: int

    @property
    def answer_bytes(self) -> int:
        """Bytes of each of ``answers_count`` entries."""
        return 16 if self.flags & BLOCK_REQUESTS else 8

    @property
    def end(self) -> int:
        """The logical offset behind the block, where the next one begins."""
        return self.offset + self.block_len


def encode_segment_header(members: dict[str, str | int]) -> bytes:
    """The first ``SEGMENT_HEADER_BYTES`` of a segment. ``members``: node, slot, stream, boot_id, created_ns and base; the version is added. Raises
    FormatError: the members are too long.
    """
    body = json.dumps({"version": FORMAT_VERSION, **members}, sort_keys=True).encode()
    if len(body) > SEAL_AT - SEGMENT_HEADER.size:
        raise FormatError(f"segment header of {len(body)} bytes does not fit {SEAL_AT - SEGMENT_HEADER.size}")
    header = SEGMENT_HEADER.pack(SEGMENT_MAGIC, FORMAT_VERSION, len(body), zlib.crc32(body)) + body
    return header.ljust(SEGMENT_HEADER_BYTES, b"\0")


def decode_segment_header(data: bytes) -> dict[str, str | int]:
    """The members of a segment's header. ``data``: at least the first ``SEGMENT_HEADER_BYTES`` of the file. Raises VersionError: of a version above
    ``FORMAT_VERSION``; FormatError: not a segment, or damaged.
    """
    if len(data) < SEGMENT_HEADER_BYTES:
        raise FormatError(f"segment header has {len(data)} bytes of {SEGMENT_HEADER_BYTES}")
    magic, version, length, crc = SEGMENT_HEADER.unpack_from(data)
    if magic != SEGMENT_MAGIC:
        raise FormatError(f"not a tap segment: magic {magic!r}")
    if version > FORMAT_VERSION:
        raise VersionError(f"segment of format version {version}, this reader knows up to {FORMAT_VERSION}")
    body = bytes(data[SEGMENT_HEADER.size : SEGMENT_HEADER.size + length])
    if len(body) != length or zlib.crc32(body) != crc:
        raise FormatError("segment header is damaged")
    members: dict[str, str | int] = {**json.loads(body), "version": version}
    return members


def encode_seal(seal: Seal) -> bytes:
    """The bytes at ``SEAL_AT`` in the file."""
    packed = SEAL.pack(SEAL_MAGIC, *seal)
    return packed + SEAL_CRC.pack(zlib.crc32(packed))


def decode_seal(data: bytes) -> Seal | None:
    """The seal of a segment; None when its bytes are zeros. ``data``: at least the first ``SEGMENT_HEADER_BYTES`` of the file. Raises FormatError: it
    is damaged.
    """
    packed = bytes(data[SEAL_AT : SEAL_AT + SEAL.size + SEAL_CRC.size])
    if not any(packed):
        return None
    magic, *fields = SEAL.unpack_from(packed)
    if magic != SEAL_MAGIC or SEAL_CRC.unpack_from(packed, SEAL.size)[0] != zlib.crc32(packed[: SEAL.size]):
        raise FormatError("the segment's seal is damaged")
    return Seal(*fields)


def encode_block_header(header: BlockHeader) -> bytes:
    """``BLOCK_HEADER_BYTES`` bytes, header CRC included."""
    magic = BLOCK_MAGIC_PIECES if header.flags & BLOCK_PIECES else BLOCK_MAGIC
    packed = BLOCK_HEADER.pack(magic, header.header_len, CRC_KIND_CRC32, 0, *header[1:], 0)
    return packed + HEADER_CRC.pack(zlib.crc32(packed))


def decode_block_header(data: "Buffer", position: int = 0) -> BlockHeader:
    """The header of the block at ``position``. ``data``: bytes or a view of them; at least ``BLOCK_HEADER_BYTES`` behind ``position``. Raises
    FormatError: no block begins here, or its header is damaged. The caller checks whether the block lies inside its file, and its body's CRC.
    """
    view = memoryview(data)[position : position + BLOCK_HEADER_BYTES]
    if len(view) < BLOCK_HEADER_BYTES:
        raise FormatError(f"block header has {len(view)} bytes of {BLOCK_HEADER_BYTES}")
    if HEADER_CRC.unpack_from(view, BLOCK_HEADER.size)[0] != zlib.crc32(view[: BLOCK_HEADER.size]):
        raise FormatError("no block here, or its header is damaged")
    fields = BLOCK_HEADER.unpack_from(view)
    if fields[0] not in (BLOCK_MAGIC, BLOCK_MAGIC_PIECES) or fields[2] != CRC_KIND_CRC32:
        raise FormatError(f"block of an unknown kind: magic {fields[0]!r}, CRC kind {fields[2]}")
    header = BlockHeader(fields[1], *fields[4:25])
    _check_geometry(header)
    return header


def _check_geometry(header: BlockHeader) -> None:
    """Raise FormatError unless the sections lie in order inside the block."""
    places = (
        BLOCK_HEADER_BYTES,
        header.header_len,
        header.header_len + header.strings_len,
        header.chunks_at,
        header.chunks_at + header.chunk_count * CHUNK_ROW_BYTES,
        header.starts_at,
        header.starts_at + 4 * header.starts_count,
        header.sizes_at,
        header.sizes_at + 4 * header.sizes_count,
        header.answers_at,
        header.answers_at + header.answer_bytes * header.answers_count,
        header.data_at,
        header.data_at + header.data_len,
        header.block_len,
    )
    if any(left > right for left, right in itertools.pairwise(places)) or header.block_len % BLOCK_ALIGNMENT:
        raise FormatError("block whose sections do not fit its length")
