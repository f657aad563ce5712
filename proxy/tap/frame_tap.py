"""What the relay knows of a tap: where it tells the frames of one direction of one connection."""

import abc

from librt.strings import read_i16_be
from librt.vecs import append, vec
from mypy_extensions import i32, i64

from framegate.proxy.network.run import Run

__all__ = ["FrameTap", "RequestFacts"]

_NAME_AT = 10  # key, version, correlation id, length of the name
_CONTROLLED_SHUTDOWN_V0 = 7 << 16  # the one request whose header (v0) has no client id


class RequestFacts:
    """Filled by the pairing, one run of requests after the other; asked by the taps of both directions. Only while one of them asks.

    Attributes:
        keys: ``api key << 16 | version`` of each request of the run; -1 for a frame without a request header.
        clients: for each, which of ``names`` held when it came, its own included.
        names: the name that held when the run began, then those that its requests brought; None: none is known, or the client gives none.
    """

    def __init__(self) -> None:
        self.keys: vec[i32] = vec[i32]()
        self.clients: vec[i32] = vec[i32]()
        self.names: list[str | None] = [None]
        self._raw = b""

    @property
    def name(self) -> str | None:
        """What the connection's last request gave as the client's name."""
        return self.names[-1]

    def begin(self, frames: i64) -> None:
        """A run of so many requests comes."""
        self.keys = vec[i32](capacity=frames)
        self.clients = vec[i32](capacity=frames)
        if len(self.names) > 1:
            self.names = [self.names[-1]]

    def add(self, api: i64, data: bytes, pos: i64, end: i64) -> None:
        """The next frame of the run.

        Args:
            api: its key and version; below 0: it has no request header.
            data, pos, end: where the body lies, as far as it is known.
        """
        if api < 0:
            api = -1
        elif api != _CONTROLLED_SHUTDOWN_V0:
            self._read_name(data, pos, end)
        self.keys = append(self.keys, i32(api))
        self.clients = append(self.clients, i32(len(self.names) - 1))

    def _read_name(self, data: bytes, pos: i64, end: i64) -> None:
        start = pos + _NAME_AT
        length: i64 = -1
        if start <= end:
            length = i64(read_i16_be(data, start - 2))
        if length < 0 or start + length > end:
            if self.names[-1] is not None:
                self.names.append(None)
            return
        if self.names[-1] is None or not self._is_same(data, start, length):
            self._raw = data[start : start + length]
            self.names.append(self._raw.decode("utf-8", "replace"))

    def _is_same(self, data: bytes, start: i64, length: i64) -> bool:
        """Whether the name is the one before, without making an object of it."""
        raw = self._raw
        if i64(len(raw)) != length:
            return False
        index: i64 = 0
        while index < length:
            if data[start + index] != raw[index]:
                return False
            index += 1
        return True


class FrameTap(abc.ABC):
    """One direction of one connection, as rules tap it. Loop thread only.

    Made by ``TapRules.match`` when the connection is READY, or when rules change, and kept by the relay beside the channel.

    Attributes:
        mutes: a full log is to stop the source: ask ``may_read`` before each read.
        asks: a rule asks for the API of a frame, or for the client's name: ``facts`` is to be given.
        facts: of the connection's requests, where ``asks``; None: nothing is known of them.
    """

    def __init__(self, mutes: bool, asks: bool) -> None:
        self.mutes: bool = mutes
        self.asks: bool = asks
        self.facts: RequestFacts | None = None

    @property
    @abc.abstractmethod
    def is_within(self) -> bool:
        """Whether a frame that is cut through has begun here, and not ended."""

    @abc.abstractmethod
    def append(
        self,
        run: Run,
        first_frame: i64,
        capture_ns: i64,
        sensitive: vec[i32] | None = None,
        keys: vec[i32] | None = None,
        latencies: vec[i32] | None = None,
        request_sizes: vec[i32] | None = None,
        correlation_ids: vec[i32] | None = None,
    ) -> bool:
        """Take one run of whole frames.

        Args:
            run: the frames as they passed. Its bytes are kept by reference until they are on disk, and must never change.
            first_frame: how many frames passed on this connection and direction before these, tapped or not.
            capture_ns: wall clock; one reading for all runs of a poll is fine.
            sensitive: ascending indexes of the frames whose bodies carry credentials and must not be kept; None or empty: no frame.
            keys: for answers: the request's ``api key << 16 | version`` for each frame, -1 unknown; None: not paired.
            latencies: with keys: microseconds from request to answer, -1 unknown.
            request_sizes, correlation_ids: with keys: body bytes and correlation id of the request, -1 unknown; both or neither.

        Returns:
            True: go on. False (only under ``on_full: mute``): the run was taken, and the source is to be muted for ``tap`` until
            ``TapWriter.accepts`` says yes.

        Raises:
            ValueError: what is said of answers is not for as many as there are frames; nothing was appended.
        """

    @abc.abstractmethod
    def append_part(
        self,
        run: Run,
        frame_number: i64,
        capture_ns: i64,
        withheld: bool,
        key: int | None,
        latency_us: int | None,
        request_size: int = -1,
        correlation_id: int = -1,
    ) -> bool:
        """Take one piece of a frame that is cut through. What is kept of it goes to the log as it passes; the frame counts, and becomes a chunk, with
        its last piece. Of a frame that had begun before this tap was made nothing is taken.

        Args:
            run: the piece, ``run.part`` says which. Kept by reference as in ``append``.
            frame_number: of the frame, as ``first_frame`` in ``append``. This and what follows, but the time, is the same for all of its pieces.
            capture_ns: wall clock.
            withheld: the body carries credentials and must not be kept.
            key: for an answer: the request's ``api key << 16 | version``, -1 unknown; None: not paired.
            latency_us: with key: microseconds from request to the answer's first byte, -1 unknown; above int32, its largest value is kept.
            request_size, correlation_id: with key: of the request; -1 unknown.

        Returns:
            As ``append``: the piece was taken, or needs not be; False: the source is to be muted.
        """

    @abc.abstractmethod
    def cut_short(self, capture_ns: i64) -> None:
        """The frame whose pieces were appended will never be completed: a gap without frames. Nothing when there is no such frame."""

    @abc.abstractmethod
    def may_read(self) -> bool:
        """Whether the source may be read: only under ``on_full: mute`` it may not, while the log is full. After False: as after ``append``."""

    @abc.abstractmethod
    def drop(self, frame_count: i64, byte_count: i64, first_frame: i64, capture_ns: i64, run: Run | None = None) -> None:
        """Count whole frames that were received and are not passed on: matched, and in the log as a gap.

        Args:
            frame_count, byte_count: how much, headers included.
            first_frame, capture_ns: as in ``append``.
            run: the frames, or the piece of one, where they are at hand.
        """

    @abc.abstractmethod
    def lose(self, reason: int, frame_count: int, byte_count: int, first_frame: int, capture_ns: int) -> None:
        """Say that frames, or bytes of a frame that never became whole, will never come: a gap chunk.

        Args:
            reason: ``REASON_PARTIAL_FRAME`` with no frames, for a frame that its sender did not finish.
            frame_count, byte_count: how much.
            first_frame, capture_ns: as in ``append``. The frames are not counted as matched: the caller says they never passed.
        """
