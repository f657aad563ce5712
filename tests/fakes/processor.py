"""A processor that speaks the link and echoes bytes, for tests of control. ``FAKE_PROCESSOR`` in the environment makes it misbehave:

refuse          refuses every change
silent          answers no prepare
unconfirmed     answers no commit of a change whose max_receive_size is 13
fail            cannot start
stuck           its heartbeat stands
slow_start      is ready after 300 ms
down            leaves an endpoint out
"""

import argparse
import os
import selectors
import socket
import sys
import time
from typing import Any

from proxy.cells import CellLayout, CellWriter, State
from proxy.config.model import from_wire
from proxy.network.connection_id import ConnectionIds
from proxy.server.link import Handover, LinkReader, encode, encode_closed, receive_handover

MODE = os.environ.get("FAKE_PROCESSOR", "")
ZERO = {"request": 0, "response": 0}


class FakeProcessor:
    def __init__(self, slot: int, handover: socket.socket, commands: socket.socket, cells: int) -> None:
        self.slot = slot
        self.handover = handover
        self.commands = commands
        self.cells = cells
        self.reader = LinkReader()
        self.selector = selectors.DefaultSelector()
        self.connections: dict[int, tuple[socket.socket, int, Handover]] = {}
        self.facts: dict[str, Any] = {}
        self.pending: dict[int, dict[str, Any]] = {}
        self.muted: set[int] = set()
        self.draining = False
        self.writer: CellWriter | None = None
        self.ids: ConnectionIds | None = None
        self.selector.register(commands, selectors.EVENT_READ, self.read_commands)

    def send(self, **message: Any) -> None:
        self.commands.sendall(encode(message))

    def run(self) -> None:
        while True:
            for key, _ in self.selector.select(0.05):
                if key.fileobj in (self.commands, self.handover) or key.fd in self.connections:
                    key.data(*(() if key.fileobj in (self.commands, self.handover) else (key.fd,)))
            if self.writer is not None and MODE != "stuck":
                self.writer.beat(time.monotonic_ns())

    def read_commands(self) -> None:
        data = self.commands.recv(65536)
        if not data:
            sys.exit(0)
        for message in self.reader.feed(data):
            getattr(self, f"on_{message['type']}")(message)

    def on_start(self, message: dict[str, Any]) -> None:
        if MODE == "fail":
            self.send(type="failed", error="the fake was told to")
            sys.exit(1)
        if MODE == "slow_start":
            time.sleep(0.3)
        config = from_wire(message["config"])
        self.facts = {
            "max_receive_size": {item.name: item.max_receive_size for item in config.listeners},
            "share": message["share"],
            "endpoints": message["endpoints"],
        }
        self.writer = CellWriter(self.cells, CellLayout.of(config))
        self.writer.start(os.getpid(), message["generation"], time.monotonic_ns())
        self.writer.state(State.SERVING)
        self.ids = ConnectionIds(self.slot, message["generation"])
        self.selector.register(self.handover, selectors.EVENT_READ, self.take)
        self.send(type="ready", pid=os.getpid(), modules={"fake": __file__})

    def on_prepare(self, message: dict[str, Any]) -> None:
        if MODE == "silent":
            return
        if MODE == "refuse":
            self.send(type="refused", id=message["id"], reason="the fake was told to")
            return
        self.pending[message["id"]] = message["change"]
        self.send(type="prepared", id=message["id"])

    def on_commit(self, message: dict[str, Any]) -> None:
        change = self.pending.pop(message["id"])
        if MODE == "unconfirmed" and 13 in change.get("max_receive_size", {}).values():
            return
        for key, value in change.items():
            if isinstance(value, dict):
                self.facts[key] = {**self.facts[key], **value}
            else:
                self.facts[key] = value
        self.send(type="committed", id=message["id"])

    def on_abort(self, message: dict[str, Any]) -> None:
        self.pending.pop(message["id"], None)
        self.send(type="aborted", id=message["id"])

    def rows(self) -> list[dict[str, Any]]:
        return [{"id": number, "listener": item.listener, "peer": item.peer, "facts": self.facts} for _, number, item in self.connections.values()]

    def on_list(self, message: dict[str, Any]) -> None:
        rows = [row for row in self.rows() if row["id"] > message["after"] and message["listener"] in (None, row["listener"])]
        page = rows[: message["limit"]]
        following = page[-1]["id"] if len(rows) > len(page) else None
        self.send(type="result", id=message["id"], rows=page, next=following)

    def on_describe(self, message: dict[str, Any]) -> None:
        row = next((row for row in self.rows() if row["id"] == message["connection"]), None)
        self.send(type="result", id=message["id"], row=row)

    def named(self, message: dict[str, Any]) -> tuple[list[int], list[int]]:
        here = {number: item for _, number, item in self.connections.values()}
        if "listener" in message:
            return [number for number, item in here.items() if item.listener == message["listener"]], []
        return [item for item in message["connections"] if item in here], [item for item in message["connections"] if item not in here]

    def on_mute(self, message: dict[str, Any]) -> None:
        affected, missing = self.named(message)
        self.muted |= set(affected)
        self.send(type="result", id=message["id"], affected=affected, missing=missing)

    def on_unmute(self, message: dict[str, Any]) -> None:
        affected, missing = self.named(message)
        self.muted -= set(affected)
        self.send(type="result", id=message["id"], affected=affected, missing=missing)

    def on_close(self, message: dict[str, Any]) -> None:
        affected, missing = self.named(message)
        for descriptor, (_, number, _) in list(self.connections.items()):
            if number in affected:
                self.close(descriptor, "admin")
        self.send(type="result", id=message["id"], affected=affected, missing=missing)

    def on_upstreams(self, message: dict[str, Any]) -> None:
        rows = [{"upstream": "u", "endpoint": "127.0.0.1:1", "reason": "refused", "detail": f"says {self.slot}"}] if MODE == "down" else []
        self.send(type="result", id=message["id"], rows=rows)

    def on_drain(self, message: dict[str, Any]) -> None:
        self.send(type="result", id=message["id"])
        for descriptor in list(self.connections):
            self.close(descriptor, "drained")
        self.send(type="drained", open=0)

    def on_stop(self, message: dict[str, Any]) -> None:
        sys.exit(0)

    def take(self) -> None:
        try:
            received = receive_handover(self.handover)
        except EOFError:
            sys.exit(0)
        if received is None:
            return
        handover, descriptor = received
        connection = socket.socket(fileno=descriptor)
        connection.setblocking(False)
        assert self.ids is not None
        self.connections[descriptor] = (connection, int(self.ids.next()), handover)
        self.selector.register(connection, selectors.EVENT_READ, self.echo)

    def echo(self, descriptor: int) -> None:
        connection = self.connections[descriptor][0]
        try:
            data = connection.recv(65536)
        except ConnectionError:
            data = b""
        if data == b"die":
            os._exit(9)
        if data:
            connection.send(data)
        else:
            self.close(descriptor, "peer_closed")

    def close(self, descriptor: int, cause: str) -> None:
        connection, number, handover = self.connections.pop(descriptor)
        self.selector.unregister(connection)
        connection.close()
        row = {"id": number, "listener": handover.listener, "peer": handover.peer, "cause": cause, "detail": "", "side": "downstream"}
        row = {**row, "frames": ZERO, "bytes": ZERO, "lost": {"bytes": 0}, "mutes": {}}
        self.commands.sendall(encode({"type": "closed"}, [encode_closed(row, handover.accepted_ns)]))


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--slot", "--handover-fd", "--command-fd", "--cells-fd"):
        parser.add_argument(name, type=int, required=True)
    arguments = parser.parse_args()
    handover = socket.socket(fileno=arguments.handover_fd)
    handover.setblocking(False)
    FakeProcessor(arguments.slot, handover, socket.socket(fileno=arguments.command_fd), arguments.cells_fd).run()


if __name__ == "__main__":
    main()
