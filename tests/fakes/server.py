"""A real processor process, as control sees it: its three descriptors, its messages, its connections."""

import os
import socket
import subprocess
import sys
import time
from typing import Any

from framegate.control.fleet.processor import COMMAND
from framegate.proxy.cells import CellLayout, CellReader, create
from framegate.proxy.config.model import ProxyConfig, to_wire
from framegate.proxy.server.link import Handover, LinkReader, encode, send_handovers
from framegate.proxy.server.messages import StartMessage
from framegate.proxy.server.protocol import WIRE_VERSION
from tests.fakes.rows import decode_line

Message = dict[str, Any]


def echo_bytes(sock: socket.socket) -> None:
    """A script of an upstream that sends back what it gets, and ends its stream when the client did."""
    while data := sock.recv(65536):
        sock.sendall(data)


class ServerProcess:
    """A processor with our ends of its sockets. ``command``: of the processor, which is another one for the fake. ``overrides``: words of the start
    message.
    """

    def __init__(self, config: ProxyConfig, *, start: bool = True, command: tuple[str, ...] = COMMAND, **overrides: object) -> None:
        self.config = config
        self.layout = CellLayout.of(config)
        self.cells_fd = create(self.layout)
        self.cells = CellReader(self.cells_fd, self.layout)
        self.notices: list[Message] = []  # what it said that answered nothing, but for rows of connections that opened or are open
        self._answers: dict[int, Message] = {}
        self._ids = 0
        self._clients: list[socket.socket] = []
        self.handover, their_handover = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.command, their_command = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.reader = LinkReader()
        descriptors = (their_handover.fileno(), their_command.fileno(), self.cells_fd)
        numbers = ["--handover-fd", str(descriptors[0]), "--command-fd", str(descriptors[1]), "--cells-fd", str(descriptors[2])]
        with their_handover, their_command:
            self.popen = subprocess.Popen(
                [*command, "--slot", "3", *numbers],
                pass_fds=descriptors,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            )
        if start:
            self.send(self.start_message(**overrides))
            self.ready = self.notice("ready", "failed")

    def start_message(self, **overrides: object) -> Message:
        message = StartMessage(
            type="start",
            wire=WIRE_VERSION,
            config=to_wire(self.config),
            slot=3,
            generation=5,
            boot_id="boot",
            share=self.config.memory_pool.size,
            endpoints={},
        )
        return {**message, **overrides}

    def send(self, *messages: Message) -> None:
        self.command.sendall(b"".join(map(encode, messages)))

    def receive(self, timeout_s: float = 5.0) -> bool:
        """Read what is there; False at the end of the link."""
        self.command.settimeout(timeout_s)
        data = self.command.recv(1 << 16)
        for message in self.reader.feed(data):
            self.take(message)
        return bool(data)

    def take(self, message: Message) -> None:
        if message["type"] == "closed":
            self.notices += [{"type": message["type"], "row": decode_line(line)} for line in message["rows"]]
        elif message.get("id") is None:
            self.notices.append(message)
        else:
            self._answers[message["id"]] = message

    def notice(self, *kinds: str) -> Message:
        while True:
            for index, message in enumerate(self.notices):
                if message["type"] in kinds:
                    return self.notices.pop(index)
            assert self.receive(), f"the link ended without {kinds}"

    def begin(self, kind: str, **fields: object) -> int:
        """Ask, and do not wait; the number of the answer."""
        self._ids += 1
        self.send({"type": kind, "id": self._ids, **fields})
        return self._ids

    def ask(self, kind: str, **fields: object) -> Message:
        return self.answer(self.begin(kind, **fields))

    def encode(self, kind: str, identifier: int, **fields: object) -> bytes:
        return encode({"type": kind, "id": identifier, **fields})

    def answer(self, identifier: int) -> Message:
        while identifier not in self._answers:
            assert self.receive(), f"the link ended without the answer to {identifier}"
        return self._answers.pop(identifier)

    def connect(self, listener: str = "plain", peer: str = "192.0.2.1:999") -> socket.socket:
        """A client's socket whose other end the processor has taken over."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            client = socket.create_connection(server.getsockname())
            accepted, _ = server.accept()
        with accepted:
            assert self.give(accepted, listener, peer)
        client.settimeout(5.0)
        self._clients.append(client)
        return client

    def give(self, accepted: socket.socket, listener: str, peer: str = "192.0.2.1:999") -> bool:
        """Hand a connection over; the caller closes its own end."""
        handover = Handover(time.monotonic_ns(), accepted.family, listener, peer)
        return send_handovers(self.handover, [handover], [accepted.fileno()])

    def wait(self, timeout_s: float = 6.0) -> int:
        return self.popen.wait(timeout_s)

    def close(self) -> None:
        for sock in (*self._clients, self.command, self.handover):
            sock.close()
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait()
        os.close(self.cells_fd)


def receive_all(sock: socket.socket) -> bytes:
    data = b""
    while piece := sock.recv(65536):
        data += piece
    return data
