"""The demo's load generator: a process that sends paced frames over many connections and checks every answer.

``python -m control.demo.generator '{"port": …, "rate": …, "connections": …, "ca": …}'``. It reads commands from standard input, one JSON
object with ``id`` and ``do`` per line, and writes JSON lines: ``stats`` four times a second, ``reply`` to each command, ``final`` at the end.

With ``host`` and ``seconds`` it sends to another machine for so long, without commands, and exits with 1 if an answer is missing or wrong.

It may begin with a trickle (``first_rate``), which counts like the load but in no histogram that is shown.

Commands: ``load`` (from now on the whole rate), ``open`` a connection of its own (numbered from 1000), ``send`` frames of a size on it,
``begin`` a frame and hold its rest back,
``finish`` it, ``inspect`` a connection, ``shut`` it, ``phase`` (which latency histogram is filled), ``stop``.
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

from control.demo.client import Client
from control.demo.load import Latency, Payloads

__all__ = ["FIRST_SPECIAL", "Generator", "Options", "main"]

FIRST_SPECIAL: Final = 1000
"""The first number of the connections that acts open."""

_TICK_S: Final = 0.005
_STATS_S: Final = 0.25
_CATCH_UP_S: Final = 0.25
_BURSTS: Final = 16
_WINDOW: Final = 256
_FINISH_S: Final = 20.0
_SPECIAL_SEND_BUFFER: Final = 32 * 1024


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """``rate``: frames per second over all connections; ``first_rate``: until ``load``, None for the whole rate at once; ``ca``: PEM file of the
    authority, None for plaintext; ``host``: the name that a certificate must have, too; ``seconds``: so long, and no commands are read; None: until
    told to stop.
    """

    port: int
    rate: int
    connections: int
    first_rate: int | None = None
    ca: str | None = None
    host: str = "localhost"
    seconds: float | None = None


class Generator:
    """One loop over all connections.

    Args:
        options: where to and how much.
        commands: the descriptor that commands come from; its end of file means stop.
        write: called with each JSON line.
    """

    def __init__(self, options: Options, commands: int, write: Callable[[str], None]) -> None:
        self._options = options
        self._commands = commands
        self._write = write
        self._address = (options.host, options.port)
        self._context = None if options.ca is None else ssl.create_default_context(cafile=options.ca)
        self._payloads = Payloads()
        self._phases = {"starting": Latency(), "steady": Latency(), "acts": Latency()}
        self._phase = "steady" if options.first_rate is None else "starting"
        self._rate = options.rate if options.first_rate is None else options.first_rate
        self._clients: dict[int, Client] = {}
        self._specials: dict[int, Client] = {}
        self._rests: dict[int, bytes] = {}
        self._by_descriptor: dict[int, tuple[Client, int]] = {}
        self._epoll = select.epoll()
        self._inbox = b""
        self._stopping = False
        self._next = 0
        self._submitted = 0
        self._since_ns = 0
        self._ended_ns = 0
        self._behind_ns = 0

    def run(self) -> None:
        """Send until told to stop, or for as long as was said, wait for the last answers, and write the final line."""
        for number in range(self._options.connections):
            self._clients[number] = self._open(number, 0)
        if self._options.seconds is None:
            os.set_blocking(self._commands, False)
            self._epoll.register(self._commands, select.EPOLLIN | select.EPOLLHUP)
        self._since_ns = time.monotonic_ns()
        end = math.inf if self._options.seconds is None else time.monotonic() + self._options.seconds
        next_stats = time.monotonic()
        while not self._stopping and time.monotonic() < end:
            self._pace()
            self._poll(_TICK_S)
            if time.monotonic() >= next_stats:
                next_stats = time.monotonic() + _STATS_S
                self._line({"event": "stats", **self._totals()})
        self._ended_ns = time.monotonic_ns()
        self._finish()
        self._line({"event": "final", **self._totals(), **self._statistics()})

    @property
    def complete(self) -> bool:
        """Whether all that was sent was answered, and rightly."""
        totals = self._totals()
        return bool(totals["sent"] == totals["answered"] and not totals["wrong"])

    def _open(self, number: int, send_buffer: int) -> Client:
        client = Client(number, self._address, self._context, self._payloads, self._phases[self._phase], send_buffer)
        self._watch(client)
        return client

    def _watch(self, client: Client) -> None:
        """Keep the epoll set as the client wants it."""
        descriptor = client.fileno()
        if descriptor < 0:
            for gone in [number for number, (other, _) in self._by_descriptor.items() if other is client]:
                del self._by_descriptor[gone]  # closing the socket took it out of the epoll set
            return
        known = self._by_descriptor.get(descriptor)
        if known is None or known[0] is not client:
            self._epoll.register(descriptor, client.wanted)
        elif known[1] != client.wanted:
            self._epoll.modify(descriptor, client.wanted)
        self._by_descriptor[descriptor] = (client, client.wanted)

    def _pace(self) -> None:
        """Submit what is due, in bursts on the connections whose turn it is."""
        elapsed = (time.monotonic_ns() - self._since_ns) / 1e9 - self._behind_ns / 1e9
        due = int(self._rate * elapsed) - self._submitted
        most = max(1, int(self._rate * _CATCH_UP_S))
        if due > most:  # a stall is not made up for by a burst
            self._behind_ns += int((due - most) / self._rate * 1e9)
            due = most
        if due <= 0:
            return
        each = max(1, due // _BURSTS)
        for _ in range(len(self._clients)):
            client = self._clients[self._next]
            self._next = (self._next + 1) % len(self._clients)
            count = min(each, due, _WINDOW - client.in_flight)
            if count > 0 and client.closed is None and client.ready:
                client.latency = self._phases[self._phase]
                client.submit(count)
                self._watch(client)
                self._submitted += count
                due -= count
            if due <= 0:
                break

    def _poll(self, timeout_s: float) -> None:
        for descriptor, events in self._epoll.poll(timeout_s):
            if descriptor == self._commands:
                self._read_commands()
            elif descriptor in self._by_descriptor:
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
            self._line({"event": "reply", "id": command["id"], **self._do(command)})

    def _do(self, command: dict[str, Any]) -> dict[str, Any]:
        """Carry a command out; the answer is what there is to see of its connection."""
        match command["do"]:
            case "stop":
                self._stopping = True
                return {}
            case "load":
                self._phase = "steady"
                self._rate = self._options.rate
                self._since_ns, self._behind_ns, self._submitted = time.monotonic_ns(), 0, 0
                return {}
            case "phase":
                self._phase = command["phase"]
                return {}
            case "open":
                number = FIRST_SPECIAL + len(self._specials)
                self._specials[number] = self._open(number, _SPECIAL_SEND_BUFFER)
            case do:
                number = command["connection"]
                self._act(do, self._specials[number], command)
        return self._inspect(self._specials[number])

    def _act(self, do: str, client: Client, command: dict[str, Any]) -> None:
        client.latency = self._phases["acts"]
        match do:
            case "send":
                client.submit_sized(command["count"], command["size"])
            case "begin":
                self._rests[client.number] = client.submit_sized(1, command["size"], command["part"])
            case "finish":
                client.finish(self._rests.pop(client.number))
            case "shut":
                client.shut()
            case "inspect":
                pass
            case _:
                raise ValueError(f"unknown command {do}")
        self._watch(client)

    def _inspect(self, client: Client) -> dict[str, Any]:
        blocked_ns = time.monotonic_ns() - client.blocked_since_ns if client.blocked_since_ns else 0
        return {
            "connection": client.number,
            "local_port": client.local_port,
            "ready": client.ready,
            "begun": client.begun_count,
            "answered": client.answered_count,
            "sent_bytes": client.sent_bytes,
            "outbox_bytes": client.outbox_bytes,
            "blocked_ms": blocked_ns // 1_000_000,
            "wrong": len(client.wrong),
            "closed": client.closed,
        }

    def _finish(self) -> None:
        """Wait until every frame is answered, then end every connection in order."""
        deadline = time.monotonic() + _FINISH_S
        everyone = [*self._clients.values(), *self._specials.values()]
        while any(client.in_flight and client.closed is None for client in everyone) and time.monotonic() < deadline:
            self._poll(_TICK_S)
        for client in everyone:
            client.shut()
            self._watch(client)
        while any(client.closed is None for client in everyone) and time.monotonic() < deadline:
            self._poll(_TICK_S)
        for client in everyone:
            client.close()

    def _totals(self) -> dict[str, Any]:
        everyone = [*self._clients.values(), *self._specials.values()]
        return {
            "connections": sum(1 for client in everyone if client.ready and client.closed is None),
            "sent": sum(client.begun_count for client in everyone),
            "answered": sum(client.answered_count for client in everyone),
            "sent_bytes": sum(client.sent_bytes for client in everyone),
            "answered_bytes": sum(client.answered_bytes for client in everyone),
            "wrong": sum(len(client.wrong) for client in everyone),
            "lost": sum(1 for client in self._clients.values() if client.closed not in (None, "client")),
        }

    def _statistics(self) -> dict[str, Any]:
        """What only the end knows."""
        everyone = [*self._clients.values(), *self._specials.values()]
        return {
            "paced": self._submitted,
            "paced_ms": (self._ended_ns - self._since_ns) // 1_000_000,
            "held_back_ms": self._behind_ns // 1_000_000,
            "latency": {
                name: {"frames": latency.total(), "p50_us": latency.quantile_us(0.5), "p99_us": latency.quantile_us(0.99)}
                for name, latency in self._phases.items()
            },
            "unanswered": {str(client.number): client.in_flight for client in everyone if client.in_flight},
            "endings": {str(client.number): client.closed for client in everyone if client.closed != "client"},
            "wrong_examples": [text for client in everyone for text in client.wrong][:5],
        }

    def _line(self, row: dict[str, Any]) -> None:
        self._write(json.dumps(row))


def main(arguments: list[str]) -> int:
    """Run with the options of one JSON argument."""
    options = Options(**json.loads(arguments[0]))
    generator = Generator(options, sys.stdin.fileno(), lambda line: print(line, flush=True))
    generator.run()
    return 0 if generator.complete or options.seconds is None else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
