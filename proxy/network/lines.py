"""Framings without headers: a frame is what lies before a line's end, which is LF, or CR and LF, and is no part of its body.

How long a frame is, is known when it is whole: until then its size is that of a header that is not. What ends lines cannot be within one, so a body
with it cannot be passed on as a line.
"""

from typing import Final

from librt.strings import BytesWriter, write_i32_le
from librt.vecs import append, vec
from mypy_extensions import i32, i64

from framegate.proxy.network.framing import FRAME_TOO_LARGE, OK, Framing, size_bucket

__all__ = ["LINES", "LINES_CRLF", "LineFraming"]


class LineFraming(Framing):
    """``[body][delimiter]``."""

    def __init__(self, name: str, delimiter: bytes) -> None:
        super().__init__(name, 1, 1, delimiter=delimiter)

    def header_size(self, data: bytes, start: i64) -> i64:
        """0; -1 while the end of the line is not here."""
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
        """Nothing."""


LINES: Final = LineFraming("lines", b"\n")
LINES_CRLF: Final = LineFraming("lines_crlf", b"\r\n")
