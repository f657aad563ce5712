"""Traffic whose frames carry the number of their client and their own number; both ends keep what reached them."""

import bisect
import contextlib
import random
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from framegate.control.v1.channel_service_pb2 import Channel
from framegate.proxy.network.connection_id import parse_connection_id
from framegate.proxy.tap.ledger import read_ledger
from tests.fakes.framegate import Framegate
from tests.fakes.upstream import ScriptedUpstream, frame, peer_name
from tests.fakes.waiting import until

HEADER: Final = struct.Struct(">IQI")
LENGTH: Final = struct.Struct(">i")
PADDING: Final = bytes(range(251)) * 2400
SIZES: Final = (HEADER.size, 20, 100, 100, 100, 1000, 5000)
LARGE: Final = 300_000  # Above what passes whole: an answer of this size is cut through
BATCH: Final = 40
WAIT_S: Final = 40
LATER: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


def body_of(client: int, number: int, size: int) -> bytes:
    """The body of a frame: its client, its number and its size, then bytes that follow from these."""
    return HEADER.pack(client, number, size) + PADDING[number % 251 : number % 251 + size - HEADER.size]


def bodies(data: bytes) -> list[tuple[int, int]]:
    """Client and number of each whole frame in a stream of bytes; every byte of the frames is checked."""
    found, at = [], 0
    while at + LENGTH.size <= len(data):
        end = at + LENGTH.size + LENGTH.unpack_from(data, at)[0]
        if end > len(data):
            break
        whole = data[at + LENGTH.size : end]
        client, number, size = HEADER.unpack_from(whole)
        assert whole == body_of(client, number, size), "a frame that nobody sent"
        found.append((client, number))
        at = end
    return found


class Echo:
    """An upstream that sends everything back and keeps what came, by connection."""

    def __init__(self) -> None:
        self._came: list[bytearray] = []
        self._upstream = ScriptedUpstream(self._serve)
        self.address = self._upstream.address

    def _serve(self, sock: socket.socket) -> None:
        came = bytearray()
        self._came.append(came)
        answers = True
        while data := sock.recv(1 << 18):
            came += data
            if answers:
                try:
                    sock.sendall(data)
                except OSError:
                    answers = False  # what was sent to us before is still to be read

    def received(self) -> dict[int, int]:
        """Of each client: how many of its frames came, the first ones, in order."""
        counts: dict[int, int] = {}
        for came in list(self._came):
            for client, number in bodies(bytes(came)):
                assert number == counts.get(client, 0), "out of order, or twice"
                counts[client] = number + 1
        return counts

    def close(self) -> None:
        self._upstream.close()


class Client:
    def __init__(self, number: int, listener: str, sock: socket.socket, seed: int, *, large: bool) -> None:
        self.number = number  # in each of its frames
        self.listener = listener  # which it is connected to
        self.sock = sock
        self.sock.setblocking(False)
        self.peer = peer_name(sock)
        self._lock = threading.Lock()  # a TLS socket is one thread's at a time
        # wall clock: numbers of frames about to be sent, bytes that had come, and the end
        self._sent_at: list[tuple[int, int]] = []
        self._came_at: list[tuple[int, int]] = []
        self._left_ns = 1 << 62
        # id, stream: the channel's, and the stream of the processor that has it
        self.id = 0
        self.stream = ""
        self.sent = 0  # frames handed to the kernel, or about to be
        rng = random.Random(seed)
        self._sizes = rng.choices(SIZES, k=64)
        if large:
            self._sizes[rng.randrange(64)] = LARGE
        self._came = bytearray()
        self._whole = 0
        self._parsed = 0
        self._writer = threading.Thread()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def body(self, number: int) -> bytes:
        return body_of(self.number, number, self._sizes[number % 64])

    @property
    def answered(self) -> int:
        """Whole answers that came so far, by their sizes."""
        while self._parsed + LENGTH.size <= len(self._came):
            end = self._parsed + LENGTH.size + LENGTH.unpack_from(self._came, self._parsed)[0]
            if end > len(self._came):
                break
            self._parsed = end
            self._whole += 1
        return self._whole

    @property
    def quiet(self) -> bool:
        return self.answered == self.sent

    def received(self) -> int:
        """Whole answers that came: its own frames, in order; every byte of them is checked."""
        found = bodies(bytes(self._came))
        assert found == [(self.number, number) for number in range(len(found))]
        return len(found)

    def passed(self, number: int) -> tuple[int, int]:
        """Wall clock between which a frame and its answer passed: it was about to be sent; the answer had come, or the client left."""
        rounds, rest = divmod(number + 1, 64)
        end = (number + 1) * LENGTH.size + rounds * sum(self._sizes) + sum(self._sizes[:rest])
        came = bisect.bisect_left(self._came_at, (end, 0))
        return self._sent_at[bisect.bisect(self._sent_at, (number, 1 << 62)) - 1][1], (*self._came_at[came : came + 1], (0, self._left_ns))[0][1]

    def flood(self, count: int, stop: threading.Event) -> None:
        """Send so many frames without waiting for an answer, on a thread."""
        self._writer = threading.Thread(target=self._write, args=(count, stop), daemon=True)
        self._writer.start()

    def _write(self, count: int, stop: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while count > 0 and not stop.is_set():
                take = min(BATCH, count)
                batch = b"".join(frame(self.body(self.sent + index)) for index in range(take))
                self._sent_at.append((self.sent, time.time_ns()))
                self.sent += take
                count -= take
                self._send(memoryview(batch))

    def _send(self, left: memoryview) -> None:
        while left:
            try:
                with self._lock:
                    left = left[self.sock.send(left) :]
            except LATER:
                select.select([], [self.sock], [])

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                try:
                    with self._lock:
                        data = self.sock.recv(1 << 18)
                except LATER:
                    select.select([self.sock], [], [])
                    continue
                if not data:
                    return
                self._came += data
                self._came_at.append((len(self._came), time.time_ns()))

    def settle(self) -> None:
        """Wait until the writer has sent everything, or its connection has ended."""
        if self._writer.ident is not None:
            self._writer.join(30)
            assert not self._writer.is_alive(), "a client is stuck"

    def close(self) -> None:
        with contextlib.suppress(OSError), self._lock:
            socket.socket.shutdown(self.sock, socket.SHUT_RDWR)  # that of a TLS socket would go on in plaintext
        self.settle()
        self._reader.join(10)
        self.sock.close()
        self._left_ns = time.time_ns()


class Traffic:
    """Clients of one proxy after another, and their echo."""

    def __init__(self, seed: int) -> None:
        self.echo = Echo()
        self.clients: list[Client] = []  # all there ever were
        self.here: list[Client] = []  # those that are connected, as far as is known
        self._rng = random.Random(seed)
        self._stop = threading.Event()

    def connect(self, proxy: Framegate, listeners: list[str], directory: Path, tls: ssl.SSLContext | None = None) -> None:
        """Connect a client to each of these listeners; each has its channel when this returns."""
        fresh = []
        for listener in listeners:
            sock = proxy.connect(listener, tls, timeout=60)
            large = self._rng.random() < 0.3
            fresh.append(Client(len(self.clients) + len(fresh) + 1, listener, sock, self._rng.randrange(1 << 30), large=large))
        self.clients += fresh
        self.here += fresh
        peers = {(client.peer, client.listener) for client in fresh}  # a client that has left may have had the port, to the other listener

        def opened() -> Mapping[str, Channel] | None:
            found = proxy.channels()
            return found if peers <= {(peer, channel.listener) for peer, channel in found.items()} else None

        listed = until(opened, "no channel came", WAIT_S)
        streams = {
            int(stream.rsplit(".", 2)[1]): stream
            for stream, stream_record in read_ledger(str(directory)).streams.items()
            if not stream_record.recovery
        }
        for client in fresh:
            client.id = parse_connection_id(listed[client.peer].id)
            client.stream = streams[int(listed[client.peer].id.split("-")[0])]

    def flood(self, answers: int, most: int = 5000) -> None:
        """Have all clients send as fast as they can; return when so many answers more have come."""
        self._stop = threading.Event()
        goal = sum(client.answered for client in self.here) + answers
        for client in self.here:
            client.settle()
            client.flood(most, self._stop)
        until(lambda: sum(client.answered for client in self.here) >= goal or all(client.quiet for client in self.here), "no answers came", WAIT_S)

    def stop(self) -> None:
        self._stop.set()
        for client in self.here:
            client.settle()

    def exchange(self, count: int) -> None:
        """Have each client send so many frames, and get every answer."""
        self._stop = threading.Event()
        for client in self.here:
            client.settle()
            client.flood(count, self._stop)
        self.quiet()

    def quiet(self) -> None:
        for client in self.here:
            client.settle()
        until(lambda: all(client.quiet for client in self.here), "the last answers did not come", WAIT_S)

    def part(self, streams: set[str] | None = None) -> None:
        """Let the clients go whose processors are gone; None: all."""
        self._stop.set()
        self.leave([client for client in self.here if streams is None or client.stream in streams])

    def leave(self, clients: Iterable[Client]) -> None:
        for client in clients:
            client.close()
            self.here.remove(client)

    def close(self) -> None:
        self.part()
        self.echo.close()
