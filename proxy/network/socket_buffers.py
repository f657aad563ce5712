"""What the kernel's buffers of a socket hold, and what they have room for. Asked while memory is short, and for each
piece of a frame that is cut through.

Source: Linux's tcp(7), unix(7), socket(7) and ``linux/sock_diag.h``.
"""

import fcntl
import socket
import struct
import termios
from typing import Final

from mypy_extensions import i64

__all__ = ["A_WHILE_NS", "is_tcp", "make_room", "queued", "room", "set_threshold", "unsent"]

A_WHILE_NS: Final = 10_000_000  # until a socket is asked again that epoll does not announce
SO_MEMINFO: Final = 55
MEMINFO: Final = struct.Struct("=9I")  # of ``enum`` SK_MEMINFO: rmem_alloc, rcvbuf, wmem_alloc, sndbuf, fwd_alloc, wmem_queued, ...
NOTHING: Final = b"\0\0\0\0"


def queued(sock: socket.socket) -> i64:
    """Bytes that lie in the socket and were not read."""
    answer = fcntl.ioctl(sock.fileno(), termios.FIONREAD, NOTHING)
    assert isinstance(answer, bytes), "bytes in, bytes out"
    return int.from_bytes(answer, "little")


def unsent(sock: socket.socket) -> i64:
    """Bytes that were sent and the peer's kernel has not taken. TCP only: 0 for others, which do not say."""
    if sock.family == socket.AF_UNIX:
        return 0
    answer = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, NOTHING)
    assert isinstance(answer, bytes), "bytes in, bytes out"
    return int.from_bytes(answer, "little")


def room(sock: socket.socket) -> tuple[i64, bool]:
    """How much may be sent.

    Returns:
        Bytes that the socket takes now without a rest: half of what is free, for the kernel's own overhead; 0 when epoll would not call it writable,
        and so will tell when it is. And whether nothing waits in it.
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
    """Whether ``set_threshold`` does something."""
    return sock.family != socket.AF_UNIX


def set_threshold(sock: socket.socket, size: i64) -> None:
    """Have the socket count as readable when ``size`` bytes lie in it, or its end, and not before; 1 is what it is without. TCP only."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, int(size))


def make_room(sock: socket.socket, size: i64) -> None:
    """Have the kernel take ``size`` bytes before they are read. TCP only.

    It makes its receive buffer large enough for a threshold, and no smaller again; but by what it has seen of the peer's segments, and a segment of
    which a part was read takes as much as a whole one: so it is asked for four times as much.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, int(4 * size))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
