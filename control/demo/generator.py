"""The demo's load generator: a process that sends paced frames over many connections and checks every answer.

``python -m framegate.control.demo.generator OPTIONS`` takes the fields of ``Options`` as a JSON object. It reads commands from standard input, one
JSON object with ``id`` and ``do`` per line, and writes JSON lines: ``stats`` four times a second, ``reply`` to each command, ``final`` at the end.

With ``host`` and ``seconds`` it sends to another machine for that time, without commands, and exits with 1 if an answer is missing or wrong.

Commands: ``load`` (the whole rate from now on; before it ``first_rate``, which counts in no histogram that is shown), ``open`` a further connection
(numbered from 1000), ``send`` frames of a size on it, ``begin`` a frame and hold its rest back, ``finish`` it, ``inspect`` a connection, ``shut`` it,
``phase`` (which latency histogram is filled), ``stop``.
"""

import dataclasses
import json
import math
import os
import select
import ssl
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from framegate.control.demo.load import Client, Latency, Payloads

FIRST_SPECIAL: Final = 1000  # the first number of the connections that steps open

_TICK_S: Final = 0.005
_STATS_S: Final = 0.25
_CATCH_UP_S: Final = 0.25
_BURSTS: Final = 16
_WINDOW: Final = 256
_FINISH_S: Final = 20.0
_SPECIAL_SEND_BUFFER: Final = 32 * 1024


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the load is like, and where it goes: ``rate`` in frames per second over all connections, until the command ``load`` only ``first_rate``
    (None: ``rate``); ``ca``: PEM file of the authority, None for plaintext; ``seconds``: how long, without commands; None: until the command
    ``stop``.
    """

    port: int
    rate: int
    connections: int
    first_rate: int | None = None
    ca: str | None = None
    host: str = "localhost"
    seconds: float | None = None


class Generator:
    """One loop over all connections. ``commands``: the descriptor of the commands; its end of file means stop. ``write``: called with each row."""

    def __init__(self, options: Options, commands: int, write: Callable[[dict[str, Any]], None]) -> None:
        self._options = options
        self._commands = commands
        self._write = write
        self._context = None if options.ca is None else ssl.create_default_context(cafile=options.ca)
        self._payloads = Payloads()
        self._phases = {"starting": Latency(), "steady": Latency(), "steps": Latency()}
        self._phase = "steady" if options.first_rate is None else "starting"
        self._rate = options.rate if options.first_rate is None else options.first_rate
        self._clients: dict[int, Client] = {}
        self._by_descriptor: dict[int, tuple[Client, int]] = {}
        self._epoll = select.epoll()
        self._inbox = b""
        self._stopping = False
        self._next = self._submitted = self._since_ns = self._behind_ns = 0

    def run(self) -> bool:
        """Send until the end, and wait for the last answers; whether every frame was answered as it was sent."""
        options = self._options
        for number in range(options.connections):
            self._open(number, 0)
        if options.seconds is None:
            os.set_blocking(self._commands, False)
            self._epoll.register(self._commands, select.EPOLLIN | select.EPOLLHUP)
        self._since_ns = time.monotonic_ns()
        next_stats = time.monotonic()
        end = math.inf if options.seconds is None else next_stats + options.seconds
        while not self._stopping and time.monotonic() < end:
            self._pace()
            self._poll()
            if time.monotonic() >= next_stats:
                next_stats = time.monotonic() + _STATS_S
                self._write({"event": "stats", **self._totals()})
        elapsed_ms = (time.monotonic_ns() - self._since_ns) // 1_000_000
        self._finish()
        totals = self._totals()
        latency = {name: times.figures() for name, times in self._phases.items()}
        pace = {"paced": self._submitted, "paced_ms": elapsed_ms, "held_back_ms": self._behind_ns // 1_000_000}
        examples = [text for client in self._clients.values() for text in client.wrong][:5]
        self._write({"event": "final", **totals, **pace, "latency": latency, "wrong_examples": examples})
        return bool(totals["sent"] == totals["answered"] and not totals["wrong"])

    def _open(self, number: int, send_buffer: int) -> None:
        address, latency = (self._options.host, self._options.port), self._phases[self._phase]
        client = self._clients[number] = Client(number, address, self._context, self._payloads, latency, send_buffer)
        self._watch(client)

    def _watch(self, client: Client) -> None:
        descriptor = client.fileno()
        if descriptor < 0:
            return  # closing the socket took it out of the epoll set
        known, wanted = self._by_descriptor.get(descriptor, (None, 0))
        if known is not client:
            self._epoll.register(descriptor, client.wanted)
        elif wanted != client.wanted:
            self._epoll.modify(descriptor, client.wanted)
        self._by_descriptor[descriptor] = (client, client.wanted)

    def _pace(self) -> None:
        """Submit the frames that are due, in bursts on one connection after the other."""
        elapsed = (time.monotonic_ns() - self._since_ns) / 1e9 - self._behind_ns / 1e9
        due = int(self._rate * elapsed) - self._submitted
        most = max(1, int(self._rate * _CATCH_UP_S))
        if due > most:  # after a stall there is no burst
            self._behind_ns += int((due - most) / self._rate * 1e9)
            due = most
        each = max(1, due // _BURSTS)
        for _ in range(self._options.connections):
            client = self._clients[self._next]
            self._next = (self._next + 1) % self._options.connections
            count = min(each, due, _WINDOW - client.in_flight)
            if count > 0 and client.closed is None:
                client.latency = self._phases[self._phase]
                client.submit(count)
                self._watch(client)
                self._submitted += count
                due -= count

    def _poll(self) -> None:
        for descriptor, events in self._epoll.poll(_TICK_S):
            if descriptor == self._commands:
                self._read_commands()
            else:
                client, _ = self._by_descriptor[descriptor]
                client.on_ready(events)
                self._watch(client)

    def _read_commands(self) -> None:
        data = os.read(self._commands, 65536)
        if not data:
            self._stopping = True
            self._epoll.unregister(self._commands)
        *lines, self._inbox = (self._inbox + data).split(b"\n")
        for line in lines:
            command = json.loads(line)
            self._write({"event": "reply", "id": command["id"], **self._do(command)})

    def _do(self, command: dict[str, Any]) -> dict[str, Any]:
        match command["do"]:
            case "stop":
                self._stopping = True
                return {}
            case "load":
                self._phase, self._rate = "steady", self._options.rate
                self._since_ns, self._behind_ns, self._submitted = time.monotonic_ns(), 0, 0
                return {}
            case "phase":
                self._phase = command["phase"]
                return {}
            case "open":
                number = max(FIRST_SPECIAL, max(self._clients) + 1)
                self._open(number, _SPECIAL_SEND_BUFFER)
                return self._inspect(self._clients[number])
        client = self._clients[command["connection"]]
        client.latency = self._phases["steps"]
        match command["do"]:
            case "send":
                client.submit_sized(command["count"], command["size"])
            case "begin":
                client.submit_sized(1, command["size"], command["part"])
            case "finish":
                client.finish()
            case "shut":
                client.shut()
        self._watch(client)
        return self._inspect(client)

    def _inspect(self, client: Client) -> dict[str, Any]:
        return {
            "connection": client.number,
            "local_port": client.local_port,
            "answered": client.answered_count,
            "sent_bytes": client.sent_bytes,
            "outbox_bytes": client.outbox_bytes,
            "blocked_ms": (time.monotonic_ns() - client.blocked_since_ns) // 1_000_000 if client.blocked_since_ns else 0,
            "wrong": len(client.wrong),
            "closed": client.closed,
        }

    def _finish(self) -> None:
        deadline = time.monotonic() + _FINISH_S
        clients = self._clients.values()
        while any(client.in_flight and client.closed is None for client in clients) and time.monotonic() < deadline:
            self._poll()
        for client in clients:
            client.shut()
            self._watch(client)
        while any(client.closed is None for client in clients) and time.monotonic() < deadline:
            self._poll()
        for client in clients:
            client.close()

    def _totals(self) -> dict[str, Any]:
        clients = self._clients.values()
        return {
            "connections": sum(client.closed is None for client in clients),
            "sent": sum(client.begun_count for client in clients),
            "answered": sum(client.answered_count for client in clients),
            "sent_bytes": sum(client.sent_bytes for client in clients),
            "answered_bytes": sum(client.answered_bytes for client in clients),
            "wrong": sum(len(client.wrong) for client in clients),
            "lost": sum(client.closed not in (None, "client") for client in clients if client.number < self._options.connections),
        }


def main(arguments: list[str]) -> int:
    """Run with the options of one JSON argument; the exit code."""
    options = Options(**json.loads(arguments[0]))
    complete = Generator(options, sys.stdin.fileno(), lambda row: print(json.dumps(row), flush=True)).run()
    return 0 if complete or options.seconds is None else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
