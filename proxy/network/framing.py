"""Framing: how frames lie in a stream of bytes. Each is a header, which says how long its body is, and the body; or a body and what ends it.

A ``Framing`` is what one side of a connection speaks; ``framings`` names them all. Nobody else looks at a size header: who has a run asks the
framing that found it (``Run.framing``). Everything here is a pure function over ``bytes``; nothing raises because of what a peer sent. All
arithmetic is in i64, so that a size near 2**31 neither wraps when compiled nor differs from the interpreted build.
"""

from abc import ABC, abstractmethod
from typing import Final

from librt.strings import BytesWriter
from librt.vecs import vec
from mypy_extensions import i64, mypyc_attr

__all__ = [
    "FRAME_TOO_LARGE",
    "NEGATIVE_SIZE",
    "NOT_OURS",
    "OK",
    "SASL_TOO_LARGE",
    "SIZE_BOUNDS",
    "SIZE_BUCKETS",
    "Framing",
    "check_size",
    "foreign_protocol",
    "size_bucket",
]

# What a scan found wrong.
OK: Final = 0
NEGATIVE_SIZE: Final = 1
FRAME_TOO_LARGE: Final = 2
NOT_OURS: Final = 3  # the connection's first bytes belong to another protocol
SASL_TOO_LARGE: Final = 4  # a frame to authenticate with that is larger than those may be

SIZE_BOUNDS: Final = (256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20)
SIZE_BUCKETS: Final = 12

# What monitoring, and people at a terminal, send to ZooKeeper: each word is a whole request, and read as a size 1.6 to 2 billion. The list of its
# administrator's guide, with two words of the server's own (icfg, sysp) and two of old releases (kill, reqs).
ZOOKEEPER_WORDS: Final = (
    *("conf", "cons", "crst", "dirs", "dump", "envi", "gtmk", "hash", "icfg", "isro", "kill", "mntr"),
    *("reqs", "ruok", "srst", "srvr", "stat", "stmk", "sysp", "wchc", "wchp", "wchs"),
)

FOREIGN: Final[dict[bytes, str]] = {
    b"GET ": "HTTP",
    b"POST": "HTTP",
    b"PUT ": "HTTP",
    b"HEAD": "HTTP",
    b"DELE": "HTTP",
    b"OPTI": "HTTP",
    b"PATC": "HTTP",
    b"CONN": "HTTP",
    b"TRAC": "HTTP",
    b"HTTP": "HTTP",
    b"PRI ": "HTTP/2",
    b"SSH-": "SSH",
    **{word.encode(): f"ZooKeeper's four-letter word {word}" for word in ZOOKEEPER_WORDS},
}


def size_bucket(size: i64) -> i64:
    """The bucket of a body size; a size equal to a bound belongs to that bound's bucket. The bounds grow by four."""
    bucket: i64 = 0
    bound: i64 = 256
    while size > bound and bucket < 11:
        bound <<= 2
        bucket += 1
    return bucket


def check_size(size: i64, limit: i64) -> i64:
    """OK, NEGATIVE_SIZE or FRAME_TOO_LARGE for the size a header announces; ``limit`` is bytes of body, -1 for unlimited."""
    if size < 0:
        return NEGATIVE_SIZE
    if limit >= 0 and size > limit:
        return FRAME_TOO_LARGE
    return OK


@mypyc_attr(allow_interpreted_subclasses=True)
class Framing(ABC):
    """One way to tell frames apart. It holds no state: all channels of a side share it.

    Attributes:
        name: as the configuration writes it.
        least_header: the fewest bytes that a header has; fewer need not be looked at.
        most_header: the most that it has.
        max_body: the largest body that a header can announce.
        delimiter: what ends a frame that has no header: how long it is, is known when it is whole. Empty for frames with headers.
        tail: its bytes.
        least_frame: bytes of the shortest frame, which has no body.
        others: bytes of a header that do not say how long the frame is.
        fill: what they are in headers made here.
        keeps: they are what they were in the header that came, where that has as many.
    """

    def __init__(
        self,
        name: str,
        least_header: i64,
        most_header: i64,
        max_body: i64 = 0x7FFFFFFF,
        *,
        delimiter: bytes = b"",
        others: i64 = 0,
        fill: bytes = b"",
        keeps: bool = True,
    ) -> None:
        self.name: Final = name
        self.least_header: Final[i64] = least_header
        self.most_header: Final[i64] = most_header
        self.max_body: Final[i64] = max_body
        self.delimiter: Final = delimiter
        self.tail: Final[i64] = len(delimiter)
        self.least_frame: Final[i64] = len(delimiter) if delimiter else least_header
        self.others: Final[i64] = others
        self.keeps: Final = keeps
        self.fill: Final = fill if len(fill) == others else bytes(int(others))

    @abstractmethod
    def scan(self, data: bytes, start: i64, limit: i64, sizes: vec[i64]) -> tuple[i64, i64, i64, i64]:
        """Find the whole frames in what one read gave.

        Args:
            data: the bytes of one read.
            start: where the first header begins, 0 <= start <= len(data).
            limit: the max_receive_size in force, header not counted; -1 for unlimited.
            sizes: SIZE_BUCKETS counters; each whole frame adds one to its bucket.

        Returns:
            Frame count; the end of the last whole frame (``start`` when there is none); what follows it: the bytes a frame begun still misses,
            0 when nothing follows, -n for a header that misses at least n bytes; and a fault: OK, NEGATIVE_SIZE or FRAME_TOO_LARGE. Frames before
            a faulty header are counted and good; what follows is then meaningless.
        """

    @abstractmethod
    def header_size(self, data: bytes, start: i64) -> i64:
        """Bytes of the header that begins at ``start``; -n when it is not whole and misses at least n bytes."""

    @abstractmethod
    def body_size(self, data: bytes, start: i64) -> i64:
        """Bytes of the body that the header at ``start``, which is whole, announces; maybe one that no body has: see ``judge``."""

    @abstractmethod
    def frame_starts(self, data: bytes, start: i64, end: i64, base: i64, starts: vec[i64]) -> vec[i64]:
        """Append where the whole frames in ``data[start:end]`` start, which ``scan`` found good.

        Args:
            data: the bytes of one read.
            start: where a header begins.
            end: the end of the last whole frame, as ``scan`` gave it.
            base: what to add to a position in ``data``.
            starts: what is appended to. The result replaces it.
        """

    @abstractmethod
    def write_starts(self, data: bytes, start: i64, end: i64, base: i64, starts: BytesWriter) -> None:
        """As ``frame_starts``, as little-endian int32."""

    @abstractmethod
    def write_header(self, writer: BytesWriter, size: i64, others: bytes) -> None:
        """Append the header of a body of ``size`` bytes, with these other bytes in it, as many as there are."""

    def header_of(self, size: i64) -> bytes:
        """The header of a body of ``size`` bytes."""
        writer = BytesWriter()
        self.write_header(writer, size, self.fill)
        return writer.getvalue()

    def other_bytes(self, data: bytes, start: i64) -> bytes:
        """Of the header at ``start``, which is whole, the bytes that do not say how long the frame is."""
        return b""

    def foreign(self, header: bytes) -> str:
        """The protocol that a connection's first header betrays, whatever it says of a size, or ``""``."""
        return ""


def foreign_protocol(header: bytes) -> str:
    """Name the protocol that a connection's first four bytes betray, or ``""``.

    A TLS record starts with 0x16 0x03 and a version of at most 4; read as a size it is 369 million. What an upstream that wants TLS answers is an
    alert, 0x15, of two bytes.
    """
    if len(header) < 4:
        return ""
    if header[1] == 3 and header[2] <= 4 and (header[0] == 0x16 or (header[0] == 0x15 and header[3] == 0)):
        return "TLS"
    return FOREIGN.get(header[:4], "")
