"""Translation of runs from one framing to another, if a listener's clients and its upstream use different framings.

It makes one pass over a run, and no object for a small frame: headers and small bodies are copied into one buffer, large bodies are referred to where
they are. A body that contains the delimiter of the other framing cannot be translated. A size that does not fit was refused when its header was read
(``Receive.limit``).
"""

from typing import Final

from librt.strings import BytesWriter, read_i64_le, write_i64_le
from mypy_extensions import i64, u8

from framegate.proxy.network.framing import Framing
from framegate.proxy.network.run import PART_FIRST, Buffer, Run

REFER_FROM: Final = 16384  # bodies of at least this size are not copied
WRITE_FROM: Final = 128  # bodies of at least this size are copied at once, smaller ones eight bytes at a time
KEPT: Final = 1 << 20  # a larger buffer is dropped after use, because it does not shrink


class Scratch:
    """The buffer that all translations of a processor share, one at a time."""

    def __init__(self) -> None:
        self.writer: BytesWriter = BytesWriter()  # the buffer; ``take`` may replace it

    def begin(self) -> BytesWriter:
        """Return the buffer, emptied; a translation that failed may have left bytes in it."""
        if len(self.writer) != 0:
            self.writer.truncate(0)
        return self.writer

    def take(self) -> bytes:
        """Return the bytes written, and empty the buffer."""
        value = self.writer.getvalue()
        if len(value) > KEPT:
            self.writer = BytesWriter()
        else:
            self.writer.truncate(0)
        return value


class Translation:
    """A translation from ``source`` to ``target``. It keeps no frames between two calls. ``joins``: for code that looks into frames: put the result
    into one buffer (except for a large first frame that came in pieces), and put the header bytes of ``source`` that are not part of the size in
    front of each body.
    """

    def __init__(self, source: Framing, target: Framing, scratch: Scratch, *, joins: bool = False) -> None:
        self.source: Final = source
        self.target: Final = target
        self.stopped_at: i64 = -1  # how many frames of the last run were translated, if not all could be; else -1
        self._scratch: Final = scratch
        self._joins: Final = joins
        self._others: Final[i64] = source.others if joins else 0
        self._keeps: Final = target.keeps and source.others == target.others and source.others != 0

    def frames(self, run: Run) -> Run:
        """Translate whole frames, up to the first that cannot be translated (``stopped_at``). The lease stays with ``run``."""
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
        looks = target.tail != 0 and data.find(target.delimiter, position, end) >= 0  # it may also be in a header or between frames
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
        """Translate a piece of a frame that is cut through: only the first piece has a header. The lease stays with ``run``."""
        if run.part & PART_FIRST == 0:
            return run
        header, body = run.first_sizes()
        self._write_header(self._scratch.begin(), run.prefix(header), 0, body)
        pieces: list[Buffer] = [self._scratch.take()]
        refer(run.pieces(), header, run.size - header, pieces)
        return self._finish(pieces, 0, run.frames, run.part)

    def _begun(self, run: Run, head: list[Buffer], pieces: list[Buffer]) -> bool:
        """Translate the first frame of a run with a ``head``. Returns False if it cannot be translated."""
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
        """Make the resulting run. ``begun``: how many pieces belong to a large first frame, which is not copied."""
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
    """Append ``size`` bytes of ``source`` behind its first ``skip`` to ``pieces``, without copying."""
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
    """Whether a body in pieces contains a delimiter of one or two bytes, which may be split between two pieces."""
    before = b""
    for piece in pieces:
        data = piece if isinstance(piece, bytes) else bytes(piece)
        if data.find(delimiter) >= 0 or (len(delimiter) == 2 and before + data[:1] == delimiter):
            return True
        before = data[-1:]
    return False


def _copy(data: bytes, begin: i64, end: i64, writer: BytesWriter) -> None:
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
