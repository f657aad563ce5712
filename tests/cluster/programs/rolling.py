"""The application and the clients of a rolling update.

``rolling.py serve --lasts S``: answers frames at 127.0.0.1:9190, as a Kafka broker with one topic does it; ends S seconds after SIGTERM.
``rolling.py ask``: clients of several kinds ask until SIGTERM, and it says in one line of JSON what became of their requests. A client that writes by
itself looks whether its connection has ended before each request. A request is lost if its connection ends, or nothing comes for ``SILENT_S``,
before its answer; a client that tries again sends it on another connection, and loses it if its answer is not there ``SILENT_S`` after the load.
It is not lost but late if its client stood still before it, as on a busy machine, for as long as framegate takes for the pause of one that waits.
"""

import argparse
import collections
import json
import signal
import socket
import ssl
import struct
import sys
import threading
import time

APPLICATION = ("127.0.0.1", 9190)
TOPIC = "records"
EVERY_S = 0.01  # between two requests of a client, if its window has room
SILENT_S = 20.0
PAUSE_S = 0.12  # framegate ends the connection of a client from which nothing came for so long (``proxy/relay/drain.py``), or for ``drain.quiet``
VERSIONS = {0: (3, 3), 1: (4, 4), 3: (1, 1), 18: (0, 0)}  # Produce, Fetch (which librdkafka wants to see), Metadata, ApiVersions
UNSUPPORTED_VERSION = 35
NUMBERED = 9  # version of Metadata by which clients of this program are known: its answer is padding
KINDS = [(protocol, window, again) for protocol in ("framed", "kafka") for window in (1, 8) for again in (False, True)]
OF_EACH = 2  # connections
PORTS = {"kafka": 9093, "framed": 9094}


def text(word: str) -> bytes:
    return struct.pack(">h", len(word)) + word.encode()


def answer(request: bytes, host: str) -> bytes:
    key, version, correlation = struct.unpack_from(">hhi", request)
    head = struct.pack(">i", correlation)
    if key == 18:
        keys = b"".join(struct.pack(">hhh", each, *span) for each, span in VERSIONS.items())
        return head + struct.pack(">hi", UNSUPPORTED_VERSION if version else 0, len(VERSIONS)) + keys
    if key == 0:
        return head + struct.pack(">i", 1) + text(TOPIC) + struct.pack(">iihqqi", 1, 0, 0, 0, -1, 0)
    if version == NUMBERED:
        return head + bytes(200)
    broker = struct.pack(">ii", 1, 1) + text(host) + struct.pack(">ihi", PORTS["kafka"], -1, 1)
    partition = struct.pack(">ihii", 1, 0, 0, 1) + 2 * struct.pack(">ii", 1, 1)
    return head + broker + struct.pack(">ih", 1, 0) + text(TOPIC) + b"\0" + partition


def serve_connection(sock: socket.socket, host: str) -> None:
    stream = sock.makefile("rb")
    while len(header := stream.read(4)) == 4:
        body = answer(stream.read(int.from_bytes(header, "big")), host)
        sock.sendall(struct.pack(">i", len(body)) + body)
    sock.close()


def serve(asked: argparse.Namespace) -> None:
    """Answer until SIGTERM, and so many seconds more."""
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    listener = socket.create_server(APPLICATION, backlog=128)

    def accept() -> None:
        while True:
            sock, _ = listener.accept()
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=serve_connection, args=(sock, asked.host), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    while not over.wait(1.0):
        pass
    time.sleep(asked.lasts)


class Client(threading.Thread):
    """A client with one connection at a time.

    Args:
        protocol: of the listener.
        window: requests that it leaves unanswered.
        again: it sends those without an answer again, on the next connection.
        over: set when it sends nothing new.
    """

    def __init__(self, asked: argparse.Namespace, protocol: str, window: int, over: threading.Event, *, again: bool) -> None:
        super().__init__(daemon=True)
        self.kind = f"{protocol}, {window} open, {'tries again' if again else 'tries once'}"
        self.counts: collections.Counter[str] = collections.Counter()
        self.longest_s = 0.0
        self.seen: list[str] = []  # of connections that did not end as they should
        self._host, self._port = asked.host, PORTS[protocol]
        self._context = ssl.create_default_context(cafile=asked.ca)
        self._window, self._again, self._over = window, again, over
        self._sock: ssl.SSLSocket | None = None
        self._input = bytearray()
        self._open: dict[int, float] = {}  # requests without an answer, and when each was sent
        self._pauses: dict[int, tuple[float, float]] = {}  # of each of them: the time from the last byte, and from the last look, to its end
        self._moved_s = self._looked_s = 0.0  # when a byte passed last, and when it looked whether the connection has ended
        self._number = 0

    def run(self) -> None:
        next_s, waiting = 0.0, list[int]()
        while not self._over.is_set() or self._open or waiting:
            if self._sock is None and not self._connect():
                continue
            now = time.monotonic()
            if len(self._open) < self._window and now >= next_s and (waiting or not self._over.is_set()):
                if not self._hear(0.0):
                    waiting += self._left()
                    continue
                if not waiting:
                    self._number += 1
                    self.counts["sent"] += 1
                self._send(waiting.pop(0) if waiting else self._number)
                next_s = max(next_s + EVERY_S, now)
            if not self._hear(EVERY_S if len(self._open) >= self._window or self._over.is_set() else max(0.0, next_s - time.monotonic())):
                waiting += self._left()
        if self._sock is not None:
            self._sock.close()

    def _connect(self) -> bool:
        try:
            plain = socket.create_connection((self._host, self._port), 10.0)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sock = self._context.wrap_socket(plain, server_hostname=self._host, suppress_ragged_eofs=False)
        except OSError as error:
            self._note("connect_failed", error)
            time.sleep(0.1)
            return False
        self.counts["connections"] += 1
        self._input.clear()
        self._moved_s = time.monotonic()
        return True

    def _send(self, number: int) -> None:
        body = struct.pack(">hhih", 3, NUMBERED, number, -1) + bytes(200)
        self._open[number] = time.monotonic()
        assert self._sock is not None, "it is connected"
        self._sock.settimeout(SILENT_S)
        try:
            self._sock.sendall(struct.pack(">i", len(body)) + body)
        except OSError as error:  # what it finds when it reads counts
            self._note("send_failed", error)
        now = time.monotonic()
        self._pauses[number] = now - self._moved_s, now - self._looked_s
        self._moved_s = now

    def _hear(self, wait_s: float) -> bool:
        """Take the answers that are there, or come in time; False: the connection has ended."""
        assert self._sock is not None, "it is connected"
        self._looked_s = time.monotonic()
        deadline = self._looked_s + wait_s
        while True:
            self._sock.settimeout(max(0.0, deadline - time.monotonic()))
            try:
                data = self._sock.recv(1 << 16)
            except (TimeoutError, ssl.SSLWantReadError, BlockingIOError):
                break
            except OSError as error:
                self._note("broken", error)
                return False
            if not data:
                return False
            deadline = 0.0
            self._moved_s = time.monotonic()
            self._input += data
            self._take()
        if self._open and time.monotonic() - min(self._open.values()) > SILENT_S:
            self._note("silent", TimeoutError())
            return False
        return True

    def _take(self) -> None:
        while len(self._input) >= 4 and len(self._input) >= (size := 4 + int.from_bytes(self._input[:4], "big")):
            (number,) = struct.unpack_from(">i", self._input, 4)
            self.longest_s = max(self.longest_s, time.monotonic() - self._open.pop(number))
            del self._pauses[number]
            self.counts["answered"] += 1
            del self._input[:size]

    def _left(self) -> list[int]:
        """The connection has ended: the requests to send again."""
        assert self._sock is not None, "it was connected"
        self._sock.close()
        self._sock = None
        left = list(self._open)
        if left:
            pause_s, look_s = self._pauses[left[0]]
            self.counts["again" if self._again else "lost" if pause_s < PAUSE_S else "late"] += len(left)
            what = f"sent {1000 * pause_s:.0f} ms after the last byte, {1000 * look_s:.0f} ms after it looked"
            self.seen.append(f"{time.time():.3f}: without an answer: {left[0]}…{left[-1]} of {self._number}, {what}")
        self._open.clear()
        self._pauses.clear()
        return left if self._again else []

    def _note(self, what: str, error: OSError) -> None:
        self.counts[what] += 1
        self.seen.append(f"{time.time():.3f}: {what}: {type(error).__name__} {error}")


class Producer(threading.Thread):
    """librdkafka with five requests open at most; one record is a request."""

    def __init__(self, asked: argparse.Namespace, over: threading.Event, *, again: bool) -> None:
        super().__init__(daemon=True)
        from confluent_kafka import Producer as Library  # not in the application, which starts sooner without

        self.kind = f"librdkafka, 5 open, {'tries again' if again else 'tries once'}"
        self.counts: collections.Counter[str] = collections.Counter()
        self.longest_s = 0.0
        self.seen: list[str] = []
        self._over = over
        common = {"bootstrap.servers": f"{asked.host}:{PORTS['kafka']}", "security.protocol": "ssl", "ssl.ca.location": asked.ca}
        sends = {"acks": 1, "linger.ms": 0, "max.in.flight": 5, "reconnect.backoff.ms": 10, "batch.num.messages": 1}
        self._producer = Library({**common, **sends, "log.connection.close": False, **({} if again else {"message.send.max.retries": 0})})

    def run(self) -> None:
        next_s = time.monotonic()
        while not self._over.is_set():
            self._producer.produce(TOPIC, bytes(100), partition=0, on_delivery=self._delivered)
            self.counts["sent"] += 1
            next_s = max(next_s + EVERY_S, time.monotonic())
            while (left_s := next_s - time.monotonic()) > 0:
                self._producer.poll(left_s)
        self.counts["lost"] += self._producer.flush(SILENT_S)

    def _delivered(self, error: object, message: object) -> None:
        self.counts["lost" if error else "answered"] += 1
        if error:
            self.seen.append(f"{time.time():.3f}: {error}")
        else:
            self.longest_s = max(self.longest_s, message.latency())


def ask(asked: argparse.Namespace) -> None:
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    clients = [Client(asked, protocol, window, over, again=again) for protocol, window, again in KINDS for _ in range(OF_EACH)]
    clients += [Producer(asked, over, again=again) for again in (False, True)]
    for client in clients:
        client.start()
    while not all(client.counts["answered"] or over.is_set() for client in clients):
        time.sleep(0.1)
    print("asking", file=sys.stderr, flush=True)
    while not over.wait(1.0):
        pass
    said: dict[str, dict[str, object]] = {}
    deadline = time.monotonic() + 2 * SILENT_S
    for client in clients:
        client.join(max(0.0, deadline - time.monotonic()))
        counts = collections.Counter(client.counts)
        counts["lost"] += counts["sent"] - counts["answered"] - counts["lost"] - counts["late"]
        line = said.setdefault(client.kind, {"longest_s": 0.0, "seen": []})
        for name in ("sent", "lost", "late", "again", "connections", "connect_failed", "broken", "silent"):
            line[name] = line.get(name, 0) + counts[name]
        line["longest_s"] = max(line["longest_s"], round(client.longest_s, 3))
        line["seen"] += client.seen[:5]
    print(json.dumps(said), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=["serve", "ask"])
    parser.add_argument("--host", default="kafka", help="the Service's name")
    parser.add_argument("--ca", default="/tls/ca.crt")
    parser.add_argument("--lasts", type=float, default=0.0, help="seconds from SIGTERM to the application's end")
    asked = parser.parse_args()
    serve(asked) if asked.verb == "serve" else ask(asked)


if __name__ == "__main__":
    main()
