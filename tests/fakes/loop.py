"""A processor's loop within the test's own process: its collaborators, and control's ends of its sockets."""

import contextlib
import gc
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Self

from framegate.proxy.cells import CellLayout, CellReader, CellWriter, create
from framegate.proxy.clock import MonotonicClock
from framegate.proxy.config.model import MIB, BrokersConfig, KafkaCluster, ListenerConfig, ProxyConfig, TapConfig, TapRule, UpstreamConfig, to_wire
from framegate.proxy.config.sasl import ListenerSasl
from framegate.proxy.network.connection_id import ConnectionIds
from framegate.proxy.network.selector import Selector
from framegate.proxy.network.timer import Timer
from framegate.proxy.relay.drain import Drain
from framegate.proxy.relay.publisher import Publisher
from framegate.proxy.relay.relay import Relay
from framegate.proxy.server.heap import Heap
from framegate.proxy.server.link import Handover, LinkReader, encode, send_handovers
from framegate.proxy.server.loop import Loop, Watcher
from framegate.proxy.server.messages import ClusterRow
from framegate.proxy.server.settings import Settings
from framegate.proxy.tap.rules import TapRules
from framegate.proxy.tap.segment import SegmentFiles
from framegate.proxy.tap.writer import TapWriter
from tests.fakes.pools import pool_of
from tests.fakes.rows import decode_line

Message = dict[str, Any]


class Act(Timer):
    def __init__(self, action: Callable[[], object]) -> None:
        super().__init__()
        self.action = action

    def fire(self, now_ns: int) -> None:
        self.action()


class LoopBench:
    """One loop over an upstream that accepts and says nothing; ``run`` serves until something ends it.

    Args:
        folder: of the tap's log; none: no tap.
        files: the disk under it.
        cell_writer: made of descriptor and layout.
        link_bytes: the send buffer of the loop's command socket; 0: the system's.
        sasl: of the listener, whose protocol is Kafka's then.
        brokers: of a cluster, which the upstream is then, as control sends them; the upstream's address is its bootstrap.
    """

    def __init__(
        self,
        folder: str | None = None,
        files: SegmentFiles | None = None,
        cell_writer: Callable[[int, CellLayout], CellWriter] = CellWriter,
        link_bytes: int = 0,
        sasl: ListenerSasl | None = None,
        brokers: ClusterRow | None = None,
    ) -> None:
        self.upstream = socket.create_server(("127.0.0.1", 0), backlog=1024)
        tap_config = None if folder is None else TapConfig(directory=folder, rules=(TapRule(name="all"),))
        endpoints = (f"127.0.0.1:{self.upstream.getsockname()[1]}",)
        upstream = UpstreamConfig(name="u", endpoints=endpoints)
        if brokers is not None:
            upstream = UpstreamConfig(name="u", kafka=KafkaCluster(bootstrap=endpoints))
        config = ProxyConfig(
            node="n",
            listeners=(
                ListenerConfig(
                    name="plain",
                    address="0.0.0.0:0",
                    upstream="u",
                    max_receive_size=MIB,
                    protocol="framed" if sasl is None and brokers is None else "kafka",
                    sasl=sasl,
                    brokers=None if brokers is None else BrokersConfig(ports="1-9"),
                ),
            ),
            upstreams=(upstream,),
            tap=tap_config,
        )
        layout = CellLayout.of(config, {} if brokers is None else {"u": [each["id"] for each in brokers["brokers"]]})
        self._cells_fd = create(layout)
        self.cells = CellReader(self._cells_fd, layout)
        writer = cell_writer(self._cells_fd, layout)
        writer.start(1, 1, 0)
        clock = MonotonicClock()
        self.pool = pool_of(16 * MIB, clock.now_ns)
        settings = self.settings = Settings({"config": to_wire(config), "brokers": {} if brokers is None else {"u": brokers}}, self.pool)
        self.tap = None if tap_config is None else TapWriter(tap_config, "n", "0", "b", files)
        if self.tap is not None:
            self.tap.start()
        rules = None if tap_config is None or self.tap is None else TapRules(tap_config.rules, self.tap)
        watcher = Watcher()
        self.relay = Relay(ConnectionIds(0, 1), settings.counters, watcher, rules, self.tap)
        self.selector = Selector(clock, self.pool)
        self.relay.pairs.attach(self.selector)
        self.command, theirs = socket.socketpair()
        if link_bytes:
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, link_bytes)
        self.handover, their_handover = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.signals, wakeup = socket.socketpair()
        self._ours = (theirs, their_handover, wakeup)
        for sock in self._ours:
            sock.setblocking(False)
        self.loop = Loop(
            relay=self.relay,
            selector=self.selector,
            settings=settings,
            watcher=watcher,
            drain=Drain(self.selector, clock, self.relay.pairs.open, watcher, 0),
            cells=writer,
            publisher=Publisher(writer, settings.counters, settings.limits, self.pool, self.tap),
            tap=self.tap,
            tap_fd=-1,
            command=theirs,
            handover=their_handover,
            wakeup=wakeup,
            reader=LinkReader(),
            heap=Heap(lambda: None),
        )
        self._collecting = gc.get_threshold()
        self.clients: list[socket.socket] = []
        # what the link brought, once ``close`` or ``receive`` read it; rows of connections are single messages with ``row``
        self.read: list[Message] = []
        self._reader = LinkReader()

    def connect(self) -> socket.socket:
        """A client's socket whose other end waits for the loop to take it over."""
        client, accepted = self.accepted()
        with accepted:
            assert send_handovers(self.handover, [Handover(time.monotonic_ns(), accepted.family, "plain", "192.0.2.1:9")], [accepted.fileno()])
        return client

    def accepted(self) -> tuple[socket.socket, socket.socket]:
        """A client's socket, and its other end, which nobody has handed over."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            client = socket.create_connection(server.getsockname())
            accepted, _ = server.accept()
        client.settimeout(5)
        self.clients.append(client)
        return client, accepted

    def send(self, *messages: Message) -> None:
        self.command.sendall(b"".join(encode(message) for message in messages))

    def when(self, condition: Callable[[], object], action: Callable[[], object]) -> None:
        """Do something in the loop's thread, between two polls, once a condition holds there."""

        def look() -> None:
            if condition():
                action()
            else:
                self.selector.call_at(self.selector.now_ns + 1_000_000, timer)

        timer = Act(look)
        self.selector.call_at(0, timer)

    def when_open(self, count: int, action: Callable[[], object]) -> None:
        """Do something once so many pairs are open."""
        pairs = self.relay.pairs.open
        self.when(lambda: [pair.state.value for pair in pairs.values()] == ["open"] * count, action)

    def receive(self) -> None:
        """Read the link to its end; the loop has closed its side."""
        self.command.settimeout(5)
        with contextlib.suppress(ConnectionResetError):
            while data := self.command.recv(1 << 16):
                self._keep(data)

    def _keep(self, data: bytes) -> None:
        for message in self._reader.feed(data):
            if message["type"] in ("opened", "access", "closed"):
                self.read += [{"type": message["type"], "row": decode_line(line, message["type"])} for line in message["rows"]]
            else:
                self.read.append(message)

    def of(self, kind: str) -> list[Message]:
        return [message for message in self.read if message["type"] == kind]

    def end(self) -> None:
        """As the process's end does: the loop's descriptors go; what it wrote is read."""
        for sock in self._ours:
            sock.close()
        if self.command.fileno() >= 0:
            self.receive()

    @contextlib.contextmanager
    def reading(self, begin: threading.Event) -> Iterator[None]:
        """A control that reads its link only from ``begin`` on."""

        def run() -> None:
            begin.wait(10)
            self.receive()

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            for sock in self._ours:
                sock.close()
            begin.set()
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        for sock in (*self._ours, *self.clients, self.command, self.handover, self.signals, self.upstream):
            sock.close()
        os.close(self._cells_fd)
        gc.set_threshold(*self._collecting)  # what a loop has frozen for its whole process stays so: conftest.py
