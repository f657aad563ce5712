"""Reads slices of the tap's log: maps segments, or reads ranges of them from a store; checks the CRC of each block, and reports losses.

A block is a view of the memory map, or of what a request gave. One that holds pieces of frames that were cut through is made anew: the chunk that
completes a frame then holds the whole frame, and pieces are no rows.
"""

import dataclasses
import mmap
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np
from isal.isal_zlib import crc32  # a fourth of the time of zlib's

from framegate.proxy.pipeline.loss import DataLossError, Loss, pairs_of
from framegate.proxy.pipeline.planner import Slice
from framegate.proxy.tap import headers, record
from framegate.proxy.tap.ledger import read_ledger
from framegate.proxy.tap.log_reader import BlockRef, Joiner, open_segment
from framegate.proxy.tap.log_segments import CLOCKS_NS, check_place
from framegate.proxy.tap.store import is_url, place_of, store_at

if TYPE_CHECKING:
    from numpy.typing import NDArray

CHUNK_DTYPE: Final = np.dtype(
    {
        "names": [name for name, _, _ in record.CHUNK_FIELDS],
        "formats": [kind for _, kind, _ in record.CHUNK_FIELDS],
        "offsets": [offset for _, _, offset in record.CHUNK_FIELDS],
        "itemsize": record.CHUNK_ROW_BYTES,
    }
)
INT32: Final = np.dtype(np.int32)
FETCH_BYTES: Final = 8 << 20  # bytes of a request to a store, unless a block is larger


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


def read_slice(part: Slice, *, fail_on_data_loss: bool = True, joiner: Joiner | None = None, until_ns: int = 0) -> Iterator[Block | Loss]:
    """The blocks of a slice, with whole frames.

    Args:
        fail_on_data_loss: False: yield a loss instead of raising an error.
        joiner: joined the pieces of the slices before this one; None: there are none.
        until_ns: stop at a block that begins more than ``CLOCKS_NS`` behind this time; 0: at the end.

    Raises DataLossError: a block or the segment's header is damaged, or the segment is gone. Behind a damaged header the next block is not found, so
    the loss extends to the end of the slice; StoreError: the store does not answer. This is no loss.
    """
    at = part.start
    joiner = joiner or Joiner()
    try:
        file = _Stored(part) if is_url(part.path) else _Mapped(part)
    except (FileNotFoundError, record.FormatError) as fault:
        gone = isinstance(fault, FileNotFoundError)
        detail = f"{part.path} was deleted before offsets {at} to {part.end} were read" if gone else f"{part.path}: {fault}"
        yield _lost(part, at, part.end, record.REASON_VANISHED if gone else record.REASON_DAMAGED, detail, fail=fail_on_data_loss)
        return
    last_ns = file.first_ns
    while at < file.end:
        position = at - part.base + record.SEGMENT_HEADER_BYTES
        try:
            header = headers.decode_block_header(file.take(position, record.BLOCK_HEADER_BYTES))
            if until_ns and header.first_ns - CLOCKS_NS >= until_ns:
                return
            body = file.take(position, header.block_len)
            if header.offset != at or len(body) < header.block_len:
                raise record.FormatError(f"a block of {header.block_len} bytes that says it is at {header.offset}")
        except record.FormatError as fault:
            detail = f"damaged at offset {at} of {part.path}: {fault}"
            times = {"from_ns": last_ns, "until_ns": file.modified_ns}
            yield _lost(part, at, part.end, record.REASON_DAMAGED, detail, **times, fail=fail_on_data_loss)
            return
        at, last_ns = at + header.block_len, header.last_ns
        if crc32(body[header.header_len :]) == header.body_crc:
            yield Block(*joiner.join(BlockRef(part.stream, part.path, part.base, position, header), body))
            continue
        detail = f"the block at offset {header.offset} of {part.path} is damaged: its CRC does not fit"
        times = {"from_ns": header.first_ns, "until_ns": header.last_ns}
        yield _lost(part, header.offset, at, record.REASON_DAMAGED, detail, **times, fail=fail_on_data_loss)


class _Mapped:
    """A segment on a disk: all of it in memory. Raises FileNotFoundError or FormatError where it cannot be read."""

    def __init__(self, part: Slice) -> None:
        self.end = part.end  # where the slice's blocks end
        fd = open_segment(part.path)
        try:
            status = os.fstat(fd)
            if status.st_size < record.SEGMENT_HEADER_BYTES:
                raise record.FormatError(f"a segment of {status.st_size} bytes")
            self._view = memoryview(mmap.mmap(fd, 0, prot=mmap.PROT_READ))
        finally:
            os.close(fd)
        self.first_ns, self.modified_ns = 0, status.st_mtime_ns  # its blocks were captured between these
        header = headers.decode_segment_header(bytes(self._view[: record.SEGMENT_HEADER_BYTES]))
        check_place(header, part.stream, part.base)

    def take(self, position: int, length: int) -> memoryview:
        """Bytes at a place in the file; fewer at its end."""
        return self._view[position : position + length]


class _Stored:
    """The same in a store: requests of ``FETCH_BYTES`` or a block, in order. A seal that does not fit the object's size is an error, too. Raises
    StoreError: the store does not answer.
    """

    def __init__(self, part: Slice) -> None:
        root, self._name = place_of(part.path)
        self._store = store_at(root)
        self._limit = part.end - part.base + record.SEGMENT_HEADER_BYTES
        self._at = 0
        self._view, size = self._store.part(self._name, 0, min(self._limit, FETCH_BYTES))
        head = bytes(self._view[: record.SEGMENT_HEADER_BYTES])
        header, seal = headers.decode_segment_header(head), headers.decode_seal(head)
        check_place(header, part.stream, part.base)
        self.first_ns, self.modified_ns = max(0, int(header["created_ns"]) - record.WINDOW_NS), part.written_ns
        self.end = part.end if seal is None else min(seal.end, part.end)
        if seal is None and int(header["version"]) >= record.SEALED_SINCE:
            raise record.FormatError("sealed without a seal")
        if seal is not None and not seal.flags & record.SEAL_CUT:
            sealed = seal.end - part.base + record.SEGMENT_HEADER_BYTES
            if sealed != size:
                raise record.FormatError(f"it has {size} bytes, and was sealed with {sealed}")

    def take(self, position: int, length: int) -> memoryview:
        """Bytes at a place in the object; fewer at the end of the slice."""
        begin = position - self._at
        if begin < 0 or begin + length > len(self._view):
            end = min(self._limit, position + max(length, FETCH_BYTES))
            if position >= end:
                return memoryview(b"")
            self._at, begin = position, 0
            self._view, _ = self._store.part(self._name, position, end)
        return self._view[begin : begin + length]


def _lost(part: Slice, offset: int, end: int, reason: int, detail: str, *, from_ns: int = 0, until_ns: int = 0, fail: bool) -> Loss:
    if fail:
        raise DataLossError(f"stream {part.stream}: {detail}")
    ledger = read_ledger(part.path.rsplit("/", 2)[0])
    born = ledger.streams.get(part.stream)
    from_ns = from_ns or (born.born_ns if born else 0)
    return Loss(part.stream, offset, end, reason, from_ns, until_ns or part.written_ns, pairs_of(ledger, part.stream), part.node)
