"""The receive: the frame that a channel has begun and not finished.

What one read gave goes to ``feed``, which finds the run of whole frames in it and stages what is left: a frame begun, or less than a size
header. Staged bytes are kept as the pieces that came, small ones joined, so that a large frame is never copied; each piece is booked with its
overhead.

A frame that is larger than ``cut_from``, and not whole in one read, is *cut through*: what comes of it is handed out as it comes, as runs with a
``part``. Its first piece waits until it has ``first_piece`` bytes, and the beginning of the body; behind whole frames of the same read it stays
staged until it is asked for (``take_part``). While such a frame lasts no more may be fed than it misses.

Where clients authenticate with SASL, a frame of theirs to do so again that is larger than those may be is refused as soon as its api key is here,
so that it is neither held nor passed in pieces. The consumer checks a frame that came whole in one read.
"""

from typing import Final

from librt.strings import read_i16_be
from mypy_extensions import i64

from framegate.proxy.network.frame_exchange import is_sasl
from framegate.proxy.network.framing import FRAME_TOO_LARGE, NOT_OURS, OK, SASL_TOO_LARGE, Framing, check_size, foreign_protocol, size_bucket
from framegate.proxy.network.int32 import HEADER, INT32
from framegate.proxy.network.leak_finding import LeakFindingAccount
from framegate.proxy.network.memory_pool import BEGUN, PIECE_OVERHEAD, Account
from framegate.proxy.network.run import PART, PART_FIRST, PART_LAST, Buffer, Run, held
from framegate.proxy.network.stats import SideStats

__all__ = ["NEVER_CUT", "Receive", "ReceiveLimit"]

JOIN_BELOW: Final = 4096  # pieces smaller than this are joined
FIRST_BYTES: Final = 8  # of a body; they say what a Kafka frame is
KEY_END: Final = HEADER + 2  # of the api key of a Kafka request
NEVER_CUT: Final = 1 << 62
VIEW_FROM: Final = 16384  # the rest of a read is kept as a view from this size on, if it is most of the read


class ReceiveLimit:
    """The max_receive_size that channels share: one store changes it for all of them.

    Attributes:
        value: bytes of a frame's body; -1 for unlimited. The value in force when a header's fourth byte is scanned decides.
    """

    def __init__(self, value: i64) -> None:
        self.value: i64 = value


class Receive:
    """Finds frames in what a channel reads, and stages the one that is not whole.

    Attributes:
        framing: tells the frames apart.
        growth: bytes that a short frame has more on the other side, whose headers are longer.
        can_cut: frames may be cut through; not where one is known to be whole, or made so, by what lies behind it.
        staged: bytes that are kept of the frame begun, its header counted; 0 between frames.
        size: bytes of the frame begun, header counted; -1 while its header is not whole.
        cut: the frame begun is cut through.
        passed: bytes of it that were handed out.
        abandoned: what still comes of it is not passed on: it is no whole frame, though it may come to its end.
        fault: what ``feed`` found wrong (``framing.OK`` and on). Nothing may be fed afterwards.
        faulty_size: the size that was refused.
        refused_bytes: what the last read gave of the frame that was refused, and behind it; what was ``staged`` before is not in it.
        foreign: the protocol that the first bytes betray, when the fault is NOT_OURS.
    """

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
    ) -> None:
        self.framing: Final = framing
        self.growth: Final[i64] = 0 if onward is None else max(onward.least_frame - framing.least_frame, 0)
        self.can_cut: Final[bool] = framing.tail == 0 and (onward is None or onward.tail == 0)
        self._max_body: Final[i64] = framing.max_body if onward is None else onward.max_body
        self._account: Final = account
        self._leaks: Final = account if isinstance(account, LeakFindingAccount) else None
        self._limit: Final = limit
        self._stats: Final = stats
        self._cut_from: Final[i64] = cut_from if self.can_cut else NEVER_CUT
        self._least_piece: Final[i64] = framing.most_header + FIRST_BYTES
        self._sasl_limit: Final[i64] = sasl_limit
        self._first_piece: Final[i64] = max(first_piece, self._least_piece)
        self._least: i64 = self._first_piece  # of the frame begun
        self._lacks: i64 = framing.least_header  # bytes that its header misses, at least
        self._body: i64 = 0  # bytes of its body
        self._cut_next: bool = False
        self._pieces: list[Buffer] | None = None
        self._booked: i64 = 0
        self._first: bool = True
        self.staged: i64 = 0
        self.size: i64 = -1
        self.cut: bool = False
        self.passed: i64 = 0
        self.abandoned: bool = False
        self.fault: i64 = OK
        self.faulty_size: i64 = 0
        self.refused_bytes: i64 = 0
        self.foreign: str = ""

    @property
    def limit(self) -> i64:
        """The largest body that is taken now: the max_receive_size in force, or what can be passed on."""
        limit = self._limit.value
        return limit if 0 <= limit <= self._max_body else self._max_body

    @property
    def booked(self) -> i64:
        """Bytes booked at the pool for the frame begun."""
        return self._booked

    @property
    def within(self) -> bool:
        """A frame is begun."""
        return self.staged != 0 or self.cut

    @property
    def is_within_cut(self) -> bool:
        """A frame is cut through, and not whole."""
        return self.passed != 0

    @property
    def has_part(self) -> bool:
        """The first piece of a frame that is cut through is staged, and may be taken."""
        return self.cut and self.passed == 0 and self.staged >= self._least

    def missing(self) -> i64:
        """What may be read without beginning another frame: the rest of the size header, or of the frame begun."""
        if self.size < 0:
            return self._lacks
        return self.size - self.passed - self.staged

    def resulting_size(self, size: i64) -> i64:
        """How many bytes, in frames of any length, become at most ``size`` bytes in the other framing."""
        if self.growth == 0:
            return size
        least = self.framing.least_frame
        return size * least // (least + self.growth)

    def longest(self) -> i64:
        """Bytes of the frame begun, or that it may have at most."""
        return self.size if self.size >= 0 else self.limit + self.framing.most_header + self.framing.tail

    def reach(self, data: bytes) -> i64:
        """Of bytes that come next: how many belong to the frame begun, or to the one that they begin, as far as they say."""
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
        """How many bytes must come before any can be passed on: of a frame begun the rest, or what its first piece lacks."""
        if not self.cut:
            return self.missing()
        if self.passed != 0:
            return 1
        return max(self._least - self.staged, 1)

    def cuts(self, size: i64) -> bool:
        """Whether a frame of ``size`` bytes, header counted, is cut through."""
        return size > self._cut_from

    def cut_next(self, least: i64) -> None:
        """The next frame, which lies whole in the kernel and of which less is fed next, passes in pieces, the first of at least ``least`` bytes."""
        self._cut_next = True
        self._least = max(least, self._least_piece)

    def cut_now(self, least: i64) -> None:
        """Likewise the frame begun."""
        self.cut = True
        self._least = min(max(least, self._least_piece), self.size)

    def feed(self, data: bytes) -> Run | None:
        """Take what one read gave.

        Returns:
            The run that it completed, or None. A fault behind the run is in ``fault``; the run itself is good.
        """
        if self.staged != 0 or self._first or self.cut:
            return self._feed_begun(data)
        frames, end, rest, fault = self.framing.scan(data, 0, self.limit, self._stats.frame_sizes)
        if rest != 0 or fault != OK:
            self._leave_rest(data, end, rest, fault)
        if frames == 0:
            return self.take_part()
        return Run(None, 0, data, 0, end, frames, 0, 0, self.framing)

    def take_part(self) -> Run | None:
        """The first piece of a frame that is cut through, from what is staged of it; None while that is too little."""
        if not self.has_part:
            return None
        size = self.staged
        run = self._run(size, b"", 0, 0, 0, PART | PART_FIRST)
        self._hand_out(size)
        return run

    def drop(self) -> i64:
        """Forget the frame begun, and give its bytes back; dropping twice is harmless.

        Returns:
            How many of its bytes were kept here: what is lost, besides what was handed out.
        """
        lost = self.staged
        booked = self._booked
        self._reset()  # before the release, which may call back
        self._account.release(BEGUN, booked, self)
        return lost

    def _feed_begun(self, data: bytes) -> Run | None:
        """As ``feed``, when a frame is begun, or when these are the connection's first bytes."""
        length: i64 = len(data)
        if self.cut:
            return self._feed_cut(data, length)
        if self.size < 0 and not self._take_header(data, length):
            return None
        first = self.size - self.staged
        if length < first:
            self._begin(data)
            return self.take_part()
        self._stats.frame_sizes[size_bucket(self._body)] += 1
        frames, end, rest, fault = self.framing.scan(data, first, self.limit, self._stats.frame_sizes)
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
        """What is staged, and what of ``data`` belongs to it, with what is booked for it as the lease."""
        leaks = self._leaks
        if leaks is not None and self._booked != 0:
            return leaks.lend(self, self._pieces, head_size, data, first, end, frames, self._booked, part, self.framing)
        return Run(self._pieces, head_size, data, first, end, frames, self._booked, part, self.framing)

    def pass_by(self, size: i64) -> i64:
        """Count ``size`` bytes of a frame that is cut through, and that were passed on without being read here.

        Returns:
            1 when they complete it, else 0.
        """
        assert 0 < size <= self.missing(), "no more passes than the frame misses"
        self.passed += size
        if self.passed < self.size:
            return 0
        self._stats.frame_sizes[size_bucket(self._body)] += 1
        self._reset()
        return 1

    def _hand_out(self, size: i64) -> None:
        """What was staged goes out with a piece of ``size`` bytes."""
        self.passed += size
        self.staged = 0
        self._pieces = None
        self._booked = 0

    def _take_header(self, data: bytes, length: i64) -> bool:
        """Read the size from what is staged and the beginning of ``data``; False when it is not whole, or not good."""
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
            if not self.foreign and check_size(framing.body_size(header, 0), self.limit) != OK:
                self.foreign = foreign_protocol(header[:4])
            if self.foreign:
                self.fault = NOT_OURS
                self.refused_bytes = length
                return False
        return self._take_size(framing.body_size(header, 0), header_size, length)

    def _find_end(self, data: bytes, length: i64) -> bool:
        """As ``_take_header``, for frames that end with a delimiter: it is looked for in ``data``, and where ``data`` begins."""
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
        """The frame begun has so many bytes of body, and of what is around it; False when it is not good."""
        self.fault = check_size(body, self.limit)
        if self.fault != OK:
            self.faulty_size = body
            self.refused_bytes = length
            return False
        self._body = body
        self.size = around + body
        return True

    def _line_so_far(self, data: bytes, start: i64) -> i64:
        """Bytes after ``start`` of an incomplete line, without what may be the beginning of its delimiter."""
        length = i64(len(data)) - start
        return length - 1 if self.framing.tail == 2 and data[-1] == self.framing.delimiter[0] else length

    def _leave_rest(self, data: bytes, end: i64, rest: i64, fault: i64) -> None:
        """Stage what follows the last whole frame of ``data``, or note what is wrong with it."""
        if fault != OK:
            self.fault = fault
            size = self.framing.body_size(data, end)
            self.faulty_size = size if size >= 0 or fault != FRAME_TOO_LARGE else self._line_so_far(data, end)
            self.refused_bytes = len(data) - end
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

    def _begin(self, data: bytes) -> None:
        """Stage more of an incomplete frame of known size."""
        self._stage(data)
        self.cut = not self._is_sasl_too_large(b"") and (self._cut_next or self.size > self._cut_from)

    def _is_sasl_too_large(self, data: bytes) -> bool:
        """Whether the frame begun, which continues with ``data``, is an authentication frame above their size limit."""
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
        booking = overhead + held(piece)  # a view keeps all of the read in memory
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
