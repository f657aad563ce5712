"""What the requests of one connection say of themselves, for rules that ask: Kafka's API, and the name that the client gives itself."""

from librt.strings import read_i16_be
from librt.vecs import append, vec
from mypy_extensions import i32, i64

__all__ = ["RequestFacts"]

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
