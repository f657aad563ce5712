"""The framing of Protobuf's delimited streams: an unsigned varint N of at most five bytes, the least significant seven bits first, then N bytes."""

from typing import Final

from librt.strings import BytesWriter, write_i32_le
from librt.vecs import append, vec
from mypy_extensions import i32, i64, u8

from framegate.proxy.network.framing import FRAME_TOO_LARGE, NEGATIVE_SIZE, OK, Framing, size_bucket

__all__ = ["VARINT", "VarintFraming"]

LONGEST: Final = 5
MAX_SIZE: Final = 0x7FFFFFFF


class VarintFraming(Framing):
    """``[varint][body]``. A varint may be longer than it needs to be. One of more than five bytes, or above 2^31 - 1, is Protobuf's way to write a
    negative number.
    """

    def __init__(self) -> None:
        super().__init__("varint", 1, LONGEST)

    def header_size(self, data: bytes, start: i64) -> i64:
        length: i64 = len(data)
        size: i64 = 0
        while start + size < length:
            size += 1
            if data[start + size - 1] < 0x80 or size == LONGEST:
                return size
        return -1

    def body_size(self, data: bytes, start: i64) -> i64:
        value: i64 = 0
        shift: i64 = 0
        while shift < 7 * LONGEST:
            byte = i64(data[start])
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value if value <= MAX_SIZE else -1
            shift += 7
            start += 1
        return -1

    def scan(self, data: bytes, start: i64, limit: i64, sizes: vec[i64]) -> tuple[i64, i64, i64, i64]:
        length: i64 = len(data)
        position = start
        frames: i64 = 0
        while position < length:
            size = i64(data[position])
            header: i64 = 1
            if size >= 0x80:
                header = self.header_size(data, position)
                if header < 0:
                    return frames, position, -1, OK
                size = self.body_size(data, position)
                if size < 0:
                    return frames, position, 0, NEGATIVE_SIZE
            if size > limit and limit >= 0:
                return frames, position, 0, FRAME_TOO_LARGE
            missing = size - (length - position - header)
            if missing > 0:
                return frames, position, missing, OK
            if size <= 256:
                sizes[0] += 1
            else:
                sizes[size_bucket(size)] += 1
            position += header + size
            frames += 1
        return frames, position, 0, OK

    def frame_starts(self, data: bytes, start: i64, end: i64, base: i64, starts: vec[i64]) -> vec[i64]:
        while start < end:
            starts = append(starts, base + start)
            start += self.header_size(data, start) + self.body_size(data, start)
        return starts

    def write_starts(self, data: bytes, start: i64, end: i64, base: i64, starts: BytesWriter) -> None:
        while start < end:
            write_i32_le(starts, i32(base + start))
            start += self.header_size(data, start) + self.body_size(data, start)

    def write_header(self, writer: BytesWriter, size: i64, others: bytes) -> None:
        while size >= 0x80:
            writer.append(u8((size & 0x7F) | 0x80))
            size >>= 7
        writer.append(u8(size))


VARINT: Final = VarintFraming()
