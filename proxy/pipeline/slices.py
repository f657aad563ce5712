"""Reads slices of the tap's log: maps segments, checks the CRC of each block, and reports losses.

A block is a view of the memory map. One that holds pieces of frames that were cut through is made anew: the chunk that completes a frame then holds
the whole frame, and pieces are no rows.
"""

import dataclasses
import mmap
import os
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np

from framegate.proxy.pipeline.loss import DataLossError, Loss, pairs_of
from framegate.proxy.pipeline.planner import Slice
from framegate.proxy.tap import headers, record
from framegate.proxy.tap.ledger import read_ledger
from framegate.proxy.tap.log_reader import BlockRef, Joiner, open_segment
from framegate.proxy.tap.log_segments import check_place

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["CHUNK_DTYPE", "Block", "read_slice"]

CHUNK_DTYPE: Final = np.dtype(
    {
        "names": [name for name, _, _ in record.CHUNK_FIELDS],
        "formats": [kind for _, kind, _ in record.CHUNK_FIELDS],
        "offsets": [offset for _, _, offset in record.CHUNK_FIELDS],
        "itemsize": record.CHUNK_ROW_BYTES,
    }
)
INT32: Final = np.dtype(np.int32)


@dataclasses.dataclass(frozen=True, slots=True)
class Block:
    """A block whose CRCs fit. ``body`` is all of it, header included; usually a slice of a memory map, which lives as long as an array over it
    does.
    """

    header: headers.BlockHeader
    body: memoryview

    def ints(self, position: int, count: int) -> "NDArray[np.int32]":
        """``count`` int32 at ``position`` of the block."""
        return np.frombuffer(self.body, dtype=INT32, count=count, offset=position)

    @property
    def table(self) -> memoryview:
        """The chunk table's bytes."""
        start = self.header.chunks_at
        return self.body[start : start + self.header.chunk_count * record.CHUNK_ROW_BYTES]

    @property
    def strings(self) -> bytes:
        """The strings that rows name by index, as a JSON array."""
        start = self.header.header_len
        return bytes(self.body[start : start + self.header.strings_len])

    @property
    def data(self) -> memoryview:
        return self.body[self.header.data_at : self.header.data_at + self.header.data_len]


def read_slice(part: Slice, *, fail_on_data_loss: bool = True, joiner: Joiner | None = None) -> Iterator[Block | Loss]:
    """The blocks of a slice, with whole frames.

    Args:
        fail_on_data_loss: False: yield a loss instead of raising an error.
        joiner: joined the pieces of the slices before this one; None: there are none.

    Raises:
        DataLossError: a block or the segment's header is damaged, or the segment is gone. Behind a damaged header the next block is not found, so
            the loss extends to the end of the slice.
    """
    at = part.start
    joiner = joiner or Joiner()
    try:
        view, modified_ns = _mapped(part)
    except (FileNotFoundError, record.FormatError) as fault:
        gone = isinstance(fault, FileNotFoundError)
        detail = f"{part.path} was deleted before offsets {at} to {part.end} were read" if gone else f"{part.path}: {fault}"
        yield _lost(part, at, part.end, record.REASON_VANISHED if gone else record.REASON_DAMAGED, detail, fail=fail_on_data_loss)
        return
    while at < part.end:
        position = at - part.base + record.SEGMENT_HEADER_BYTES
        try:
            header = headers.decode_block_header(view, position)
            if header.offset != at or position + header.block_len > len(view):
                raise record.FormatError(f"a block of {header.block_len} bytes that says it is at {header.offset}")
        except record.FormatError as fault:
            detail = f"damaged at offset {at} of {part.path}: {fault}"
            yield _lost(part, at, part.end, record.REASON_DAMAGED, detail, until_ns=modified_ns, fail=fail_on_data_loss)
            return
        body = view[position : position + header.block_len]
        at += header.block_len
        if zlib.crc32(body[header.header_len :]) == header.body_crc:
            yield Block(*joiner.join(BlockRef(part.stream, part.path, part.base, position, header), body))
            continue
        detail = f"the block at offset {header.offset} of {part.path} is damaged: its CRC does not fit"
        times = {"from_ns": header.first_ns, "until_ns": header.last_ns}
        yield _lost(part, header.offset, at, record.REASON_DAMAGED, detail, **times, fail=fail_on_data_loss)


def _mapped(part: Slice) -> tuple[memoryview, int]:
    """The bytes of a segment, and when it was last written; FileNotFoundError or FormatError where it cannot be read."""
    fd = open_segment(part.path)
    try:
        status = os.fstat(fd)
        if status.st_size < record.SEGMENT_HEADER_BYTES:
            raise record.FormatError(f"a segment of {status.st_size} bytes")
        view = memoryview(mmap.mmap(fd, 0, prot=mmap.PROT_READ))
    finally:
        os.close(fd)
    header = headers.decode_segment_header(bytes(view[: record.SEGMENT_HEADER_BYTES]))
    check_place(header, part.stream, part.base)
    return view, status.st_mtime_ns


def _lost(part: Slice, offset: int, end: int, reason: int, detail: str, *, from_ns: int = 0, until_ns: int = 0, fail: bool) -> Loss:
    if fail:
        raise DataLossError(f"stream {part.stream}: {detail}")
    ledger = read_ledger(os.path.dirname(os.path.dirname(part.path)))
    return Loss(part.stream, offset, end, reason, from_ns, until_ns, pairs_of(ledger, part.stream))
