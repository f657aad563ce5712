"""The interface between the relay and a tap: runs of one direction of one connection, and what the requests of the connection say."""

import abc

from librt.strings import read_i16_be
from librt.vecs import append, vec
from mypy_extensions import i32, i64

from framegate.proxy.network.run import Run

_NAME_AT = 10  # key, version, correlation id, length of the name
_CONTROLLED_SHUTDOWN_V0 = 7 << 16  # the one request whose header (v0) has no client id


class RequestFacts:
    """The API and the client name of the requests of one connection, for rules that need them. The pairing fills it, run by run; the taps of both
    directions read it. It exists only while one of them needs it.
    """

    def __init__(self) -> None:
        self.keys: vec[i32] = vec[i32]()  # ``api key << 16 | version`` of each request of the run; -1 for a frame without a request header
        self.clients: vec[i32] = vec[i32]()  # for each request the index in ``names`` of the client name that applies to it
        # the client name before the run, then those that its requests brought; None: not known, or the client has none
        self.names: list[str | None] = [None]
        self._raw = b""

    @property
    def name(self) -> str | None:
        """The client name in the connection's last request."""
        return self.names[-1]

    def begin(self, frames: i64) -> None:
        self.keys = vec[i32](capacity=frames)
        self.clients = vec[i32](capacity=frames)
        if len(self.names) > 1:
            self.names = [self.names[-1]]

    def add(self, api: i64, data: bytes, pos: i64, end: i64) -> None:
        """Add the next frame of the run. ``api``: key and version; below 0: the frame has no request header. ``data``, ``pos``, ``end``: where the
        body lies, as far as it is known.
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
        """Whether the name is equal to the last one. Makes no object."""
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
    """One direction of one connection, as rules tap it. Loop thread only. ``TapRules.match`` makes it when the connection is READY, or when rules
    change; the relay keeps it beside the channel.
    """

    def __init__(self, mutes: bool, asks: bool) -> None:
        self.mutes: bool = mutes  # a full log must stop the source; ``may_read`` is to be called before each read
        self.asks: bool = asks  # a rule needs the API of a frame or the client's name: ``facts`` is to be set
        self.facts: RequestFacts | None = None  # of the connection's requests, where ``asks``; None: not known

    @property
    @abc.abstractmethod
    def is_within(self) -> bool:
        """Whether a frame that is cut through has begun and not ended."""

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
            run: the frames. Its bytes are kept by reference until they are on disk, and must not change.
            first_frame: number of frames that passed before on this connection and direction, tapped or not.
            capture_ns: wall clock; one reading for all runs of a poll is enough.
            sensitive: ascending indexes of the frames whose bodies carry credentials and must not be kept; None or empty: no frame.
            keys: for answers: the request's ``api key << 16 | version`` for each frame, -1 unknown; None: not paired.
            latencies: with keys: microseconds from request to answer, -1 unknown.
            request_sizes, correlation_ids: with keys: body bytes and correlation id of the request, -1 unknown; both or neither.

        Returns: True: continue. False (only under ``on_full: mute``): the run was taken, and the source is to be muted for ``tap`` until
        ``TapWriter.accepts`` returns True.

        Raises ValueError: the arguments about answers do not have one entry for each frame; nothing was appended.
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
        """Take one piece of a frame that is cut through. It is stored as it passes; the frame counts, and becomes a chunk, with its last piece.
        Pieces of a frame that had begun before this tap was made are ignored.

        Args:
            run: the piece, of the kind in ``run.part``. Kept by reference as in ``append``.
            frame_number: of the frame, as ``first_frame`` in ``append``. This and all other arguments but the time are the same for all its pieces.
            withheld: the body carries credentials and must not be kept.
            key: for an answer: the request's ``api key << 16 | version``, -1 unknown; None: not paired.
            latency_us: with key: microseconds from request to the answer's first byte, -1 unknown; larger values are stored as the largest int32.
            request_size, correlation_id: with key: of the request; -1 unknown.

        Returns: As ``append``.
        """

    @abc.abstractmethod
    def cut_short(self, capture_ns: i64) -> None:
        """The frame whose pieces were appended will not be completed: adds a gap without frames. Does nothing when there is no such frame."""

    @abc.abstractmethod
    def may_read(self) -> bool:
        """Whether the source may be read. False only under ``on_full: mute`` while the log is full; then as after ``append``."""

    @abc.abstractmethod
    def drop(self, frame_count: i64, byte_count: i64, first_frame: i64, capture_ns: i64, run: Run | None = None) -> None:
        """Count whole frames that were received and are not passed on: matched, and in the log as a gap. ``frame_count``, ``byte_count``: their
        number and bytes, headers included. ``run``: the frames, or the piece of one, where available.
        """

    @abc.abstractmethod
    def lose(self, reason: int, frame_count: int, byte_count: int, first_frame: int, capture_ns: int) -> None:
        """Add a gap for frames, or bytes of an unfinished frame, that will not come. They do not count as matched. ``reason``:
        ``REASON_PARTIAL_FRAME`` with no frames, for a frame that its sender did not finish. ``frame_count``, ``byte_count``: their number and bytes.
        """
