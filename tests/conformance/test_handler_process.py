"""What control and processors rely on, of a handler process: the real one and the fake of control's tests say the same over the same sockets."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from framegate.control.fleet.handler_process import COMMAND
from framegate.proxy.handler.activity import HeartbeatCells, HeartbeatSample, create_cells
from framegate.proxy.handler.runtime import Runtime
from framegate.proxy.relay.handler_wire import (
    ANSWER,
    HELD,
    Facts,
    RecordReader,
    encode_closed,
    encode_open,
    encode_send,
    read_hello,
    read_reply,
    record_end,
    request_head,
)
from framegate.proxy.server.link import HANDLER_PROCESS, Handover, LinkReader, encode, send_handovers
from framegate.proxy.server.messages import HandlerStartMessage
from framegate.proxy.server.protocol import WIRE_VERSION, read_handler_notice, read_handler_ready
from tests.fakes import fleet
from tests.fakes.conformance import Kind
from tests.fakes.handler import FakeHandlerProcess

Row = dict[str, Any]
INTERFACE: Final = object
"""No class: what a process says on its two sockets, and on those to processors."""
KINDS: Final = {"fake": Kind(FakeHandlerProcess, lambda: fleet.HANDLER_COMMAND), "real": Kind(Runtime, lambda: COMMAND)}
FACTS = Facts(id="0-1-1", listener="a", peer="127.0.0.1:1", principal="ANONYMOUS", principal_type="", tls=None, upstream=False)


class Wired:
    """A processor's end of a socket to a handler process."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.sock.settimeout(10)
        self.reader = RecordReader()
        self.records: list[bytes] = []

    def record(self) -> bytes:
        """The next whole record."""
        while not self.records:
            received = self.sock.recv(65536)
            if not received:
                raise EOFError("the handler process closed the socket")
            data = self.reader.take(received)
            position = 0
            while data and (end := record_end(data, position)) >= 0:
                self.records.append(data[position:end])
                position = end
            if data:
                self.reader.keep(data, position)
        return self.records.pop(0)

    def hello(self) -> Any:
        record = self.record()
        return read_hello(record, 0, len(record))

    def open(self, connection: int) -> None:
        self.sock.sendall(encode_open(connection, FACTS))

    def ask(self, connection: int, sequence: int, body: bytes) -> None:
        header = len(body).to_bytes(4, "big")
        self.sock.sendall(request_head(0, len(header), connection, sequence, len(body)) + header + body)

    def reply(self) -> tuple[int, int, int, bytes]:
        """Action, connection, sequence and body of the next reply."""
        record = self.record()
        action, direction, throttle_ms, connection, sequence, began_ns, ended_ns, body = read_reply(record, 0, len(record))
        assert (direction, throttle_ms) == (0, 0)
        if action == HELD:  # a long one waits until it is asked for
            self.sock.sendall(encode_send(connection, direction))
            return self.reply()
        assert 0 < began_ns <= ended_ns <= time.monotonic_ns()
        return action, connection, sequence, record[body:]


class Process:
    """One process and control's ends of what connects it. ``notices`` holds what it told; whatever comes is judged as control judges it."""

    def __init__(self, command: tuple[str, ...]) -> None:
        self.handover, handover = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.commands, commands = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        numbers = {"--slot": 3, "--handover-fd": handover.fileno(), "--command-fd": commands.fileno()}
        numbers["--cells-fd"] = cells = create_cells("test")
        self.cells = HeartbeatCells(cells)
        arguments = [text for name, number in numbers.items() for text in (name, str(number))]
        root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(fleet.__file__))))
        with handover, commands:
            self.process = subprocess.Popen(
                [*command, *arguments],
                pass_fds=tuple(numbers.values())[1:],
                env={**os.environ, "PYTHONPATH": os.environ.get("PYTHONPATH", root)},
            )
        os.close(cells)
        self.commands.settimeout(10)
        self.reader = LinkReader()
        self.notices: list[Row] = []
        self.wired: list[Wired] = []
        self.pair = 0

    def post(self, message: Any) -> None:
        self.commands.sendall(encode(message))

    def start(self, **changes: Any) -> Row:
        """Start it; its first words."""
        message = HandlerStartMessage(type="start", wire=WIRE_VERSION, slot=3, generation=7, node="n", handlers={"a": fleet.ECHO}, path=[])
        self.post({key: value for key, value in {**message, **changes}.items() if value is not None})
        self.until(lambda: self.notices)
        return self.notices.pop(0)

    def beat(self) -> HeartbeatSample:
        """What it tells next of how it stands."""
        before, deadline = self.cells.heartbeat_ns, time.monotonic() + 10
        while self.cells.heartbeat_ns == before:
            assert time.monotonic() < deadline, "its heartbeat stands"
            time.sleep(0.005)
        return self.cells.read()

    def until(self, condition: Callable[[], Any]) -> None:
        while not condition():
            data = self.commands.recv(65536)
            if not data:
                raise EOFError("the handler process closed its link")
            for message in self.reader.feed(data):
                judged = {"ready": read_handler_ready, "failed": dict}.get(message["type"], read_handler_notice)
                self.notices.append(judged(message))  # type: ignore[operator]

    def join(self, peer: str = "0.9") -> Wired:
        """Join it with a processor; ``pair`` is the number from then on."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.pair = time.monotonic_ns()
        with theirs:
            assert send_handovers(self.handover, [Handover(self.pair, int(socket.AF_UNIX), HANDLER_PROCESS, peer)], [theirs.fileno()])
        self.wired.append(Wired(ours))
        return self.wired[-1]

    def told(self, kind: str) -> Row:
        """The next notice of a type."""
        self.until(lambda: any(notice["type"] == kind for notice in self.notices))
        return self.notices.pop(next(index for index, notice in enumerate(self.notices) if notice["type"] == kind))

    def close(self) -> None:
        for wired in self.wired:
            wired.sock.close()
        self.process.kill()
        self.process.wait()
        self.cells.close()
        self.handover.close()
        self.commands.close()


@pytest.fixture(params=KINDS)
def unstarted(request: pytest.FixtureRequest) -> Iterator[Process]:
    made = Process(KINDS[request.param].make())
    yield made
    made.close()


@pytest.fixture
def process(unstarted: Process) -> Process:
    assert unstarted.start()["type"] == "ready"
    return unstarted


def test_it_says_what_its_handlers_are_and_that_it_lives(unstarted: Process) -> None:
    ready = unstarted.start(handlers={"a": fleet.ECHO, "b": fleet.ECHO})
    assert ready["pid"] == unstarted.process.pid
    facts = {"directions": ["request", "response"], "description": "Answers every frame with itself."}
    assert ready["handlers"] == {"a": facts, "b": facts}
    assert unstarted.beat() == (0, 0, 0, 0, 0, 0)
    assert unstarted.beat() == (0, 0, 0, 0, 0, 0)


@pytest.mark.parametrize("wire", [WIRE_VERSION - 1, WIRE_VERSION + 1, None])
def test_a_control_of_another_release_is_refused_in_words_and_the_process_ends(unstarted: Process, wire: int | None) -> None:
    failed = unstarted.start(wire=wire)
    assert failed["type"] == "failed"
    assert f"control speaks {'no version' if wire is None else f'version {wire}'} of the link" in failed["error"]
    assert unstarted.process.wait(10) == 1


def test_a_handler_that_is_not_there_is_said_with_its_listener_and_the_process_ends(unstarted: Process) -> None:
    failed = unstarted.start(handlers={"a": "framegate.proxy.handler.nowhere:echo"})
    assert failed["type"] == "failed"
    assert failed["error"].startswith("listener a, handler framegate.proxy.handler.nowhere:echo: ")
    assert unstarted.process.wait(10) == 1


def test_it_greets_each_processor_and_answers_each_in_order(process: Process) -> None:
    one, other = process.join("0.9"), process.join("1.9")
    for wired in (one, other):
        hello = wired.hello()
        assert (hello["slot"], hello["handlers"]["a"]) == (3, {"directions": ["request", "response"]})
        wired.open(5)
    bodies = [b"", b"x", bytes(100_000)]
    for sequence, body in enumerate(bodies):
        one.ask(5, sequence, body)
    other.ask(5, 0, b"other")
    assert [one.reply() for _ in bodies] == [(ANSWER, 5, sequence, body) for sequence, body in enumerate(bodies)]
    assert other.reply() == (ANSWER, 5, 0, b"other")
    while process.beat().handled != 4:
        pass


def test_a_connection_that_is_closed_is_forgotten_and_its_number_may_come_again(process: Process) -> None:
    wired = process.join()
    wired.hello()
    for body in (b"first", b"second"):
        wired.open(5)
        wired.ask(5, 0, body)
        assert wired.reply() == (ANSWER, 5, 0, body)
        wired.sock.sendall(encode_closed(5))


@pytest.mark.parametrize("when", ["at once", "after hello", "within a record"])
def test_a_processor_that_goes_costs_nobody_else(process: Process, when: str) -> None:
    gone = process.join("0.9")
    if when != "at once":
        gone.hello()
    if when == "within a record":
        gone.open(5)
        gone.sock.sendall(request_head(0, 4, 5, 0, 1000))
    gone.sock.close()
    other = process.join("1.9")
    other.hello()
    other.open(6)
    other.ask(6, 0, b"x")
    assert other.reply() == (ANSWER, 6, 0, b"x")


def test_what_no_processor_sends_ends_that_socket_and_control_hears_which_and_why(process: Process) -> None:
    wired = process.join("0.9")
    wired.hello()
    wired.sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
    parted = process.told("parted")
    assert (parted["pair"], "no record is of kind 47" in parted["error"]) == (process.pair, True)
    with pytest.raises((EOFError, ConnectionError)):
        wired.record()
    again = process.join("0.9")  # as control does then
    again.hello()
    again.open(5)
    again.ask(5, 0, b"x")
    assert again.reply() == (ANSWER, 5, 0, b"x")


def test_a_socket_that_did_not_arrive_is_told_and_another_is_taken(process: Process) -> None:
    process.handover.send(b"%d 1 @handler 0.9" % 77)
    assert process.told("parted") == {"type": "parted", "pair": 77, "error": "its descriptor was lost"}
    process.join("0.9").hello()


def test_a_processor_that_goes_is_not_told(process: Process) -> None:
    """Its own end is what control hears of."""
    process.join("0.9").sock.close()
    process.handover.send(b"%d 1 @handler 0.9" % 78)
    assert process.told("parted")["pair"] == 78


def test_stop_ends_it_and_the_processors_see_the_end(process: Process) -> None:
    wired = process.join()
    wired.hello()
    process.post({"type": "stop"})
    assert process.process.wait(10) == 0
    with pytest.raises(EOFError):
        wired.record()


def test_the_end_of_control_is_its_own(process: Process) -> None:
    process.commands.close()
    assert process.process.wait(10) == 0


def test_sigterm_ends_it_and_what_a_terminal_sends_does_not(process: Process) -> None:
    for number in (signal.SIGINT, signal.SIGHUP):
        process.process.send_signal(number)
    wired = process.join()
    wired.hello()
    wired.open(5)
    wired.ask(5, 0, b"x")
    assert wired.reply() == (ANSWER, 5, 0, b"x")
    process.process.send_signal(signal.SIGTERM)
    assert process.process.wait(10) == 0
