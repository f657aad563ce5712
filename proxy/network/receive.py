"""The receive: the frame in progress of a channel, that is, the one of which a part was read.

``feed`` takes the bytes of one read, finds the run of whole frames in them, and stages the rest: the beginning of a frame, or a part of a header.
Staged bytes are kept as the pieces that were read, small ones joined, so that a large frame is never copied. Each piece is booked with its overhead.

A frame that is larger than ``cut_from``, and not whole in one read, is *cut through*: its bytes are returned as they come, in runs with a ``part``.
The first piece has at least ``first_piece`` bytes, and the beginning of the body. If whole frames precede it in the same read, it stays staged until
``take_part``. Within such a frame no more bytes may be fed than it misses.

If clients authenticate with SASL, a frame of a later authentication that is too large is refused as soon as its api key is here, so it is neither
held nor passed on. The consumer checks a frame that was whole in one read.
"""

from typing import Final

from librt.strings import read_i16_be
from mypy_extensions import i64

from framegate.proxy.network.channel_sink import ChannelSink
from framegate.proxy.network.frame_exchange import is_sasl
from framegate.proxy.network.framing import (
    FRAME_TOO_LARGE,
    NEGATIVE_SIZE,
    NOT_OURS,
    OK,
    SASL_TOO_LARGE,
    Framing,
    check_size,
    foreign_protocol,
    size_bucket,
)
from framegate.proxy.network.int32 import HEADER, INT32
from framegate.proxy.network.memory_pool import BEGUN, PIECE_OVERHEAD, Account
from framegate.proxy.network.pool_kinds import LeakFindingAccount
from framegate.proxy.network.run import PART, PART_FIRST, PART_LAST, Buffer, Run, held
from framegate.proxy.network.stats import SideStats

JOIN_BELOW: Final = 4096  # pieces smaller than this are joined
REFUSED_HEAD: Final = 16
FIRST_BYTES: Final = 8  # of a body; they identify a Kafka request
KEY_END: Final = HEADER + 2  # of the api key of a Kafka request
NEVER_CUT: Final = 1 << 62
VIEW_FROM: Final = 16384  # the rest of a read is kept as a view if it has at least this size and is at least half of the read


class ReceiveLimit:
    """The max_receive_size, shared by channels."""

    def __init__(self, value: i64, rule: str = "") -> None:
        self.value: i64 = value  # bytes of a frame's body; -1 for unlimited. The value at the time when the last byte of a header is scanned decides.
        self.passed_to: i64 = -1  # larger bodies up to this size are reported (``Receive.reports_to``) and passed on; -1: none are
        self.rule: Final = rule  # the name of the limit rule that it is of; empty: none


class Receive:
    """Finds frames in the bytes that a channel reads, and stages the incomplete one."""

    def __init__(
        self,
        account: Account,
        limit: ReceiveLimit,
        stats: SideStats,
        cut_from: i64 = NEVER_CUT,
        first_piece: i64 = 0,
        framing: Framing = INT32,
        onward: Framing | None = None,
        sasl_limit: i64 = NEVER_CUT,
        *,
        keeps_first: bool = False,
    ) -> None:
        self.framing: Final = framing  # the framing of the channel's side
        # how many bytes the shortest frame is longer in the framing of the other side
        self.growth: Final[i64] = 0 if onward is None else max(onward.least_frame - framing.least_frame, 0)
        # frames may be cut through; False if either framing has a delimiter
        self.can_cut: Final[bool] = framing.tail == 0 and (onward is None or onward.tail == 0)
        # while memory is short also small ones, after any part; False with ``ChannelOptions.keeps_first``
        self.cuts_small: Final[bool] = self.can_cut and not keeps_first
        self._max_body: Final[i64] = framing.max_body if onward is None else onward.max_body
        self._account: Final = account
        self._leaks: Final = account if isinstance(account, LeakFindingAccount) else None
        self.max_size: ReceiveLimit = limit  # the limit; another one holds from the next header on
        self.reports_to: ChannelSink | None = None  # is told of frames that are passed on in spite of their size; None: nothing is
        self._stats: Final = stats
        self._cut_from: i64 = cut_from if self.can_cut else NEVER_CUT
        self._least_piece: Final[i64] = framing.most_header + FIRST_BYTES
        self._sasl_limit: Final[i64] = sasl_limit
        self._first_piece: Final[i64] = max(first_piece, self._least_piece)
        self._least: i64 = self._first_piece  # bytes of the first piece of the frame in progress, at least
        self._lacks: i64 = framing.least_header  # bytes that its header misses, at least
        self._body: i64 = 0  # bytes of its body
        self._cut_next: bool = False
        self._pieces: list[Buffer] | None = None
        self._booked: i64 = 0
        self._first: bool = True
        self.staged: i64 = 0  # bytes kept of the frame in progress, header counted; 0 between frames
        self.size: i64 = -1  # bytes of the frame in progress, header counted; -1 while its header is incomplete
        self.cut: bool = False  # the frame in progress is cut through
        self.passed: i64 = 0  # bytes of it that were returned
        self.abandoned: bool = False  # the rest of it will not be passed on: it does not count as a frame even if it becomes complete
        self.fault: i64 = OK  # the fault that ``feed`` found, or ``framing.OK``. Nothing may be fed after a fault.
        self.faulty_size: i64 = 0  # the size that was refused
        self.refused_bytes: i64 = 0  # bytes of the last read that belong to the refused frame or follow it; without those ``staged`` before
        # the first ``REFUSED_HEAD`` bytes of the refused frame, as far as they were read, if it is too large or its size is negative
        self.refused_head: bytes = b""
        self.foreign: str = ""  # the name of the other protocol, if the fault is NOT_OURS

    @property
    def limit(self) -> i64:
        """The largest body that is accepted now without a further look: the max_receive_size, or what the framings can carry."""
        limit = self.max_size.value
        return limit if 0 <= limit <= self._max_body else self._max_body

    @property
    def most(self) -> i64:
        """The largest body that is accepted now."""
        return max(self.limit, min(self.max_size.passed_to, self._max_body))

    @property
    def booked(self) -> i64:
        """Bytes booked at the pool for the frame in progress."""
        return self._booked

    @property
    def within(self) -> bool:
        """Whether a frame is in progress."""
        return self.staged != 0 or self.cut

    @property
    def is_within_cut(self) -> bool:
        """Whether a piece of the frame in progress was returned."""
        return self.passed != 0

    @property
    def has_part(self) -> bool:
        """Whether the first piece of a frame that is cut through is staged, and may be taken."""
        return self.cut and self.passed == 0 and self.staged >= self._least

    def missing(self) -> i64:
        """How many bytes can be read without reading from the next frame: the rest of the header, or of the frame in progress."""
        if self.size < 0:
            return self._lacks
        return self.size - self.passed - self.staged

    def resulting_size(self, size: i64) -> i64:
        """How many bytes, in frames of any size, become at most ``size`` bytes in the other framing."""
        if self.growth == 0:
            return size
        least = self.framing.least_frame
        return size * least // (least + self.growth)

    def longest(self) -> i64:
        """The size of the frame in progress, or of its first piece if it is cut through, or the largest that it may have."""
        if self.cut and self.passed == 0:
            return self._least
        return self.size if self.size >= 0 else self.most + self.framing.most_header + self.framing.tail

    def reach(self, data: bytes) -> i64:
        """How many bytes of ``data``, which comes next, belong to the frame in progress, or to the next one if none is in progress."""
        if self.framing.tail == 0:
            return min(self.missing(), i64(len(data)))
        if self._ends_with(data):
            return 1
        at = i64(data.find(self.framing.delimiter))
        return i64(len(data)) if at < 0 else at + self.framing.tail

    def _ends_with(self, data: bytes) -> bool:
        """Whether the first byte of ``data`` completes a delimiter of two bytes, the first of which is staged."""
        delimiter = self.framing.delimiter
        pieces = self._pieces
        return len(delimiter) == 2 and pieces is not None and len(data) != 0 and data[0] == delimiter[1] and pieces[-1][-1] == delimiter[0]

    def unit(self) -> i64:
        """How many bytes must come before any can be passed on: the rest of the frame in progress, or of its first piece."""
        if not self.cut:
            return self.missing()
        if self.passed != 0:
            return 1
        return max(self._least - self.staged, 1)

    def cuts(self, size: i64) -> bool:
        """Whether a frame of ``size`` bytes, header counted, is cut through."""
        return size > self._cut_from

    def keep_whole(self, size: i64) -> None:
        """Cut through no later frame of at most ``size`` bytes, header counted."""
        self._cut_from = max(self._cut_from, size)

    def cut_next(self, least: i64) -> None:
        """Cut the next frame through. It is whole in the kernel, and only a part of it is fed next. Its first piece has at least ``least`` bytes."""
        self._cut_next = True
        self._least = max(least, self._least_piece)

    def cut_now(self, least: i64) -> None:
        """Cut the frame in progress through. Its first piece has at least ``least`` bytes."""
        self.cut = True
        self._least = min(max(least, self._least_piece), self.size)

    def feed(self, data: bytes) -> Run | None:
        """Take the bytes of one read. Returns the run that they complete, or None. A fault behind the run is in ``fault``; the run itself is
        good.
        """
        if self.staged != 0 or self._first or self.cut:
            return self._feed_begun(data)
        frames, end, rest, fault = self.framing.scan(data, 0, self.limit, self._stats.frame_sizes)
        if rest != 0 or fault != OK:
            if fault == FRAME_TOO_LARGE and self.max_size.passed_to >= 0:
                frames, end, rest, fault = self._pass_reported(data, frames, end)
            if rest != 0 or fault != OK:
                self._leave_rest(data, end, rest, fault)
        if frames == 0:
            return self.take_part()
        return Run(None, 0, data, 0, end, frames, 0, 0, self.framing)

    def take_part(self) -> Run | None:
        """Return the first piece of a frame that is cut through, from the staged bytes; None while there are too few."""
        if not self.has_part:
            return None
        size = self.staged
        run = self._run(size, b"", 0, 0, 0, PART | PART_FIRST)
        self._hand_out(size)
        return run

    def begun(self) -> bytes:
        """The staged bytes."""
        pieces = self._pieces
        return b"" if pieces is None else b"".join(pieces)

    def drop(self) -> i64:
        """Drop the frame in progress, and release its bytes. No effect without one. Returns how many staged bytes were dropped."""
        lost = self.staged
        booked = self._booked
        self._reset()  # before the release, which may call this object
        self._account.release(BEGUN, booked, self)
        return lost

    def _feed_begun(self, data: bytes) -> Run | None:
        """As ``feed``, if a frame is in progress, or for the connection's first bytes."""
        length: i64 = len(data)
        if self.cut:
            return self._feed_cut(data, length)
        if self.size < 0 and not self._take_header(data, length):
            if self.fault == FRAME_TOO_LARGE or self.fault == NEGATIVE_SIZE:
                self._keep_head(data, 0)
            return None
        first = self.size - self.staged
        if length < first:
            self._begin(data)
            return self.take_part()
        self._stats.frame_sizes[size_bucket(self._body)] += 1
        frames, end, rest, fault = self.framing.scan(data, first, self.limit, self._stats.frame_sizes)
        if fault == FRAME_TOO_LARGE and self.max_size.passed_to >= 0:
            frames, end, rest, fault = self._pass_reported(data, frames, end)
        run = self._run(self.staged, data, first if self.staged else 0, end, frames + 1, 0)
        self._reset()
        if rest != 0 or fault != OK:
            self._leave_rest(data, end, rest, fault)
        return run

    def _feed_cut(self, data: bytes, length: i64) -> Run | None:
        """As ``feed``, within a frame that is cut through."""
        assert length <= self.missing(), "no more is read than the frame misses"
        is_last = length == self.missing()
        if self.passed == 0 and self._is_sasl_too_large(data):
            self.refused_bytes = length
            return None
        if self.staged + length < self._least and self.passed == 0 and not is_last:
            self._stage(data)
            return None
        part: i64 = PART
        if self.passed == 0:
            part |= PART_FIRST
        frames: i64 = 0
        if is_last:
            part |= PART_LAST
            if not self.abandoned:
                frames = 1
                self._stats.frame_sizes[size_bucket(self._body)] += 1
        run = self._run(self.staged, data, length, length, frames, part)
        self._hand_out(self.staged + length)
        if is_last:
            self._reset()
        return run

    def _run(self, head_size: i64, data: bytes, first: i64, end: i64, frames: i64, part: i64) -> Run:
        """Make a run of the staged bytes and of ``data[:end]``. The booking of the staged bytes becomes its lease."""
        leaks = self._leaks
        if leaks is not None and self._booked != 0:
            return leaks.lend(self, self._pieces, head_size, data, first, end, frames, self._booked, part, self.framing)
        return Run(self._pieces, head_size, data, first, end, frames, self._booked, part, self.framing)

    def pass_by(self, size: i64) -> i64:
        """Count ``size`` bytes of a frame that is cut through which bypassed this object. Returns: 1 if they complete it, else 0."""
        assert 0 < size <= self.missing(), "no more passes than the frame misses"
        self.passed += size
        if self.passed < self.size:
            return 0
        self._stats.frame_sizes[size_bucket(self._body)] += 1
        self._reset()
        return 1

    def _hand_out(self, size: i64) -> None:
        """Count a returned piece of ``size`` bytes, which contains the staged ones."""
        self.passed += size
        self.staged = 0
        self._pieces = None
        self._booked = 0

    def _take_header(self, data: bytes, length: i64) -> bool:
        """Read the size from the staged bytes and the beginning of ``data``. Returns False if the header is incomplete or refused."""
        framing = self.framing
        pieces = self._pieces
        if framing.tail != 0:
            return self._find_end(data, length)
        header = data if pieces is None else b"".join([*pieces, data[: framing.most_header - self.staged]])
        header_size = framing.header_size(header, 0)
        if header_size < 0:
            self._stage(data)
            self._lacks = -header_size
            return False
        if self._first:
            self._first = False
            self.foreign = framing.foreign(header[:header_size])
            if not self.foreign and check_size(framing.body_size(header, 0), self.most) != OK:
                self.foreign = foreign_protocol(header[:4])
            if self.foreign:
                self.fault = NOT_OURS
                self.refused_bytes = length
                return False
        size = framing.body_size(header, 0)
        if not self._take_size(size, header_size, length):
            return False
        if size > self.limit:
            self._report(size, header[: min(self.size, REFUSED_HEAD)])
        return True

    def _find_end(self, data: bytes, length: i64) -> bool:
        """As ``_take_header``, for frames with a delimiter, which may begin in the staged bytes."""
        framing = self.framing
        tail = framing.tail
        body: i64 = self.staged - 1
        if not self._ends_with(data):
            at = i64(data.find(framing.delimiter))
            body = self.staged + at if at >= 0 else -1
        limit = self.limit
        if body < 0:
            if self.staged + length >= limit + tail:
                self.fault = FRAME_TOO_LARGE
                self.faulty_size = self.staged + self._line_so_far(data, 0)
                self.refused_bytes = length
                return False
            self._stage(data)
            return False
        self._first = False
        return self._take_size(body, tail, length)

    def _take_size(self, body: i64, around: i64, length: i64) -> bool:
        """Set the size of the frame in progress: its body, and the header or delimiter ``around`` it. Returns False if it is refused."""
        self.fault = check_size(body, self.most)
        if self.fault != OK:
            self.faulty_size = body
            self.refused_bytes = length
            return False
        self._body = body
        self.size = around + body
        return True

    def _pass_reported(self, data: bytes, frames: i64, end: i64) -> tuple[i64, i64, i64, i64]:
        """Go on with a scan that has found ``frames``, and then a frame above the limit at ``end``. Returns what a scan returns, without its fault if
        that frame is passed on.
        """
        framing = self.framing
        length: i64 = len(data)
        fault: i64 = FRAME_TOO_LARGE
        rest: i64 = 0
        while fault == FRAME_TOO_LARGE:
            size = framing.body_size(data, end)
            if check_size(size, self.most) != OK:
                break
            whole = framing.header_size(data, end) + size
            self._report(size, data[end : end + min(whole, REFUSED_HEAD)])
            if whole > length - end:
                return frames, end, whole - (length - end), OK
            self._stats.frame_sizes[size_bucket(size)] += 1
            more, end, rest, fault = framing.scan(data, end + whole, self.limit, self._stats.frame_sizes)
            frames += more + 1
        return frames, end, rest, fault

    def _report(self, size: i64, head: bytes) -> None:
        if self.reports_to is not None:
            self.reports_to.frame_reported(size, head)

    def _line_so_far(self, data: bytes, start: i64) -> i64:
        """The body size of an incomplete line after ``start``; a last byte that may begin the delimiter is not counted."""
        length = i64(len(data)) - start
        return length - 1 if self.framing.tail == 2 and data[-1] == self.framing.delimiter[0] else length

    def _leave_rest(self, data: bytes, end: i64, rest: i64, fault: i64) -> None:
        """Stage the bytes behind the last whole frame of ``data``, or note their fault."""
        if fault != OK:
            self.fault = fault
            size = self.framing.body_size(data, end)
            self.faulty_size = size if size >= 0 or fault != FRAME_TOO_LARGE else self._line_so_far(data, end)
            self.refused_bytes = len(data) - end
            self._keep_head(data, end)
            return
        length: i64 = len(data)
        left = length - end
        self._stage(data if end == 0 else memoryview(data)[end:] if left >= VIEW_FROM and 2 * left >= length else data[end:])
        if rest < 0:
            self._lacks = -rest
        else:
            self._body = self.framing.body_size(data, end)
            self.size = left + rest
            self.cut = not self._is_sasl_too_large(b"") and (self._cut_next or self.size > self._cut_from)

    def _keep_head(self, data: bytes, end: i64) -> None:
        """Keep the first bytes of the refused frame, which begins in the staged bytes, or at ``end``."""
        pieces = self._pieces
        first = b"" if pieces is None else bytes(pieces[0][:REFUSED_HEAD])
        self.refused_head = (first + data[end : end + REFUSED_HEAD])[:REFUSED_HEAD]

    def _begin(self, data: bytes) -> None:
        """Stage more of an incomplete frame of known size."""
        self._stage(data)
        self.cut = not self._is_sasl_too_large(b"") and (self._cut_next or self.size > self._cut_from)

    def _is_sasl_too_large(self, data: bytes) -> bool:
        """Whether the frame in progress, which continues with ``data``, is a frame of an authentication that is too large."""
        if self._body <= self._sasl_limit:
            return False
        pieces = self._pieces
        head = data if pieces is None else b"".join([*[piece[:KEY_END] for piece in pieces], data[:KEY_END]])
        if len(head) < KEY_END or not is_sasl(i64(read_i16_be(head, HEADER))):
            return False
        self.fault = SASL_TOO_LARGE
        self.faulty_size = self._body
        return True

    def _stage(self, piece: Buffer) -> None:
        size: i64 = len(piece)
        pieces = self._pieces
        overhead: i64 = PIECE_OVERHEAD
        if pieces is None:
            self._pieces = [piece]
        elif size < JOIN_BELOW and len(pieces[-1]) < JOIN_BELOW:
            pieces[-1] = b"".join((pieces[-1], piece))
            overhead = 0
        else:
            pieces.append(piece)
        self.staged += size
        booking = overhead + held(piece)  # a view keeps the whole read in memory
        self._account.charge(BEGUN, booking, self)
        self._booked += booking

    def _reset(self) -> None:
        self._pieces = None
        self._booked = 0
        self.staged = 0
        self.size = -1
        self.cut = False
        self.passed = 0
        self.abandoned = False
        self._cut_next = False
        self._least = self._first_piece
        self._lacks = self.framing.least_header
