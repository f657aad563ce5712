"""Sockets of connections.

They are of the type that Python's ``socket.socket`` is made from, and can all that is used here. What Python adds (names in place of numbers, files,
a count of who uses it) costs a call of Python's for each socket that is made, each that is closed, and each look at its family.
"""

import _socket
import socket
from typing import Final, cast

__all__ = ["adopt_socket", "open_socket"]

NEW: Final = int(socket.SOCK_STREAM) | int(socket.SOCK_NONBLOCK) | int(socket.SOCK_CLOEXEC)
STREAM: Final = int(socket.SOCK_STREAM)
_Socket: Final = _socket.socket


def open_socket(family: int) -> socket.socket:
    """A new stream socket, non-blocking. Raises OSError: no socket is available, or the family is not supported."""
    return cast(socket.socket, _Socket(family, NEW))


def adopt_socket(family: int, descriptor: int) -> socket.socket:
    """The stream socket with a descriptor, which is closed with it from now on; of this family, so that nobody asks the system.

    Raises:
        OSError: it is no socket; the descriptor stays the caller's.
    """
    return cast(socket.socket, _Socket(family, STREAM, 0, descriptor))
