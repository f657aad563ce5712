"""Framing: how frames are delimited in a stream of bytes. A frame is a header with the size of the body, and the body; or a body and a delimiter.

Each side of a connection has one ``Framing``; ``framings`` has all of them. Only framings read size headers: other code uses the framing of a run
(``Run.framing``). All functions are pure functions over ``bytes``, and none raises for what a peer sent. All arithmetic is in i64, so that a size
near 2**31 neither wraps when compiled nor gives another result than the interpreted build.
"""

from abc import ABC, abstractmethod
from typing import Final

from librt.strings import BytesWriter, write_i32_le
from librt.vecs import append, vec
from mypy_extensions import i32, i64, mypyc_attr

# The faults of a scan.
OK: Final = 0
NEGATIVE_SIZE: Final = 1
FRAME_TOO_LARGE: Final = 2
NOT_OURS: Final = 3  # the connection's first bytes belong to another protocol
SASL_TOO_LARGE: Final = 4  # a frame of an authentication is larger than these may be

SIZE_BOUNDS: Final = (256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20)
SIZE_BUCKETS: Final = 12

# Requests to ZooKeeper from monitoring and terminals: each word is a whole request, and would be read as a size of 1.6 to 2 billion. The list is that
# of the administrator's guide, with two more words of the server (icfg, sysp) and two of old releases (kill, reqs).
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
    """Return the bucket of a body size. A size equal to a bound belongs to that bound's bucket. Each bound is four times the one before."""
    bucket: i64 = 0
    bound: i64 = 256
    while size > bound and bucket < 11:
        bound <<= 2
        bucket += 1
    return bucket


def check_size(size: i64, limit: i64) -> i64:
    """Return OK, NEGATIVE_SIZE or FRAME_TOO_LARGE for the size in a header. ``limit``: the largest body in bytes; -1 for unlimited."""
    if size < 0:
        return NEGATIVE_SIZE
    if limit >= 0 and size > limit:
        return FRAME_TOO_LARGE
    return OK


@mypyc_attr(allow_interpreted_subclasses=True)
class Framing(ABC):
    """Base class of framings. It has no state: all channels of a side share one object."""

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
        self.name: Final = name  # as in the configuration
        self.least_header: Final[i64] = least_header  # bytes of the shortest header
        self.most_header: Final[i64] = most_header  # bytes of the longest header
        self.max_body: Final[i64] = max_body  # the largest body size that a header can have
        # the end of a frame without a header, whose size is known only when it is whole. Empty for framings with headers.
        self.delimiter: Final = delimiter
        self.tail: Final[i64] = len(delimiter)  # the length of the delimiter
        self.least_frame: Final[i64] = len(delimiter) if delimiter else least_header  # bytes of the shortest frame, which has no body
        self.others: Final[i64] = others  # how many bytes of a header are not part of the size
        self.keeps: Final = keeps  # a new header keeps these bytes of the original header, if that has as many
        self.fill: Final = fill if len(fill) == others else bytes(int(others))  # the values of these bytes in new headers

    @abstractmethod
    def scan(self, data: bytes, start: i64, limit: i64, sizes: vec[i64]) -> tuple[i64, i64, i64, i64]:
        """Find the whole frames in the bytes of one read.

        Args:
            data: the bytes of one read.
            start: where the first header begins, 0 <= start <= len(data).
            limit: the max_receive_size in force, header not counted; -1 for unlimited.
            sizes: SIZE_BUCKETS counters; each whole frame adds one to its bucket.

        Returns:
            Frame count; the end of the last whole frame (``start`` if there is none); how many bytes the incomplete frame behind it misses, 0 if
            there is none, -n for a header that misses at least n bytes; and a fault: OK, NEGATIVE_SIZE or FRAME_TOO_LARGE. The frames before a
            faulty header are counted and good; the number of missing bytes has no meaning then.
        """

    @abstractmethod
    def header_size(self, data: bytes, start: i64) -> i64:
        """Return the size of the header at ``start``; -n if it is incomplete and misses at least n bytes."""

    @abstractmethod
    def body_size(self, data: bytes, start: i64) -> i64:
        """Return the body size in the complete header at ``start``. It may be negative or above the limit: see ``check_size``."""

    def frame_starts(self, data: bytes, start: i64, end: i64, base: i64, starts: vec[i64]) -> vec[i64]:
        """Append the starts of the whole frames in ``data[start:end]``, which ``scan`` found good.

        Args:
            data: the bytes of one read.
            end: the end of the last whole frame, from ``scan``.
            base: is added to each position in ``data``.
        """
        while start < end:
            starts = append(starts, base + start)
            start += self.header_size(data, start) + self.body_size(data, start) + self.tail
        return starts

    def write_starts(self, data: bytes, start: i64, end: i64, base: i64, starts: BytesWriter) -> None:
        """As ``frame_starts``, as little-endian int32."""
        while start < end:
            write_i32_le(starts, i32(base + start))
            start += self.header_size(data, start) + self.body_size(data, start) + self.tail

    @abstractmethod
    def write_header(self, writer: BytesWriter, size: i64, others: bytes) -> None:
        """Append the header of a body of ``size`` bytes. ``others``: the bytes of the header that are not part of the size."""

    def header_of(self, size: i64) -> bytes:
        writer = BytesWriter()
        self.write_header(writer, size, self.fill)
        return writer.getvalue()

    def other_bytes(self, data: bytes, start: i64) -> bytes:
        """Return the bytes of the complete header at ``start`` that are not part of the size."""
        return b""

    def foreign(self, header: bytes) -> str:
        """Return the name of another protocol if the first header of a connection belongs to it, whatever its size; else ``""``."""
        return ""


def foreign_protocol(header: bytes) -> str:
    """Return the name of the protocol to which the first four bytes of a connection belong, or ``""``. A TLS record starts with 0x16 0x03 and a
    version of at most 4; as a size this is 369 million. An upstream that requires TLS answers plaintext with an alert (0x15) of two bytes.
    """
    if len(header) < 4:
        return ""
    if header[1] == 3 and header[2] <= 4 and (header[0] == 0x16 or (header[0] == 0x15 and header[3] == 0)):
        return "TLS"
    return FOREIGN.get(header[:4], "")
