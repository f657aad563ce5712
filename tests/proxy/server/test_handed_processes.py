"""A real processor with a listener that has a handler, and a handler process whose every word is the test's."""

import contextlib
import dataclasses
import socket
import struct
import time

import pytest

from framegate.proxy.config.model import MIB, DrainConfig, HandlersConfig, ListenerConfig, MemoryPoolConfig, ProxyConfig, UpstreamConfig
from framegate.proxy.relay import handler_wire as wire
from tests.fakes.server import ServerProcess, receive_all
from tests.fakes.upstream import frame, read_exactly
from tests.fakes.waiting import until

pytestmark = pytest.mark.slow

CONFIG = ProxyConfig(
    node="n",
    listeners=(ListenerConfig(name="plain", address="0.0.0.0:0", handler="nobody:looks", max_receive_size=MIB),),
    memory_pool=MemoryPoolConfig(size=16 * MIB),
    handlers=HandlersConfig(timeout_ms=500),
    drain=DrainConfig(timeout_ms=3000, quiet_ms=100),
)
HELLO = wire.encode_hello({"wire": wire.WIRE, "slot": 0, "handlers": {"plain": {"directions": ["request"]}}})


def hand(process: ServerProcess, name: str) -> socket.socket:
    """Our end of a handler process that the processor was given."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with theirs:
        assert process.give(theirs, "@handler", name)
    ours.settimeout(5)
    return ours


def records(sock: socket.socket, count: int) -> list[bytes]:
    found = []
    for _ in range(count):
        head = read_exactly(sock, 4)
        found.append(head + read_exactly(sock, struct.unpack(">i", head)[0]))
    return found


def test_a_connection_is_answered_by_a_handler_process() -> None:
    with contextlib.closing(ServerProcess(CONFIG)) as process, hand(process, "0.1") as handler:
        handler.sendall(HELLO)
        client = process.connect(peer="192.0.2.7:77")
        client.sendall(frame(b"question"))
        opened, asked = records(handler, 2)
        number, facts = wire.read_open(opened, 0, len(opened))
        assert (facts["listener"], facts["peer"], facts["upstream"]) == ("plain", "192.0.2.7:77", False)
        assert wire.read_requests(asked, 0) == [(number, 0, 0, b"\0\0\0\x08", b"question", len(asked))]
        now_ns = time.monotonic_ns()
        handler.sendall(wire.encode_replies([(wire.ANSWER, 0, 0, number, 0, now_ns, now_ns, b"answer")]))
        assert read_exactly(client, 10) == frame(b"answer")
        row = process.ask("list")["rows"][0]
        assert (row["upstream"], row["endpoint"], row["frames"], row["muted"], row["state"]) == ("", "", {"request": 1, "response": 1}, [], "open")
        client.close()
        closed = process.notice("closed")["row"]
        assert (closed["cause"], closed["upstream"], closed["lost"]["bytes"]) == ("peer_closed", "", 0)
        assert wire.read_closed(records(handler, 1)[0], 0) == number
        until(lambda: process.cells.cell("framegate.handler.requests", "plain", "answer") == 1)
        assert process.cells.cell("framegate.handler.queue.size", "plain") == 0


def test_a_drain_and_the_end_leave_the_handler_process_with_the_end_of_its_socket() -> None:
    with contextlib.closing(ServerProcess(CONFIG)) as process, hand(process, "0.1") as handler:
        handler.sendall(HELLO)
        client = process.connect()
        client.sendall(frame(b"question"))
        records(handler, 2)
        process.send("stop")
        receive_all(client)
        client.close()
        assert process.wait() == 0
        assert wire.read_closed(records(handler, 1)[0], 0) > 0
        assert handler.recv(1) == b""


def test_a_processor_without_handlers_takes_no_such_socket() -> None:
    config = dataclasses.replace(
        CONFIG,
        listeners=(ListenerConfig(name="plain", address="0.0.0.0:0", upstream="u", max_receive_size=MIB),),
        upstreams=(UpstreamConfig(name="u", endpoints=("127.0.0.1:1",)),),
    )
    with contextlib.closing(ServerProcess(config)) as process, hand(process, "3.4") as handler:
        assert process.notice("log")["fields"]["error"] == "handler process 3.4: no listener has a handler"
        assert handler.recv(1) == b""
        assert not [name for name in process.ready["modules"] if name.startswith("framegate.proxy.handler")], "not a module more"
