"""The fast path of a selector, written in C (``fast_path.c``). It is there if the data path was compiled; without it, Python does the same work."""

from collections.abc import Callable

from framegate.proxy.network.stats import SideStats

class Side:
    """Counts the traffic of one side of a listener. ``stats``: the ``SideStats`` that takes the counts over."""

    def __init__(self, stats: SideStats, /) -> None: ...

def load_openssl(file: str, /) -> bool:
    """Look OpenSSL's functions up. ``file``: of the module ``_ssl``. False: not found, so that Python handles TLS."""

class TlsConnection:
    """A TLS connection whose records OpenSSL reads and writes in C, from and to its socket, behind the handshake."""

    flags: int  # what it holds, or what happened to it: bits of ``tls_connection``
    held: bytes  # ciphertext that OpenSSL does not have
    failure: str  # OpenSSL's reason for the bit FAILED

    def __init__(self, tls: object, fd: int, held: bytes, /) -> None:
        """Take over the connection of a ``_ssl._SSLSocket`` with its received bytes. Raises ValueError: its kind is not known."""

    def read(self, size: int, /) -> tuple[bytes | None, int, int]:
        """Read the socket once, unless records are held, and decrypt at most ``size`` bytes. Returns the plaintext, empty or None without any; the
        number of bytes read; and ``flags`` without BUFFERED. Raises OSError.
        """

    def write(self, pieces: list[bytes | memoryview], /) -> tuple[int, int, bytes | None, int]:
        """Encrypt, and write the socket once. Returns how many bytes were encrypted, -1: OpenSSL failed; how many bytes of ciphertext the socket
        took; the others; and the errno of the write, or 0.
        """

    def end(self) -> bytes:
        """Return our close-notify, for the socket."""

    def take_written(self) -> bytes:
        """Take the bytes that OpenSSL wrote by itself, for the socket."""

class Lane:
    """The way of whole frames from the descriptor of a channel to that of its peer. A new one is closed. ``tls``: None for plaintext. ``longest``:
    the longest frame, with its header, whose beginning it keeps; at most 256 KiB.
    """

    def __init__(self, fd: int, side: Side, tls: TlsConnection | None, longest: int, /) -> None: ...
    def close(self) -> bytes | None:
        """Close it, and the lane of its peer. Returns the bytes of the frame that has begun on it, which are counted, or None."""

class FastPath:
    """Waits for the events of an epoll descriptor, and serves the lanes that are open."""

    def __init__(self, epoll: int, /) -> None: ...
    def add(self, lane: Lane, /) -> None:
        """Add the lane of a descriptor, closed."""

    def remove(self, lane: Lane, /) -> None:
        """Close a lane, and forget it."""

    def open(self, lane: Lane, peer: Lane, limit: int, before_send: Callable[[bytes, int], bool] | None, /) -> bool:
        """Open a lane: the whole frames that it receives are written to its peer.

        Args:
            limit: the largest body in bytes; -1: unlimited.
            before_send: is called with the whole frames of each read, and their number, and changes no lane. What it answers with False is handed
                over, and nothing of it is sent. It is forgotten when the lane, or that of its peer, is closed or removed. None: nothing is called.

        Returns False, without an effect, for some calls after reads that were handed over.
        """

    def keep(self, lane: Lane, begun: bytes, /) -> bool:
        """Have a lane keep the bytes of a frame that has begun, which are counted. False: there is no room, or the frame is too large for it."""

    def served(self, lane: Lane, /) -> tuple[int, int] | None:
        """The descriptor of an open lane's peer, and its limit; None: the lane is closed."""

    def close_all(self) -> None:
        """Close all lanes."""

    def wait(self, timeout_ms: int, /) -> None:
        """Wait for events for so many ms at most. Raises OSError."""

    def run(
        self, now_ns: int, until_ns: int, opened: bool, /
    ) -> tuple[list[tuple[int, int]], list[tuple[int, bytes, int, int, int, bytes | None]] | None, list[tuple[SideStats, int]] | None]:
        """Handle events of the last wait, up to the first read that must be handed over: at most one read, and 1 MiB of begun frames, are held that
        no memory pool has booked. ``until_ns``: when lanes are no longer served, but left to the caller. ``opened``: lanes may be served.

        Returns the other events, as descriptor and bits; that read, in one or two parts as for ``Channel.take_over``, or None: all events are
        handled; and for each ``SideStats`` how many runs were sent. The lane of whatever is returned is closed.
        """

    def take_channels(self) -> list[tuple[int, int, int, int, int, int, int, int]]:
        """Take the counts of channels since the last call: descriptor, frames and bytes received, frames and bytes sent, bytes received and sent on
        the wire, and when a byte was moved last.
        """

    def take_begun(self) -> list[tuple[int, bytes]]:
        """Take the frames that have begun on lanes: descriptor, and the bytes, which are counted. These lanes are closed."""

    def take_sides(self) -> list[tuple[SideStats, int, int, int, int, int, int, list[int]]]:
        """Take the counts of sides: ``SideStats``, reads, frames and bytes received, writes, frames and bytes sent, and received frames by size."""
