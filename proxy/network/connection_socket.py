"""Sockets of connections, and their options.

They are ``_socket.socket`` objects, the base class of Python's ``socket.socket``, which adds a call of a Python function for each socket that is
opened or closed, and for each access to its family.

Options must be set before ``bind`` and ``connect``, because the first packet limits the window. Accepted TCP sockets inherit the options of their
listening socket; Unix sockets inherit none. Source: Linux's socket(7) and tcp(7).
"""

import _socket
import socket
from typing import Final, cast

from framegate.proxy.config.model import SocketConfig

NEW: Final = int(socket.SOCK_STREAM) | int(socket.SOCK_NONBLOCK) | int(socket.SOCK_CLOEXEC)
STREAM: Final = int(socket.SOCK_STREAM)
_Socket: Final = _socket.socket


def open_socket(family: int) -> socket.socket:
    """Open a non-blocking stream socket. Raises OSError if no socket is available, or the family is not supported."""
    return cast(socket.socket, _Socket(family, NEW))


def adopt_socket(family: int, descriptor: int) -> socket.socket:
    """Make a stream socket of a descriptor, and take over the descriptor. The family is given to save a system call. Raises OSError: it is not a
    socket; the descriptor still belongs to the caller.
    """
    return cast(socket.socket, _Socket(family, STREAM, 0, descriptor))


MS_PER_S = 1000


def set_socket_options(sock: socket.socket, config: SocketConfig) -> None:
    """Set the buffer sizes and keep-alive of a socket; 0 or None leaves a value to the kernel. Only TCP has keep-alive. Raises OSError: the kernel
    refuses a value.
    """
    if config.receive_buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, config.receive_buffer)
    if config.send_buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, config.send_buffer)
    keep_alive = config.keep_alive
    if keep_alive is not None and sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, -(-keep_alive.idle_ms // MS_PER_S))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, -(-keep_alive.interval_ms // MS_PER_S))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, keep_alive.probes)
