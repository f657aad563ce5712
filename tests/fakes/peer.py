"""One end of a connection as a test plays it, over a real socket that never blocks, in plaintext or TLS."""

import bisect
import contextlib
import random
import socket
import ssl
import struct
from typing import Final

ALL: Final = 1 << 20  # bytes that move in one turn at most
CHUNK: Final = 1 << 16
RECORD: Final = 1 << 14  # of TLS: offered one at a time, so that what the socket took is what can be read at the other end
SMALL: Final = 256 * 1024
OFFSETS: Final = 1 << 16
PATTERN: Final = random.Random(9).randbytes((9 << 20) + OFFSETS)


def body(size: int, stream: int, number: int) -> memoryview:
    """Bytes that no other frame of the test has at this place."""
    start = (stream * 7919 + number * 104729) % OFFSETS
    return memoryview(PATTERN)[start : start + size]


class Peer:
    """Sends the frames that it is given, as far as the socket takes them; what comes is compared, byte by byte, with what the ``other`` was given."""

    def __init__(self, sock: socket.socket, stream: int, tls: ssl.SSLContext | None = None, *, server: bool = False) -> None:
        sock.setblocking(False)
        self.sock: socket.socket = sock
        self.shaking = tls is not None  # the handshake is not done
        if tls is not None:
            name = None if server else "localhost"
            self.sock = tls.wrap_socket(sock, server_side=server, server_hostname=name, do_handshake_on_connect=False)
        self.other: Peer = self  # the peer at the far side of the proxy
        self.stream = stream
        # sends, reads: bytes that it moves in a turn; 0: it has stopped
        self.sends = ALL
        self.reads = ALL
        # given, ends: all that it was given to send, and where each frame ends
        self.given = bytearray()
        self.ends: list[int] = []
        # sent, seen: bytes that its socket took; that came
        self.sent = 0
        self.seen = 0
        self.cut = False  # what it sends may arrive in pieces, if the frame is large
        self.answers = False  # it gives itself an answer for each frame that came whole, of the same size; and reads nothing until that is out
        self.ended = ""  # ``""`` while the stream lasts, then ``end`` or ``reset``
        self._answered = 0
        self._chunk = CHUNK if tls is None else RECORD
        self._retry = 0

    # What a test gives it to do.

    def give(self, *sizes: int) -> None:
        """Queue whole frames of so many bytes each, header counted."""
        for size in sizes:
            self.given += struct.pack(">i", size - 4)
            self.given += body(size - 4, self.stream, len(self.ends))
            self.ends.append(len(self.given))

    def give_frame(self, data: bytes) -> None:
        self.given += data
        self.ends.append(len(self.given))

    def stop(self) -> None:
        """Neither send nor read from now on."""
        self.sends = self.reads = 0

    def end(self) -> None:
        """End its stream, in order; it goes on reading."""
        if isinstance(self.sock, ssl.SSLSocket):
            with contextlib.suppress(ssl.SSLWantReadError):
                self.sock.unwrap()
        self.sends = 0
        socket.socket.shutdown(self.sock, socket.SHUT_WR)  # an SSLSocket's own would forget that it speaks TLS

    def reset(self) -> None:
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def close(self) -> None:
        self.ended = self.ended or "end"
        self.sock.close()

    # What became of it.

    @property
    def frames(self) -> int:
        return bisect.bisect_right(self.other.ends, self.seen)

    @property
    def done(self) -> bool:
        """All that it was given has arrived at the other end."""
        return self.other.seen == len(self.given)

    def allowed(self) -> int:
        """How much of what it sent may have gone on: whole frames, and what is here of a large one that passes in pieces."""
        index = bisect.bisect_right(self.ends, self.sent)
        start = self.ends[index - 1] if index else 0
        large = index < len(self.ends) and self.ends[index] - start > SMALL
        return self.sent if self.cut and large else start

    # Moving.

    def turn(self) -> None:
        if self.ended:
            return
        if self.shaking and not self._shake():
            return
        if self.sends and self.sent < len(self.given):
            self._send()
        if self.reads and not (self.answers and self.sent < len(self.given)):
            self._read()

    def _shake(self) -> bool:
        assert isinstance(self.sock, ssl.SSLSocket)
        try:
            self.sock.do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        self.shaking = False
        return True

    def _send(self) -> None:
        left = min(self.sends, len(self.given) - self.sent)
        try:
            while left > 0:
                size = max(min(left, self._chunk), self._retry)  # OpenSSL wants what it did not get out again, whole
                with memoryview(self.given)[self.sent : self.sent + size] as view:
                    self._retry = size if self._chunk == RECORD else 0
                    taken = self.sock.send(view)
                self._retry = 0
                self.sent += taken
                left -= taken
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            return
        except OSError:
            self.sends = 0  # the proxy has ended: what it sent before is still to be read

    def _read(self) -> None:
        left = self.reads
        try:
            while left > 0:
                piece = self.sock.recv(min(left, CHUNK))
                if not piece:
                    self.ended = "end"
                    return
                left -= len(piece)
                self._compare(piece)
                if self._answer():
                    return
        except (BlockingIOError, ssl.SSLWantReadError):
            return
        except OSError:
            self.ended = "reset"

    def _compare(self, piece: bytes) -> None:
        end = self.seen + len(piece)
        assert end <= self.other.allowed(), f"{end} bytes came of {self.other.allowed()} that may go on"
        assert self.other.given[self.seen : end] == piece, f"other bytes came than were sent, at {self.seen}"
        self.seen = end

    def _answer(self) -> bool:
        if not self.answers or self.frames == self._answered:
            return False
        for index in range(self._answered, self.frames):
            self.give(self.other.ends[index] - (self.other.ends[index - 1] if index else 0))
        self._answered = self.frames
        return True
