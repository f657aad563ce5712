"""Pairs whose frames are handled, and handler processes whose every reply is the test's."""

import socket
from dataclasses import dataclass
from typing import Any

from framegate.proxy.network.channel import Channel
from framegate.proxy.relay import handler_wire as wire
from framegate.proxy.relay.handled_pair import HandledLeg
from framegate.proxy.relay.handler_process import HandlerProcess
from framegate.proxy.relay.pair import Pair
from framegate.proxy.relay.request_channel import RequestChannel
from tests.fakes.handler_process import whole_records
from tests.fakes.world import SECOND, World

MS = 1_000_000


@dataclass(frozen=True)
class Asked:
    """A request as the process read it."""

    direction: int
    connection: int
    sequence: int
    header: bytes
    body: bytes


class Process:
    """A handler process: its end of the socket, and what it read."""

    def __init__(self, world: "HandledWorld", name: str, **handler: Any) -> None:
        ours, self.socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.setblocking(False)
        self.world = world
        self.ours: HandlerProcess = world.requests.take_over(ours, name)
        # opened, closed: connections that it was told of, with their facts
        self.opened: dict[int, wire.Facts] = {}
        self.closed: list[int] = []
        self.asked: list[Asked] = []  # requests that ``take`` has not taken
        self.wanted: list[tuple[int, int]] = []  # connections and directions whose replies the processor has asked for
        self.under_way = 0
        self.most = 0  # how many requests were under way at most, by what it has read and replied
        self.ended = False
        self._reader = wire.RecordReader()
        if handler.pop("ready", True):
            self.hello(**handler)

    def hello(self, *, directions: tuple[str, ...] = ("request", "response"), listener: str = "l") -> None:
        facts: wire.HandlerFacts = {"directions": list(directions)}
        self.send(wire.encode_hello({"wire": wire.WIRE, "slot": 0, "handlers": {listener: facts}}))
        self.world.poll()

    def send(self, data: bytes) -> None:
        left = memoryview(data)
        for _ in range(100_000):
            try:
                left = left[self.socket.send(left) :]
            except BlockingIOError:
                self.world.selector.poll(1)
            if not left:
                return
        raise AssertionError("the processor does not read")

    def read(self) -> None:
        while True:
            try:
                data = self.socket.recv(1 << 20)
            except BlockingIOError:
                return
            if not data:
                self.ended = True
                return
            for record in whole_records(self._reader, data):
                self._take(record)

    def _take(self, record: bytes) -> None:
        kind = record[4]
        if kind == wire.OPEN:
            connection, facts = wire.read_open(record, 0, len(record))
            assert connection not in self.opened
            self.opened[connection] = facts
        elif kind == wire.CLOSED:
            self.closed.append(wire.read_closed(record, 0))
        elif kind == wire.SEND:
            self.wanted.append(wire.read_send(record, 0))
        else:
            assert kind == wire.REQUEST
            connection, direction, sequence, header, body, _ = wire.read_requests(record, 0)[0]
            assert connection in self.opened, "OPEN comes first"
            assert connection not in self.closed, "nothing comes after CLOSED"
            self.asked.append(Asked(direction, connection, sequence, header, body))
            self.under_way += 1
            self.most = max(self.most, self.under_way)

    def take(self, count: int = 1) -> list[Asked]:
        self.world.until(lambda: self.read() or len(self.asked) >= count)
        taken, self.asked = self.asked[:count], self.asked[count:]
        return taken

    def one(self) -> Asked:
        """The next request, which is the only one that is here."""
        (asked,) = self.take()
        self.settle()
        assert not self.asked, self.asked
        return asked

    def settle(self, polls: int = 4) -> None:
        self.world.poll(polls)
        self.read()

    def record(self, asked: Asked, action: int, body: bytes = b"", throttle_ms: int = 0, *, began_ns: int = 0, ended_ns: int = 0) -> bytes:
        return wire.encode_replies([(action, asked.direction, throttle_ms, asked.connection, asked.sequence, began_ns, ended_ns, body)])

    def reply(self, asked: Asked, action: int, body: bytes = b"", throttle_ms: int = 0, **times: int) -> None:
        self.under_way -= 1
        if len(body) > wire.LONG:
            self.announce(asked, len(body))
            self.await_send(asked)
        self.send(self.record(asked, action, body, throttle_ms, **times))
        self.world.poll()

    def announce(self, asked: Asked, size: int) -> None:
        self.send(self.record(asked, wire.HELD, size.to_bytes(8, "big")))

    def await_send(self, asked: Asked) -> None:
        self.world.until(lambda: self.read() or (asked.connection, asked.direction) in self.wanted)
        self.wanted.remove((asked.connection, asked.direction))

    def die(self) -> None:
        self.socket.close()
        self.world.poll()


class HandledWorld(World):
    """A world whose frames go to handler processes; without an upstream they answer.

    Args:
        upstream: there is one.
        queue, timeout_s: of the request channel.
        others: as ``World``'s.
    """

    def __init__(self, protocol: str = "framed", *, upstream: bool = False, queue: int = 100, timeout_s: int = 0, **others: Any) -> None:
        self.requests = RequestChannel(queue, timeout_s * SECOND)
        super().__init__(protocol, requests=self.requests, serves=not upstream, **others)
        self.has_upstream = upstream
        self.processes: list[Process] = []
        self.faults = 0  # how many errors of our own the test provokes

    def process(self, name: str = "0.1", **handler: Any) -> Process:
        """A handler process that is there; arguments as ``Process.hello``'s."""
        process = Process(self, name, **handler)
        self.processes.append(process)
        return process

    def served(self) -> tuple[socket.socket, Pair]:
        client, pair = self.client()
        self.until(lambda: pair.state.value == "open")
        return client, pair

    def cell(self, name: str, *values: str) -> int:
        from framegate.proxy.cells import LISTENER_BLOCK

        return int(self.counters.listeners["l"].counts.cells[LISTENER_BLOCK.at(f"framegate.handler.{name}", *values)])

    def close(self) -> None:
        for process in self.processes:
            process.socket.close()
        super().close()
        assert self.cell("queue.size") == 0
        for process in self.processes:
            assert process.ours.kept == 0
            assert all(connection.party is None for connection in process.ours.connections.values())
        assert self.selector.faults.total == self.faults, self.selector.faults.take()


def leg_of(pair: Pair, direction: int = 0) -> HandledLeg:
    leg = pair.client if direction == 0 else pair.upstream
    assert isinstance(leg, HandledLeg)
    return leg


def channel_of(pair: Pair, direction: int = 0) -> Channel:
    channel = leg_of(pair, direction).channel
    assert channel is not None
    return channel
