"""A real handler process, and the two who speak with it: control, and processors; blocking, with a bound of seconds on every wait."""

import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from framegate.control.fleet.handler_process import COMMAND
from framegate.proxy.handler.activity import HeartbeatCells, HeartbeatSample, create_cells
from framegate.proxy.relay import handler_wire as wire
from framegate.proxy.relay.handler_wire import RecordReader, record_end
from framegate.proxy.server.link import Handover, LinkReader, encode, send_handovers
from framegate.proxy.server.messages import HandlerStartMessage
from framegate.proxy.server.protocol import WIRE_VERSION, read_handler_notice, read_handler_ready
from tests.fakes.waiting import until

PATIENCE = 20.0
HELD = "held"


class Reply(NamedTuple):
    action: str
    direction: str
    throttle_ms: int
    connection: int
    sequence: int
    body: bytes
    began_ns: int
    ended_ns: int


def facts(listener: str = "in", upstream: bool = False, name: str = "0-1-7") -> wire.Facts:
    return wire.Facts(id=name, listener=listener, peer="127.0.0.1:5", principal="ANONYMOUS", principal_type="User", tls=None, upstream=upstream)


def request(connection: int, sequence: int, body: bytes, direction: int = 0, header: bytes | None = None) -> bytes:
    """The record of a frame, framed as int32 unless a header says otherwise."""
    before = len(body).to_bytes(4, "big") if header is None else header
    return wire.request_head(direction, len(before), connection, sequence, len(body)) + before + body


def whole_records(reader: RecordReader, received: bytes) -> list[bytes]:
    """The records that are whole with what came now; the reader keeps the rest."""
    found: list[bytes] = []
    data = reader.take(received)
    position = 0
    while data and (end := record_end(data, position)) >= 0:
        found.append(data[position:end])
        position = end
    if data:
        reader.keep(data, position)
    return found


def reply_of(record: bytes) -> Reply:
    """What a record says. Its action is ``held`` when its body waits until it is asked for."""
    action, direction, throttle_ms, connection, sequence, began_ns, ended_ns, body = wire.read_reply(record, 0, len(record))
    name = HELD if action == wire.HELD else wire.ACTIONS[action]
    return Reply(name, wire.DIRECTIONS[direction], throttle_ms, connection, sequence, record[body:], began_ns, ended_ns)


class Records:
    """The processor's end of a socket to a handler process."""

    def __init__(self, sock: socket.socket, pair: int) -> None:
        self.pair = pair
        self.socket = sock
        self.socket.settimeout(PATIENCE)
        self._reader = RecordReader()
        self._found: list[bytes] = []

    def send(self, *records: bytes) -> None:
        self.socket.sendall(b"".join(records))

    def open(self, connection: int, listener: str = "in", upstream: bool = False) -> None:
        self.send(wire.encode_open(connection, facts(listener, upstream, f"0-1-{connection}")))

    def request(self, connection: int, sequence: int, body: bytes, direction: int = 0) -> None:
        self.send(request(connection, sequence, body, direction))

    def record(self) -> bytes:
        """The next one; EOFError: there is none to come."""
        while not self._found:
            data = self.socket.recv(65536)
            if not data:
                raise EOFError
            self._found += whole_records(self._reader, data)
        return self._found.pop(0)

    def hello(self) -> wire.Hello:
        data = self.record()
        assert data[4] == wire.HELLO
        return wire.read_hello(data, 0, len(data))

    def reply(self) -> Reply:
        """The next one; one that waits is asked for."""
        data = self.record()
        assert data[4] == wire.REPLY
        found = reply_of(data)
        if found.action == HELD:
            self.send(wire.encode_send(found.connection, wire.DIRECTIONS.index(found.direction)))
            return self.reply()
        return found

    def replies(self, count: int) -> list[Reply]:
        return [self.reply() for _ in range(count)]

    def ended(self) -> bool:
        """Whether the handler process closed it; replies before that are passed over."""
        try:
            while True:
                self.record()
        except (EOFError, ConnectionError):
            return True


class HandlerProcess:
    """One process, started as control starts it; to be used with ``with``. Whatever it says is judged as control judges it."""

    def __init__(self, command_line: tuple[str, ...] = COMMAND, *, stdout: int | None = None, stderr: int | None = None) -> None:
        self.command, command = socket.socketpair()
        self.handover, handover = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        arguments = ["--slot", "3", "--handover-fd", str(handover.fileno()), "--command-fd", str(command.fileno())]
        cells = create_cells("test")
        self._cells = HeartbeatCells(cells)
        with command, handover:
            self.process = subprocess.Popen(
                [*command_line, *arguments, "--cells-fd", str(cells)],
                pass_fds=(handover.fileno(), command.fileno(), cells),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
            )
        os.close(cells)
        self.command.settimeout(PATIENCE)
        self._reader = LinkReader()
        self._messages: list[dict[str, Any]] = []
        self._records: list[Records] = []

    def __enter__(self) -> "HandlerProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for sock in (self.command, self.handover, *(records.socket for records in self._records)):
            sock.close()
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()

    def start(self, handlers: dict[str, str], path: Sequence[Path] = (), **changes: Any) -> None:
        """Say the first words; a change to None leaves a word out."""
        folders = [str(folder) for folder in path]
        message = HandlerStartMessage(type="start", wire=WIRE_VERSION, slot=3, generation=1, node="test", handlers=handlers, path=folders)
        self.tell({key: value for key, value in {**message, **changes}.items() if value is not None})

    def serve(self, handlers: dict[str, str], path: Sequence[Path] = ()) -> dict[str, Any]:
        """Start, and wait until it is ready; what it says then."""
        self.start(handlers, path)
        message = self.message()
        assert message["type"] == "ready", message
        return message

    def tell(self, message: Mapping[str, Any]) -> None:
        self.command.sendall(encode(message))

    def message(self, *kinds: str) -> dict[str, Any]:
        """The next message, of those kinds, or any; EOFError: there is none to come."""
        for message in self._all():
            if not kinds or message["type"] in kinds:
                return message
        raise EOFError

    def beat(self) -> HeartbeatSample:
        before = self._cells.heartbeat_ns
        until(lambda: self._cells.heartbeat_ns != before, "its heartbeat stands", PATIENCE)
        return self._cells.read()

    def row(self, event: str) -> dict[str, Any]:
        while (message := self.message("log"))["event"] != event:
            pass
        fields: dict[str, Any] = message["fields"]
        return fields

    def processor(self, name: str = "0.1", *, listener: str = "@handler") -> Records:
        """Hand over a socket to a processor; its other end."""
        ours, theirs = socket.socketpair()
        pair = time.monotonic_ns()
        with theirs:
            assert send_handovers(self.handover, [Handover(pair, int(socket.AF_UNIX), listener, name)], [theirs.fileno()])
        self._records.append(Records(ours, pair))
        return self._records[-1]

    def wait(self) -> int:
        return self.process.wait(PATIENCE)

    def _all(self) -> Iterator[dict[str, Any]]:
        while True:
            while self._messages:
                yield self._messages.pop(0)
            data = self.command.recv(65536)
            if not data:
                return
            for message in self._reader.feed(data):
                judge: Any = {"ready": read_handler_ready, "failed": dict}.get(message["type"], read_handler_notice)
                judge(message)
                self._messages.append(message)
