"""Frames of one framing as those of another, a run at a time: what a listener's clients speak, and what its upstream does.

One pass over the run and one gathering write, no object for a small frame: headers and small bodies go into one buffer, large bodies stay where the
read put them. A body that holds what ends the other side's frames cannot be passed on; that is the only thing that is found here, since a size
that does not fit was refused when its header was read (``Receive.limit``).
"""

from typing import Final

from librt.strings import BytesWriter, read_i64_le, write_i64_le
from mypy_extensions import i64, u8

from framegate.proxy.network.framing import Framing
from framegate.proxy.network.run import PART_FIRST, Buffer, Run

__all__ = ["Scratch", "Translation", "contains_delimiter", "refer"]

REFER_FROM: Final = 16384  # bodies from here on are not copied
WRITE_FROM: Final = 128  # those from here on are copied at once, not by eight bytes
KEPT: Final = 1 << 20  # a buffer that holds more is let go: it never shrinks


class Scratch:
    """The buffer that translations write into, one at a time: all of a processor share it, so that a connection keeps none.

    Attributes:
        writer: it; another after ``take``.
    """

    def __init__(self) -> None:
        self.writer: BytesWriter = BytesWriter()

    def begin(self) -> BytesWriter:
        """The buffer, empty, whatever became of who had it before."""
        if len(self.writer) != 0:
            self.writer.truncate(0)
        return self.writer

    def take(self) -> bytes:
        """What was written; the buffer is empty then."""
        value = self.writer.getvalue()
        if len(value) > KEPT:
            self.writer = BytesWriter()
        else:
            self.writer.truncate(0)
        return value


class Translation:
    """From ``source`` to ``target``. It holds no frame, and no buffer of its own: what it was given is out when it returns.

    Args:
        source: what the runs are in.
        target: what they are to be.
        scratch: of the processor.
        joins: the result is to lie in one buffer, but for a large first frame that came in pieces, with all that a header of ``source`` says besides
            the size in front of the body: for who looks into frames.

    Attributes:
        stopped_at: frames of the last run that could be passed on, when not all of them could; else -1.
    """

    def __init__(self, source: Framing, target: Framing, scratch: Scratch, *, joins: bool = False) -> None:
        self.source: Final = source
        self.target: Final = target
        self.stopped_at: i64 = -1
        self._scratch: Final = scratch
        self._joins: Final = joins
        self._others: Final[i64] = source.others if joins else 0
        self._keeps: Final = target.keeps and source.others == target.others and source.others != 0

    def frames(self, run: Run) -> Run:
        """Whole frames; those behind one that cannot be passed on are left out (``stopped_at``). The lease stays with ``run``."""
        self.stopped_at = -1
        scratch = self._scratch
        writer = scratch.begin()
        pieces: list[Buffer] = []
        done: i64 = 0
        begun: i64 = 0
        if run.head is not None:
            if not self._begun(run, run.head, pieces):
                self.stopped_at = 0
                return Run(None, 0, b"", 0, 0, 0, 0, 0, self.target)
            writer = scratch.writer
            done = 1
            begun = len(pieces)
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
            self._write_header(writer, data, begin - header, body)
            if body < REFER_FROM:
                _copy(data, begin, position, writer)
            else:
                pieces.append(scratch.take())
                writer = scratch.writer
                pieces.append(memoryview(data)[begin:position])
            if target.tail != 0:
                writer.write(target.delimiter)
            position += source.tail
            done += 1
        return self._finish(pieces, begun, done, 0)

    def part(self, run: Run) -> Run:
        """A piece of a frame that is cut through: the first gets another header, the others stay as they are. The lease stays with ``run``."""
        if run.part & PART_FIRST == 0:
            return run
        header, body = run.first_sizes()
        self._write_header(self._scratch.begin(), run.prefix(header), 0, body)
        pieces: list[Buffer] = [self._scratch.take()]
        refer(run.pieces(), header, run.size - header, pieces)
        return self._finish(pieces, 0, run.frames, run.part)

    def _begun(self, run: Run, head: list[Buffer], pieces: list[Buffer]) -> bool:
        """The run's first frame, whose beginning earlier reads gave; False: it cannot be passed on."""
        scratch = self._scratch
        target = self.target
        header, body = run.first_sizes()
        if body < REFER_FROM:
            whole = b"".join([*head, run.data[: run.first]])
            if target.tail != 0 and whole.find(target.delimiter, header, header + body) >= 0:
                return False
            self._write_header(scratch.writer, whole, 0, body)
            scratch.writer.write(whole[header : header + body])
        else:
            bodies: list[Buffer] = []
            refer([*head, run.data], header, body, bodies)
            if target.tail != 0 and contains_delimiter(bodies, target.delimiter):
                return False
            self._write_header(scratch.writer, run.prefix(header), 0, body)
            pieces.append(scratch.take())
            pieces += bodies
        if target.tail != 0:
            scratch.writer.write(target.delimiter)
        return True

    def _write_header(self, writer: BytesWriter, data: bytes, start: i64, body: i64) -> None:
        target = self.target
        if self._others != 0:
            target.write_header(writer, body + self._others, target.fill)
            writer.write(self.source.other_bytes(data, start))
        elif self._keeps:
            target.write_header(writer, body, self.source.other_bytes(data, start))
        else:
            target.write_header(writer, body, target.fill)

    def _finish(self, pieces: list[Buffer], begun: i64, frames: i64, part: i64) -> Run:
        """The result. ``begun``: how many of the pieces are of a large first frame, of which no copy is made."""
        rest = self._scratch.take()
        if not pieces:
            return Run(None, 0, rest, 0, len(rest), frames, 0, part, self.target)
        if len(rest) != 0:
            pieces.append(rest)
        joined = b""
        if self._joins:
            joined = b"".join(pieces[begun:])
            pieces = pieces[:begun]
        end: i64 = len(joined)
        if not pieces:
            return Run(None, 0, joined, 0 if part == 0 else end, end, frames, 0, part, self.target)
        size: i64 = 0
        for piece in pieces:
            size += len(piece)
        return Run(pieces, size, joined, 0, end, frames, 0, part, self.target)


def refer(source: list[Buffer], skip: i64, size: i64, pieces: list[Buffer]) -> None:
    """Append ``size`` bytes of ``source``, which has as many behind its first ``skip``, as they lie there."""
    if size == 0:
        return
    for piece in source:
        length: i64 = len(piece)
        if skip >= length:
            skip -= length
            continue
        end = min(length, skip + size)
        pieces.append(piece if skip == 0 and end == length else memoryview(piece)[skip:end])
        size -= end - skip
        skip = 0
        if size == 0:
            return


def contains_delimiter(pieces: list[Buffer], delimiter: bytes) -> bool:
    """Whether a body in pieces holds a delimiter of one byte or two, which may be split between them."""
    before = b""
    for piece in pieces:
        data = piece if isinstance(piece, bytes) else bytes(piece)
        if data.find(delimiter) >= 0 or (len(delimiter) == 2 and before + data[:1] == delimiter):
            return True
        before = data[-1:]
    return False


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
