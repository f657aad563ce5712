"""A handler process that speaks its link and the records, and answers each request with itself, for tests of control. What it is told, and what it
tells, is what the real one is told and tells: both run the suite ``tests/conformance/test_handler_process.py``. ``FAKE_HANDLER`` in the
environment makes it misbehave, in the place behind an ``@`` or in all of them; with a ``+`` before the word from its second life on, which files
tell whose names begin as ``FAKE_HANDLER_LIVES`` says:

fail            cannot start
slow_start      is ready after 300 ms
exits           exits with code 3 when it is told to start
hanging         says that it has been at one frame for an hour
silent          its heartbeat never moves
hungry          takes 64 MiB once it is ready
deaf            does not hear stop, nor the end of its link
raising         says that a handler raised
babbling        tells what nobody knows, and a row of which nobody knows
parent          has a child of its own, which sleeps for a minute
breaking        says of its first socket to a processor, when it has greeted it, that it broke
older, newer    says that it speaks another version of the link
unversioned     says no version of it
"""

import argparse
import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from typing import Any

from framegate.proxy.handler.activity import HeartbeatCells, HeartbeatSample
from framegate.proxy.relay.handler_wire import (
    ANSWER,
    DIRECTIONS,
    REQUEST,
    WIRE,
    HandlerFacts,
    Hello,
    RecordReader,
    WireError,
    encode_hello,
    encode_replies,
    read_requests,
    record_end,
)
from framegate.proxy.server.link import LinkReader, encode, receive_handovers
from framegate.proxy.server.messages import FailedMessage, HandlerReadyMessage, LogNotice, PartedNotice
from framegate.proxy.server.messages import HandlerFacts as FactsOfStart
from framegate.proxy.server.protocol import WIRE_VERSION, event_notice, read_handler_start
from framegate.proxy.server.rows import HandlerRaisedRow, HandoverFailedRow, InternalErrorRow

BEAT_S = 0.02


class FakeHandlerProcess:
    def __init__(self, slot: int, handover: socket.socket, commands: socket.socket, cells: HeartbeatCells) -> None:
        self.slot = slot
        self.cells = cells
        self.handover = handover
        self.commands = commands
        self.mode = ""
        self.reader = LinkReader()
        self.selector = selectors.DefaultSelector()
        self.processors: dict[int, tuple[socket.socket, RecordReader, int]] = {}  # and the number of the pair
        self.handlers: dict[str, str] = {}
        self.started = False
        self.handled = 0
        self.selector.register(commands, selectors.EVENT_READ, self.read_commands)

    def send(self, message: Any) -> None:
        with contextlib.suppress(BrokenPipeError):
            self.commands.sendall(encode(message))

    def run(self) -> None:
        while True:
            for key, _ in self.selector.select(BEAT_S):
                key.data(*([key.fd] if key.fd in self.processors else []))
            if self.started and self.mode != "silent":
                oldest_ns = 3600 * 10**9 if self.mode == "hanging" else 0
                busy = int(self.mode == "hanging")
                self.cells.write(HeartbeatSample(self.handled, 0, self.handled, busy, oldest_ns, 0), time.monotonic_ns())

    def read_commands(self) -> None:
        try:
            data = self.commands.recv(65536)
        except ConnectionError:
            data = b""
        for message in self.reader.feed(data):
            if not self.started:
                self.start(message)
            elif message["type"] == "stop" and self.mode != "deaf":
                sys.exit(0)
        if not data:
            if self.mode != "deaf":
                sys.exit(0)
            self.selector.unregister(self.commands)

    def start(self, first: dict[str, Any]) -> None:
        mode, _, where = os.environ.get("FAKE_HANDLER", "").partition("@")
        lives = os.environ.get("FAKE_HANDLER_LIVES", "")
        again = bool(lives) and os.path.exists(f"{lives}-{self.slot}")
        if lives:
            open(f"{lives}-{self.slot}", "a").close()
        if where in ("", str(self.slot)) and (again or not mode.startswith("+")):
            self.mode = mode.removeprefix("+")
        if self.mode == "exits":
            sys.exit(3)
        try:
            message = read_handler_start(first)
            for listener, name in message["handlers"].items():
                if self.mode == "fail" or not name.startswith("framegate.proxy.handler.echo:"):
                    raise RuntimeError(f"listener {listener}, handler {name}: the fake has no such handler")
        except Exception as error:
            self.send(FailedMessage(type="failed", error=str(error)))
            sys.exit(1)
        if self.mode == "slow_start":
            time.sleep(0.3)
        self.handlers = message["handlers"]
        self.started = True
        facts = FactsOfStart(directions=list(DIRECTIONS), description="Answers every frame with itself.")
        wire = {"older": WIRE_VERSION - 1, "newer": WIRE_VERSION + 1}.get(self.mode, WIRE_VERSION)
        ready: Any = HandlerReadyMessage(type="ready", wire=wire, pid=os.getpid(), handlers=dict.fromkeys(self.handlers, facts))
        if self.mode == "unversioned":
            del ready["wire"]
        self.send(ready)
        self.selector.register(self.handover, selectors.EVENT_READ, self.take)
        self.misbehave()

    def misbehave(self) -> None:
        if self.mode == "hungry":
            self.held = bytearray(os.urandom(1024)) * (64 * 1024)
        elif self.mode == "raising":
            listener, name = next(iter(self.handlers.items()))
            row = HandlerRaisedRow(listener=listener, handler=name, connection="0-1-1", error="ValueError: no", traceback="line 1", suppressed=2)
            self.send(event_notice("handler_raised", row))
        elif self.mode == "babbling":
            self.send({"type": "dance"})
            self.send(LogNotice(type="log", level="info", event="dance", fields={}))
        elif self.mode == "parent":
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
            print(f"child {child.pid}", flush=True)

    def take(self) -> None:
        try:
            received = receive_handovers(self.handover)
        except EOFError:
            self.selector.unregister(self.handover)
            return
        if not received:
            return
        ((handover, descriptor),) = received
        assert handover.listener == "@handler", "no connection is handed over to a handler process"
        if descriptor < 0:
            error = "its descriptor was lost"
            self.send(event_notice("handover_failed", HandoverFailedRow(error=f"the socket to processor {handover.peer}: {error}")))
            self.send(PartedNotice(type="parted", pair=handover.accepted_ns, error=error))
            return
        processor = socket.socket(fileno=descriptor)
        self.processors[descriptor] = processor, RecordReader(), handover.accepted_ns
        facts = HandlerFacts(directions=list(DIRECTIONS))
        with contextlib.suppress(ConnectionError):  # it may be gone already
            processor.sendall(encode_hello(Hello(wire=WIRE, slot=self.slot, handlers=dict.fromkeys(self.handlers, facts))))
        self.selector.register(processor, selectors.EVENT_READ, self.read_records)
        if self.mode == "breaking":
            self.mode = ""
            self.broken(descriptor, handover.accepted_ns, "the fake was told to")

    def read_records(self, descriptor: int) -> None:
        processor, reader, pair = self.processors[descriptor]
        try:
            received = processor.recv(65536)
        except ConnectionError:
            received = b""
        if not received:
            self.end(descriptor)
            return
        try:
            self.handle(processor, reader, reader.take(received))
        except WireError as error:
            self.broken(descriptor, pair, str(error))

    def broken(self, descriptor: int, pair: int, error: str) -> None:
        self.send(event_notice("internal_error", InternalErrorRow(place="socket to a processor", count=1, error=error, at="")))
        self.send(PartedNotice(type="parted", pair=pair, error=error))
        self.end(descriptor)

    def end(self, descriptor: int) -> None:
        processor = self.processors.pop(descriptor)[0]
        self.selector.unregister(processor)
        processor.close()

    def handle(self, processor: socket.socket, reader: RecordReader, data: bytes) -> None:
        position = 0
        while data and (end := record_end(data, position)) >= 0:
            if data[position + 4] == REQUEST:
                self.answer(processor, data, position)
            position = end
        if data:
            reader.keep(data, position)

    def answer(self, processor: socket.socket, data: bytes, position: int) -> None:
        connection, direction, sequence, _, body, _ = read_requests(data, position)[0]
        now_ns = time.monotonic_ns()
        self.handled += 1
        with contextlib.suppress(ConnectionError):
            processor.sendall(encode_replies([(ANSWER, direction, 0, connection, sequence, now_ns, now_ns, body)]))


def main() -> None:
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    parser = argparse.ArgumentParser()
    for name in ("--slot", "--handover-fd", "--command-fd", "--cells-fd"):
        parser.add_argument(name, type=int, required=True)
    arguments = parser.parse_args()
    handover = socket.socket(fileno=arguments.handover_fd)
    handover.setblocking(False)
    FakeHandlerProcess(arguments.slot, handover, socket.socket(fileno=arguments.command_fd), HeartbeatCells(arguments.cells_fd)).run()


if __name__ == "__main__":
    main()
