"""The fill and the free room of a socket's kernel buffers. Used while memory is short, and for each piece of a frame that is cut through.

Source: Linux's tcp(7), unix(7), socket(7) and ``linux/sock_diag.h``.
"""

import fcntl
import socket
import struct
import termios
from typing import Final

from mypy_extensions import i64

A_WHILE_NS: Final = 10_000_000  # before a socket for which epoll gives no event is checked again
SO_MEMINFO: Final = 55
MEMINFO: Final = struct.Struct("=9I")  # of ``enum`` SK_MEMINFO: rmem_alloc, rcvbuf, wmem_alloc, sndbuf, fwd_alloc, wmem_queued, ...
NOTHING: Final = b"\0\0\0\0"
ROUND_TRIP: Final = struct.Struct("=68xI")  # tcpi_rtt of ``struct tcp_info``, in microseconds


def queued(sock: socket.socket) -> i64:
    """Return how many bytes the socket holds that were not read."""
    answer = fcntl.ioctl(sock.fileno(), termios.FIONREAD, NOTHING)
    assert isinstance(answer, bytes), "bytes in, bytes out"
    return int.from_bytes(answer, "little")


def unsent(sock: socket.socket) -> i64:
    """Return how many bytes were sent and not taken by the peer's kernel. Always 0 for Unix sockets, which do not report it."""
    if sock.family == socket.AF_UNIX:
        return 0
    answer = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, NOTHING)
    assert isinstance(answer, bytes), "bytes in, bytes out"
    return int.from_bytes(answer, "little")


def room(sock: socket.socket) -> tuple[i64, bool]:
    """Return how much may be sent. Returns how many bytes the socket takes now as a whole: half of its free room, because of the kernel's overhead;
    0 if the socket is not writable, so that epoll will report when it is. And whether the send buffer is empty.
    """
    facts = MEMINFO.unpack(sock.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, MEMINFO.size))
    limit = i64(facts[3])
    if sock.family == socket.AF_UNIX:
        used = i64(facts[2])
        is_writable = 4 * used <= limit
    else:
        used = i64(facts[5])
        is_writable = limit - used >= used >> 1
    return max((limit - used) >> 1, 1) if is_writable else 0, used == 0


def is_tcp(sock: socket.socket) -> bool:
    """Whether ``set_threshold`` has an effect."""
    return sock.family != socket.AF_UNIX


def cork(sock: socket.socket, *, corked: bool) -> None:
    """Have the kernel keep the last, partial segment, or send it. TCP only."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, int(corked))


def round_trip_ns(sock: socket.socket) -> i64:
    """Return the round-trip time that the kernel has measured; 0 for Unix sockets."""
    if not is_tcp(sock):
        return 0
    facts = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, ROUND_TRIP.size)
    return i64(ROUND_TRIP.unpack(facts)[0]) * 1000


def set_threshold(sock: socket.socket, size: i64) -> None:
    """Make the socket readable only when it holds ``size`` bytes, or the end of the stream; the default is 1. TCP only."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, int(size))


def make_room(sock: socket.socket, size: i64) -> None:
    """Make the kernel's receive buffer large enough for ``size`` unread bytes. TCP only. The kernel enlarges the buffer for a threshold and does not
    shrink it again. It estimates the overhead from earlier segments, and a segment that was read in part takes as much room as a whole one, so the
    threshold is set to four times ``size`` for a moment.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, int(4 * size))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
