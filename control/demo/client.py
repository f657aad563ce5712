"""One connection of the load generator: writes frames, reads answers, checks every byte of them.

Without a loop of its own: the generator calls ``on_ready`` when the socket is ready and looks at ``wanted`` for what to wait for.
"""

import select
import socket
import ssl
import time
from collections import deque
from typing import Final

from control.demo.load import FRAME_HEADER, SIZE_HEADER_SIZE, Latency, Payloads, frame

__all__ = ["Client"]

_READ_SIZE: Final = 256 * 1024
_WRITE_SIZE: Final = 16 * 1024
_READS_AT_ONCE: Final = 16
_BLOCKED: Final = (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError)


class Client:
    """A connection with a number.

    Args:
        number: goes into every body.
        address: of the proxy's listener; its certificate must have the host.
        context: TLS, or None for plaintext.
        payloads: the table that bodies come from.
        latency: times of answers go there.
        send_buffer: bytes of the socket's send buffer; 0 leaves the system's.
    """

    def __init__(
        self,
        number: int,
        address: tuple[str, int],
        context: ssl.SSLContext | None,
        payloads: Payloads,
        latency: Latency,
        send_buffer: int = 0,
    ) -> None:
        self.number = number
        self.latency = latency
        self.begun_count = 0
        self.sent_bytes = 0
        self.answered_count = 0
        self.answered_bytes = 0
        self.wrong: list[str] = []
        self.closed: str | None = None
        self.ready = context is None
        self.blocked_since_ns = 0
        self.wanted = select.EPOLLIN | select.EPOLLOUT
        self._payloads = payloads
        self._special: dict[int, bytes] = {}
        self._outbox = bytearray()
        self._tail = b""
        self._times: deque[tuple[int, int, int]] = deque()
        self._shutting = False
        plain = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if send_buffer:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        plain.connect(address)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plain.setblocking(False)
        self.local_port: int = plain.getsockname()[1]
        self._socket = plain if context is None else context.wrap_socket(plain, server_hostname=address[0], do_handshake_on_connect=False)

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def in_flight(self) -> int:
        return self.begun_count - self.answered_count

    @property
    def outbox_bytes(self) -> int:
        """Bytes that the socket has not taken."""
        return len(self._outbox)

    def submit(self, count: int) -> None:
        """Send frames with payloads of the table."""
        self._outbox += b"".join(self._payloads.frames(self.number, self.begun_count, count))
        self._begun(count)
        self._write()

    def submit_sized(self, count: int, size: int, part: int | None = None) -> bytes:
        """Send frames with payloads of one size; of the last frame only `part` bytes when given.

        Returns:
            What is left out: to be sent by ``finish``.
        """
        whole = bytearray()
        for sequence in range(self.begun_count, self.begun_count + count):
            payload = (b"%016d" % sequence * (size // 16 + 1))[:size]
            self._special[sequence] = payload
            whole += frame(self.number, sequence, payload)
        end = len(whole) if part is None else part
        self._outbox += whole[:end]
        self._begun(count)
        self._write()
        return bytes(whole[end:])

    def finish(self, rest: bytes) -> None:
        """Send the rest of a frame begun."""
        self._outbox += rest
        self._write()

    def on_ready(self, events: int) -> None:
        """Go on with the handshake, the writes and the reads that the events allow."""
        if self.closed is not None:
            return
        try:
            if not self.ready and not self._handshake():
                return
            if self._outbox and not self._write():
                return
            if self._shutting and not self._outbox:
                self._shut()
            elif events & ~select.EPOLLOUT:
                self._read()
        except (ConnectionError, ssl.SSLError) as error:
            self._end(type(error).__name__)

    def shut(self) -> None:
        """Say that nothing more comes; the connection has ended when ``closed`` says so."""
        if self.closed is None:
            self._shutting = True
            self.on_ready(select.EPOLLIN)

    def close(self) -> None:
        """End at once, without a word to the peer."""
        self._end("client")

    def _begun(self, count: int) -> None:
        self.begun_count += count
        self._times.append((self.begun_count, count, time.monotonic_ns()))

    def _handshake(self) -> bool:
        assert isinstance(self._socket, ssl.SSLSocket), "a plaintext client is ready at once"
        try:
            self._socket.do_handshake()
        except ssl.SSLWantReadError:
            self.wanted = select.EPOLLIN
            return False
        except ssl.SSLWantWriteError:
            self.wanted = select.EPOLLOUT
            return False
        self.ready = True
        self.wanted = select.EPOLLIN
        return True

    def _write(self) -> bool:
        """Write until the socket takes no more; False when it is gone."""
        if self.closed is not None or not self.ready:
            return self.closed is None
        try:
            while self._outbox:
                # a record at a time: Python's SSLSocket says nothing of a write before all of it is taken
                sent = self._socket.send(self._outbox[:_WRITE_SIZE])
                self.sent_bytes += sent
                del self._outbox[:sent]
                self.blocked_since_ns = 0
        except _BLOCKED:
            self.blocked_since_ns = self.blocked_since_ns or time.monotonic_ns()
        except (ConnectionError, ssl.SSLError) as error:
            self._end(type(error).__name__)
        self.wanted = select.EPOLLIN | (select.EPOLLOUT if self._outbox else 0)
        return self.closed is None

    def _shut(self) -> None:
        """Send the end of stream and wait for the peer's."""
        self.wanted = select.EPOLLIN
        try:
            if isinstance(self._socket, ssl.SSLSocket):
                self._socket.unwrap()
            else:
                self._socket.shutdown(socket.SHUT_WR)
                while self._socket.recv(_READ_SIZE):
                    pass
        except _BLOCKED:
            return
        except OSError:
            pass  # the peer was faster; the end is the same
        self._end("client")

    def _read(self) -> None:
        """Read what came, a bounded number of times, and check it."""
        pieces = [self._tail]
        try:
            for _ in range(_READS_AT_ONCE):
                data = self._socket.recv(_READ_SIZE)
                if not data:
                    self._end("end of stream")
                    break
                pieces.append(data)
        except _BLOCKED:
            pass
        if len(pieces) > 1:
            self._check(b"".join(pieces))

    def _check(self, data: bytes) -> None:
        """Compare the whole frames in the data with what was sent, in order."""
        position, length = 0, len(data)
        while length - position >= FRAME_HEADER.size:
            size, number, sequence, _ = FRAME_HEADER.unpack_from(data, position)
            end = position + SIZE_HEADER_SIZE + size
            if end > length:
                break
            expected = self._special.pop(self.answered_count, None)
            payload = self._payloads.of(self.number, self.answered_count) if expected is None else expected
            if number != self.number or sequence != self.answered_count or data[position + FRAME_HEADER.size : end] != payload:
                self.wrong.append(f"connection {self.number}: expected frame {self.answered_count}, got frame {sequence} of {number}, {size} B")
            self.answered_count += 1
            position = end
        self.answered_bytes += position
        self._tail = data[position:]
        self._time()

    def _time(self) -> None:
        """Book the times of all batches that were answered whole."""
        now = time.monotonic_ns()
        while self._times and self._times[0][0] <= self.answered_count:
            _, count, sent_ns = self._times.popleft()
            self.latency.add(now - sent_ns, count)

    def _end(self, reason: str) -> None:
        self.closed = self.closed or reason
        self._socket.close()
