"""Framings whose headers all have one length, and hold the size as an integer somewhere within: all but ``varint`` and ``lines``."""

from typing import Final

from librt.strings import BytesWriter, read_i32_be, read_i32_le, write_i32_be, write_i32_le
from librt.vecs import append, vec
from mypy_extensions import i32, i64, u8

from framegate.proxy.network.framing import FRAME_TOO_LARGE, NEGATIVE_SIZE, OK, Framing, size_bucket

__all__ = ["FixedHeaderFraming"]


class FixedHeaderFraming(Framing):
    """A header of ``header`` bytes, in which an integer of ``width`` bytes at ``offset`` says how long the frame is.

    Attributes:
        header: bytes of a header.
        offset: where in it the integer lies.
        width: its bytes, 1 to 8.
        little: its least significant byte comes first.
        signed: in two's complement.
        extra: how many bytes the integer counts besides the body: 0; those of the header behind it; or all of the header.
    """

    def __init__(
        self,
        name: str,
        *,
        header: i64,
        offset: i64 = 0,
        width: i64 = 4,
        little: bool = False,
        signed: bool = False,
        extra: i64 = 0,
        fill: bytes = b"",
        keeps: bool = True,
    ) -> None:
        most: i64 = 0x7FFFFFFF
        if width < 4:
            one: i64 = 1  # typed: a literal is shifted as an int of 32 bits
            most = (one << (8 * width - (1 if signed else 0))) - 1
        super().__init__(name, header, header, most - extra, others=header - width, fill=fill, keeps=keeps)
        self.header: Final[i64] = header
        self.offset: Final[i64] = offset
        self.width: Final[i64] = width
        self.little: Final = little
        self.signed: Final = signed
        self.extra: Final[i64] = extra
        self._first: Final[i64] = offset if not little else offset + width - 1  # the most significant byte
        self._step: Final[i64] = 1 if not little else -1

    def body_size(self, data: bytes, start: i64) -> i64:
        if self.width == 4:
            at = start + self.offset
            size = i64(read_i32_be(data, at)) if not self.little else i64(read_i32_le(data, at))
            if size < 0 and not self.signed:
                size += 0x100000000
            return size - self.extra
        position = start + self._first
        step = self._step
        value = i64(data[position])
        if self.signed and value >= 128:
            value -= 256
        left = self.width - 1
        while left > 0:
            position += step
            value = (value << 8) | i64(data[position])
            left -= 1
        if value < 0 and not self.signed:
            return 0x7FFFFFFFFFFFFFFF  # eight bytes of an unsigned integer that no frame has
        return value - self.extra

    def header_size(self, data: bytes, start: i64) -> i64:
        there = i64(len(data)) - start
        return self.header if there >= self.header else there - self.header

    def scan(self, data: bytes, start: i64, limit: i64, sizes: vec[i64]) -> tuple[i64, i64, i64, i64]:
        length: i64 = len(data)
        header = self.header
        position = start
        frames: i64 = 0
        while length - position >= header:
            size = self.body_size(data, position)
            if size < 0:
                return frames, position, 0, NEGATIVE_SIZE
            if size > limit and limit >= 0:
                return frames, position, 0, FRAME_TOO_LARGE
            missing = size - (length - position - header)
            if missing > 0:
                return frames, position, missing, OK
            sizes[size_bucket(size)] += 1
            position += header + size
            frames += 1
        return frames, position, 0 if position == length else length - position - header, OK

    def frame_starts(self, data: bytes, start: i64, end: i64, base: i64, starts: vec[i64]) -> vec[i64]:
        position = start
        while position < end:
            starts = append(starts, base + position)
            position += self.header + self.body_size(data, position)
        return starts

    def write_starts(self, data: bytes, start: i64, end: i64, base: i64, starts: BytesWriter) -> None:
        position = start
        while position < end:
            write_i32_le(starts, i32(base + position))
            position += self.header + self.body_size(data, position)

    def other_bytes(self, data: bytes, start: i64) -> bytes:
        if self.others == 0:
            return b""
        behind = start + self.offset + self.width
        if self.offset == 0:
            return data[behind : start + self.header]
        if self.offset == self.others:
            return data[start : start + self.offset]
        return data[start : start + self.offset] + data[behind : start + self.header]

    def write_header(self, writer: BytesWriter, size: i64, others: bytes) -> None:
        value = size + self.extra
        index: i64 = 0
        while index < self.offset:
            writer.append(u8(others[index]))
            index += 1
        if self.width == 4 and self.little:
            write_i32_le(writer, i32(value))
        elif self.width == 4:
            write_i32_be(writer, i32(value))
        else:
            self._write_integer(writer, value)
        while index < self.others:
            writer.append(u8(others[index]))
            index += 1

    def _write_integer(self, writer: BytesWriter, value: i64) -> None:
        shift = 8 * (self.width - 1) if not self.little else 0
        step: i64 = -8 if not self.little else 8
        left = self.width
        while left > 0:
            writer.append(u8((value >> shift) & 0xFF))
            shift += step
            left -= 1
