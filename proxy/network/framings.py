"""The framings that a configuration may name: ``int32`` (its own module), varint, lines, and all that have a header of fixed size."""

from typing import Final

from librt.strings import BytesWriter, read_i32_be, read_i32_le, write_i32_be, write_i32_le
from librt.vecs import append, vec
from mypy_extensions import i32, i64, u8

from framegate.proxy.config.model import HeaderConfig
from framegate.proxy.network.framing import FRAME_TOO_LARGE, NEGATIVE_SIZE, OK, Framing, size_bucket
from framegate.proxy.network.int32 import INT32

LONGEST: Final = 5  # bytes of a varint
MAX_SIZE: Final = 0x7FFFFFFF


class VarintFraming(Framing):
    """``[varint][body]``, as Protobuf's delimited streams: an unsigned varint of at most five bytes, the least significant seven bits first. It may
    have more bytes than necessary. A longer one, or one above 2^31 - 1, is a negative size, because Protobuf writes negative numbers so.
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

    def write_header(self, writer: BytesWriter, size: i64, others: bytes) -> None:
        while size >= 0x80:
            writer.append(u8((size & 0x7F) | 0x80))
            size >>= 7
        writer.append(u8(size))


VARINT: Final = VarintFraming()


class LineFraming(Framing):
    """``[body][delimiter]``, without a header. The delimiter is LF, or CR and LF; a body must not contain it."""

    def __init__(self, name: str, delimiter: bytes) -> None:
        super().__init__(name, 1, 1, delimiter=delimiter)

    def header_size(self, data: bytes, start: i64) -> i64:
        """Return 0; -1 while the delimiter is missing."""
        return 0 if data.find(self.delimiter, start) >= 0 else -1

    def body_size(self, data: bytes, start: i64) -> i64:
        return i64(data.find(self.delimiter, start)) - start

    def scan(self, data: bytes, start: i64, limit: i64, sizes: vec[i64]) -> tuple[i64, i64, i64, i64]:
        length: i64 = len(data)
        position = start
        frames: i64 = 0
        while position < length:
            size = i64(data.find(self.delimiter, position)) - position
            if size < 0:
                fault: i64 = OK
                if length - position > limit + self.tail - 1 and limit >= 0:
                    fault = FRAME_TOO_LARGE
                return frames, position, -1, fault
            if size > limit and limit >= 0:
                return frames, position, 0, FRAME_TOO_LARGE
            sizes[size_bucket(size)] += 1
            position += size + self.tail
            frames += 1
        return frames, position, 0, OK

    def frame_starts(self, data: bytes, start: i64, end: i64, base: i64, starts: vec[i64]) -> vec[i64]:
        while start < end:
            starts = append(starts, base + start)
            start += self.body_size(data, start) + self.tail
        return starts

    def write_starts(self, data: bytes, start: i64, end: i64, base: i64, starts: BytesWriter) -> None:
        while start < end:
            write_i32_le(starts, i32(base + start))
            start += self.body_size(data, start) + self.tail

    def write_header(self, writer: BytesWriter, size: i64, others: bytes) -> None:
        """Write nothing."""


LINES: Final = LineFraming("lines", b"\n")
LINES_CRLF: Final = LineFraming("lines_crlf", b"\r\n")


class FixedHeaderFraming(Framing):
    """``[header][body]``: the header has ``header`` bytes, and an integer in it is the size."""

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
            one: i64 = 1  # typed, because a literal would be shifted as an int of 32 bits
            most = (one << (8 * width - (1 if signed else 0))) - 1
        super().__init__(name, header, header, most - extra, others=header - width, fill=fill, keeps=keeps)
        self.header: Final[i64] = header  # bytes of a header
        self.offset: Final[i64] = offset  # the position of the integer in the header
        self.width: Final[i64] = width  # bytes of the integer, 1 to 8
        self.little: Final = little  # the integer is little-endian
        self.signed: Final = signed  # the integer is in two's complement
        # how many bytes the integer counts besides the body: none, the rest of the header behind it, or the whole header
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
            return 0x7FFFFFFFFFFFFFFF  # an unsigned integer of eight bytes that is larger than any frame
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


FRAMINGS: Final[dict[str, Framing]] = {
    framing.name: framing
    for framing in (
        INT32,
        FixedHeaderFraming("uint32_le", header=4, little=True),
        FixedHeaderFraming("int16", header=2, width=2, signed=True),
        VARINT,
        FixedHeaderFraming("int32_inclusive", header=4, signed=True, extra=4),
        FixedHeaderFraming("grpc_message", header=5, offset=1),
        FixedHeaderFraming("mysql_packet", header=4, width=3, little=True),
        LINES,
        LINES_CRLF,
    )
}  # By name. ``header`` is missing, because it is made from its own keys.


def framing_of(name: str, header: HeaderConfig | None, made: dict[HeaderConfig, Framing]) -> Framing:
    """Return the framing of a side. ``header``: the keys of the framing ``header``; None for all others. ``made``: framings that were made from such
    keys; two sides with equal keys share one. A new one is added.
    """
    if header is None:
        return FRAMINGS[name]
    framing = made.get(header)
    if framing is None:
        behind = header.size - header.offset - header.width
        framing = made[header] = FixedHeaderFraming(
            name,
            header=header.size,
            offset=header.offset,
            width=header.width,
            little=header.byte_order == "little",
            extra={"body": 0, "rest": behind, "frame": header.size}[header.counts],
            fill=bytes.fromhex(header.fill),
            keeps=header.other_bytes == "keep",
        )
    return framing
