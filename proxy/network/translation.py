"""Frames of one framing as those of another, a run at a time: what a listener's clients speak, and what its upstream does.

One pass over the run and one gathering write, no object for a small frame: headers and small bodies go into one buffer, large bodies stay where the
read put them. A body that holds what ends the other side's frames cannot be passed on; that is the only thing that is found here, since a size
that does not fit was refused when its header was read (``Receive.limit``).
"""

from typing import Final

from librt.strings import BytesWriter, read_i64_le, write_i64_le
from mypy_extensions import i64, u8

from proxy.network.framing import Framing
from proxy.network.run import PART_FIRST, Buffer, Run

__all__ = ["Translation"]

REFER_FROM: Final = 16384  # bodies from here on are not copied
WRITE_FROM: Final = 128  # those from here on are copied at once, not by eight bytes


class Translation:
    """From ``source`` to ``target``. It holds no frame: what it was given is out when it returns.

    Args:
        source: what the runs are in.
        target: what they are to be.
        joins: the result is to lie in one buffer, with all that a header of ``source`` says besides the size in front of the body: for who looks
            into frames.

    Attributes:
        stopped_at: frames of the last run that could be passed on, when not all of them could; else -1.
    """

    def __init__(self, source: Framing, target: Framing, *, joins: bool = False) -> None:
        self.source: Final = source
        self.target: Final = target
        self.stopped_at: i64 = -1
        self._joins: Final = joins
        self._others: Final[i64] = source.others if joins else 0
        self._keeps: Final = target.keeps and source.others == target.others and source.others != 0
        self._writer: Final = BytesWriter()

    def frames(self, run: Run) -> Run:
        """Whole frames; those behind one that cannot be passed on are left out (``stopped_at``). The lease stays with ``run``."""
        self.stopped_at = -1
        writer = self._writer
        pieces: list[Buffer] = []
        done: i64 = 0
        if run.head is not None:
            if not self._begun(run, pieces):
                self.stopped_at = 0
                return Run(None, 0, b"", 0, 0, 0, 0, 0, self.target)
            done = 1
        source = self.source
        target = self.target
        data = run.data
        end = run.end
        position = run.first
        looks = target.tail != 0 and data.find(target.delimiter, position, end) >= 0  # it may be in a header, or between frames
        while position < end:
            header: i64 = source.header_size(data, position) if source.tail == 0 else 0
            body = source.body_size(data, position)
            begin = position + header
            position = begin + body
            if looks and data.find(target.delimiter, begin, position) >= 0:
                self.stopped_at = done
                break
            self._write_header(data, begin - header, body)
            if body < REFER_FROM or self._joins:
                _copy(data, begin, position, writer)
            else:
                pieces.append(writer.getvalue())
                writer.truncate(0)
                pieces.append(memoryview(data)[begin:position])
            if target.tail != 0:
                writer.write(target.delimiter)
            position += source.tail
            done += 1
        return self._finish(pieces, done, 0)

    def part(self, run: Run) -> Run:
        """A piece of a frame that is cut through: the first gets another header, the others stay as they are. The lease stays with ``run``."""
        if run.part & PART_FIRST == 0:
            return run
        header, body = run.first_sizes()
        self._write_header(run.prefix(header), 0, body)
        pieces: list[Buffer] = [self._writer.getvalue()]
        self._writer.truncate(0)
        left = header
        for piece in run.pieces():
            size: i64 = len(piece)
            if left < size:
                pieces.append(memoryview(piece)[left:])
            left = max(left - size, 0)
        return self._finish(pieces, run.frames, run.part)

    def _begun(self, run: Run, pieces: list[Buffer]) -> bool:
        """The run's first frame, whose beginning earlier reads gave; False: it cannot be passed on."""
        source = self.source
        target = self.target
        header, body = run.first_sizes()
        if body < REFER_FROM or self._joins or source.tail != 0 or target.tail != 0:
            whole = b"".join([*run.head, run.data[: run.first]]) if run.head is not None else b""
            if target.tail != 0 and whole.find(target.delimiter, header, header + body) >= 0:
                return False
            self._write_header(whole, 0, body)
            self._writer.write(whole[header : header + body])
            if target.tail != 0:
                self._writer.write(target.delimiter)
            return True
        self._write_header(run.prefix(header), 0, body)
        pieces.append(self._writer.getvalue())
        self._writer.truncate(0)
        left = header
        for piece in run.head or ():
            size: i64 = len(piece)
            if left < size:
                pieces.append(memoryview(piece)[left:] if left != 0 else piece)
            left = max(left - size, 0)
        if left < run.first:
            pieces.append(memoryview(run.data)[left : run.first])
        return True

    def _write_header(self, data: bytes, start: i64, body: i64) -> None:
        target = self.target
        if self._others != 0:
            target.write_header(self._writer, body + self._others, target.fill)
            self._writer.write(self.source.other_bytes(data, start))
        elif self._keeps:
            target.write_header(self._writer, body, self.source.other_bytes(data, start))
        else:
            target.write_header(self._writer, body, target.fill)

    def _finish(self, pieces: list[Buffer], frames: i64, part: i64) -> Run:
        writer = self._writer
        rest = writer.getvalue()
        writer.truncate(0)
        if not pieces:
            return Run(None, 0, rest, 0, len(rest), frames, 0, part, self.target)
        if len(rest) != 0:
            pieces.append(rest)
        size: i64 = 0
        for piece in pieces:
            size += len(piece)
        if self._joins:
            joined = b"".join(pieces)
            return Run(None, 0, joined, size, size, frames, 0, part, self.target)
        return Run(pieces, size, b"", 0, 0, frames, 0, part, self.target)


def _copy(data: bytes, begin: i64, end: i64, writer: BytesWriter) -> None:
    """Append ``data[begin:end]``."""
    if end - begin >= WRITE_FROM:
        writer.write(data[begin:end])
        return
    size = i64(len(writer)) + end - begin
    while begin + 8 <= end:
        write_i64_le(writer, read_i64_le(data, begin))
        begin += 8
    if begin == end:
        return
    if begin + 8 <= i64(len(data)):
        write_i64_le(writer, read_i64_le(data, begin))
        writer.truncate(size)
        return
    while begin < end:
        writer.append(u8(data[begin]))
        begin += 1
