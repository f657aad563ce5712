"""A pipe that bytes pass through from one socket to another without coming here (``splice(2)``); one for all the channels of a thread.

It is empty between two uses: what the second socket does not take is read out at once. Should an error come between, whoever uses it throws it away
(``Selector.drop_pipe``): what is left in it belongs to nobody else.

Measured beside ``recv`` and ``send`` of 256 KiB over the loopback, processor time for a megabyte: 0.4 with 1 MiB, 0.65 with 256 KiB.
"""

import contextlib
import fcntl
import os
from typing import Final

from mypy_extensions import i64

from framegate.proxy.errors import TransportError

__all__ = ["Pipe"]

CAPACITY: Final = 1 << 19  # asked for; a system may allow less
SPLICE_F_MOVE: Final = 1
SPLICE_F_NONBLOCK: Final = 2
FLAGS: Final = SPLICE_F_MOVE | SPLICE_F_NONBLOCK
F_SETPIPE_SZ: Final = 1031


class Pipe:
    """Two descriptors.

    Raises:
        OSError: no descriptor is available.
    """

    def __init__(self) -> None:
        self._read_fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        with contextlib.suppress(OSError):  # beyond the user's share of pipe buffers: it is as large as it is
            fcntl.fcntl(self._write_fd, F_SETPIPE_SZ, CAPACITY)

    def fill(self, fd: i64, size: i64) -> i64:
        """Move at most ``size`` bytes in from a socket; 0 at the end of its stream, -1 when there are none now.

        Raises:
            TransportError: the socket has failed; the pipe is empty.
        """
        try:
            return os.splice(int(fd), self._write_fd, int(min(size, CAPACITY)), flags=FLAGS)
        except BlockingIOError:
            return -1
        except OSError as error:
            raise TransportError(f"read failed: {error.strerror}", errno=error.errno or 0) from error

    def empty(self, fd: i64, size: i64) -> i64:
        """Move at most ``size`` bytes on to a socket; how many it took.

        Raises:
            TransportError: the socket has failed.
        """
        moved: i64 = 0
        while moved < size:
            try:
                moved += os.splice(self._read_fd, int(fd), int(size - moved), flags=FLAGS)
            except BlockingIOError:
                break
            except OSError as error:
                raise TransportError(f"write failed: {error.strerror}", errno=error.errno or 0) from error
        return moved

    def read_out(self, size: i64) -> bytes:
        """The ``size`` bytes that are left."""
        pieces: list[bytes] = []
        while size > 0:
            piece = os.read(self._read_fd, int(size))
            pieces.append(piece)
            size -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def close(self) -> None:
        """Give the descriptors back, and what is left."""
        os.close(self._read_fd)
        os.close(self._write_fd)
