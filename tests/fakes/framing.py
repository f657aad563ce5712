"""A framing that is not int32, written for tests: ``[uint16, little endian][body]``."""

import struct

from librt.strings import BytesWriter
from librt.vecs import append, vec
from mypy_extensions import i64

from framegate.proxy.network.framing import FRAME_TOO_LARGE, OK, Framing, check_size, size_bucket

HEADER = 2


class LittleFraming(Framing):
    """No code outside of this file knows this framing."""

    def __init__(self) -> None:
        super().__init__("int32", HEADER, HEADER)  # the tap's log knows no other name

    def scan(self, data: bytes, start: i64, limit: i64, sizes: vec[i64]) -> tuple[i64, i64, i64, i64]:
        position, frames = start, 0
        while (left := len(data) - position) >= HEADER:
            size = self.body_size(data, position)
            if check_size(size, limit) != OK:
                return frames, position, 0, FRAME_TOO_LARGE
            if left < HEADER + size:
                return frames, position, HEADER + size - left, OK
            sizes[size_bucket(size)] += 1
            position += HEADER + size
            frames += 1
        return frames, position, left - HEADER if left else 0, OK

    def header_size(self, data: bytes, start: i64) -> i64:
        return min(HEADER, len(data) - start - HEADER) if len(data) - start < HEADER else HEADER

    def body_size(self, data: bytes, start: i64) -> i64:
        return int.from_bytes(data[start : start + HEADER], "little")

    def frame_starts(self, data: bytes, start: i64, end: i64, base: i64, starts: vec[i64]) -> vec[i64]:
        while start < end:
            starts = append(starts, base + start)
            start += HEADER + self.body_size(data, start)
        return starts

    def write_starts(self, data: bytes, start: i64, end: i64, base: i64, starts: BytesWriter) -> None:
        for position in self.frame_starts(data, start, end, base, vec[i64]()):
            starts.write(struct.pack("<i", position))

    def write_header(self, writer: BytesWriter, size: i64, others: bytes) -> None:
        writer.write(int(size).to_bytes(HEADER, "little"))


LITTLE = LittleFraming()
