"""The demo's frames, the connections that send them and check the answers, and the upstream that sends them back.

A frame is a big-endian int32 size and a body::

    0        4            12       16
    +--------+------------+--------+---------...
    | number |  sequence  | crc32  | payload
    +--------+------------+--------+---------...

number: of the connection, int32. sequence: of the frame on its connection, int64, from 0. crc32: of the payload, uint32. All big endian.
The upstream answers every frame with the same body, so one check serves both directions. A payload is chosen from a table by number and sequence,
so a receiver knows what must come without a copy of what was sent.
"""

import contextlib
import json
import random
import select
import socket
import ssl
import struct
import time
import zlib
from collections import Counter, deque
from typing import Final

from framegate.proxy.handler import Context

FRAME_HEADER: Final = struct.Struct(">iiqI")
SIZE_HEADER_SIZE: Final = 4
BODY_HEADER_SIZE: Final = FRAME_HEADER.size - SIZE_HEADER_SIZE
# Body sizes and how many of 1024 frames have them: mostly small, some large; 290 bytes on average.
_MIX: Final = ((100, 860), (512, 140), (4096, 23), (65536, 1))
_TABLE_SIZE: Final = sum(count for _, count in _MIX)
_ALPHABET: Final = b"0123456789abcdef"
_CONNECT_S: Final = 10.0
_READ_SIZE: Final = 256 * 1024
_WRITE_SIZE: Final = 16 * 1024
_READS_AT_ONCE: Final = 16
_BLOCKED: Final = (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError)


def frame(number: int, sequence: int, payload: bytes) -> bytes:
    """A whole frame with its size header."""
    return FRAME_HEADER.pack(BODY_HEADER_SIZE + len(payload), number, sequence, zlib.crc32(payload)) + payload


class Payloads:
    """The table of payloads; it is the same in every process with the same seed."""

    def __init__(self, seed: int = 20_000) -> None:
        source = random.Random(seed)
        sizes = [size - BODY_HEADER_SIZE for size, count in _MIX for _ in range(count)]
        source.shuffle(sizes)
        self._table = [bytes(source.choices(_ALPHABET, k=size)) for size in sizes]
        self._checksums = [zlib.crc32(payload) for payload in self._table]

    def of(self, number: int, sequence: int) -> bytes:
        return self._table[(number * 37 + sequence) % _TABLE_SIZE]

    def frames(self, number: int, first: int, count: int) -> bytes:
        pieces: list[bytes] = []
        pack, table, checksums = FRAME_HEADER.pack, self._table, self._checksums
        for sequence in range(first, first + count):
            index = (number * 37 + sequence) % _TABLE_SIZE
            payload = table[index]
            pieces += pack(BODY_HEADER_SIZE + len(payload), number, sequence, checksums[index]), payload
        return b"".join(pieces)


class Latency:
    """A histogram of times in microseconds, to two significant digits."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def add(self, elapsed_ns: int, count: int) -> None:
        self._counts[int(float(f"{elapsed_ns / 1000:.1e}"))] += count

    def figures(self) -> dict[str, int]:
        """The number of ``frames``, ``p50_us`` and ``p99_us``; 0 when there are none."""
        return {"frames": self._counts.total(), "p50_us": self._quantile_us(0.5), "p99_us": self._quantile_us(0.99)}

    def _quantile_us(self, share: float) -> int:
        seen = 0
        for value_us, count in sorted(self._counts.items()):
            seen += count
            if seen >= share * self._counts.total():
                return value_us
        return 0


class Upstream:
    """Answers every frame with itself; at its end it prints what it counted, in one JSON line."""

    def __init__(self) -> None:
        self.frame_count = 0
        self.body_bytes = 0

    def handle(self, frame: bytes, context: Context) -> bytes:
        self.frame_count += 1
        self.body_bytes += len(frame)
        return frame

    def stop(self) -> None:
        """Print the counts; ``bytes`` are those of frames with their size headers."""
        print(json.dumps({"frames": self.frame_count, "bytes": self.body_bytes + 4 * self.frame_count}), flush=True)


class Client:
    """A connection of the load generator, made after it is connected and its handshake is done.

    It has no loop: the generator calls ``on_ready`` when the socket is ready for the events in ``wanted``, which are epoll's.

    Args:
        address: of the proxy's listener; its certificate must have the host.
        context: TLS, or None for plaintext.
        payloads, latency: the table that bodies come from; the times of answers are added to the histogram.
        send_buffer: bytes of the socket's send buffer; 0 leaves the system's.

    Attributes:
        blocked_since_ns: since when the socket takes no bytes; 0: it takes them.
    """

    def __init__(
        self, number: int, address: tuple[str, int], context: ssl.SSLContext | None, payloads: Payloads, latency: Latency, send_buffer: int = 0
    ) -> None:
        self.number, self.latency = number, latency
        self.begun_count = self.sent_bytes = self.answered_count = self.answered_bytes = self.blocked_since_ns = 0
        self.wrong: list[str] = []  # answers that are not what was sent
        self.closed: str | None = None  # why the connection ended: ``client`` if the generator ended it in order; None: it is open
        self.wanted = select.EPOLLIN
        self._payloads = payloads
        self._special: dict[int, bytes] = {}
        self._outbox = bytearray()
        self._rest = b""
        self._tail = b""
        self._times: deque[tuple[int, int, int]] = deque()
        self._shutting = False
        self._socket = plain = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if send_buffer:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        plain.settimeout(_CONNECT_S)
        plain.connect(address)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.local_port: int = plain.getsockname()[1]
        if context is not None:
            self._socket = context.wrap_socket(plain, server_hostname=address[0])
        self._socket.setblocking(False)

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def in_flight(self) -> int:
        return self.begun_count - self.answered_count

    @property
    def outbox_bytes(self) -> int:
        return len(self._outbox)

    def submit(self, count: int) -> None:
        self._submit(count, self._payloads.frames(self.number, self.begun_count, count))

    def submit_sized(self, count: int, size: int, part: int | None = None) -> None:
        """Send frames with payloads of one size; with ``part`` only that many bytes now, and the rest with ``finish``."""
        whole = bytearray()
        for sequence in range(self.begun_count, self.begun_count + count):
            payload = (b"%016d" % sequence * (size // 16 + 1))[:size]
            self._special[sequence] = payload
            whole += frame(self.number, sequence, payload)
        end = len(whole) if part is None else part
        self._rest = bytes(whole[end:])
        self._submit(count, whole[:end])

    def finish(self) -> None:
        self._submit(0, self._rest)

    def on_ready(self, events: int) -> None:
        if self.closed is not None:
            return
        try:
            if self._outbox and not self._write():
                return
            if self._shutting and not self._outbox:
                self._shut()
            elif events & ~select.EPOLLOUT:
                self._read()
        except (ConnectionError, ssl.SSLError) as error:
            self.close(type(error).__name__)

    def shut(self) -> None:
        """End the stream; ``closed`` is set when the peer has ended it as well."""
        self._shutting = True
        self.on_ready(select.EPOLLIN)

    def close(self, reason: str = "client") -> None:
        self.closed = self.closed or reason
        self._socket.close()

    def _submit(self, count: int, data: bytes | bytearray) -> None:
        self._outbox += data
        self.begun_count += count
        self._times.append((self.begun_count, count, time.monotonic_ns()))
        if self.closed is None:
            self._write()

    def _write(self) -> bool:
        """Write until the socket takes no more; whether the connection is still open."""
        try:
            while self._outbox:
                # one TLS record at a time: SSLSocket.send returns only when all of its data is written
                sent = self._socket.send(self._outbox[:_WRITE_SIZE])
                self.sent_bytes += sent
                del self._outbox[:sent]
                self.blocked_since_ns = 0
        except _BLOCKED:
            self.blocked_since_ns = self.blocked_since_ns or time.monotonic_ns()
        except (ConnectionError, ssl.SSLError) as error:
            self.close(type(error).__name__)
        self.wanted = select.EPOLLIN | (select.EPOLLOUT if self._outbox else 0)
        return self.closed is None

    def _shut(self) -> None:
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
        self.close()

    def _read(self) -> None:
        pieces = [self._tail]
        with contextlib.suppress(*_BLOCKED):
            for _ in range(_READS_AT_ONCE):
                data = self._socket.recv(_READ_SIZE)
                if not data:
                    self.close("end of stream")
                    break
                pieces.append(data)
        if len(pieces) > 1:
            self._check(b"".join(pieces))

    def _check(self, data: bytes) -> None:
        """Compare the whole frames in the data with what was sent, in order, and add the times of batches that are answered."""
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
        now = time.monotonic_ns()
        while self._times and self._times[0][0] <= self.answered_count:
            _, count, sent_ns = self._times.popleft()
            self.latency.add(now - sent_ns, count)
