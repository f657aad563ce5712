"""Worlds and crowds, ended with every test: the pool is whole then, and every gauge zero."""

import contextlib
import functools
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from framegate.proxy.cause import Cause
from framegate.proxy.config.model import TapConfig, TapRule
from framegate.proxy.network.run import Run
from framegate.proxy.network.tls_connection import IS_NATIVE
from framegate.proxy.relay import ending
from framegate.proxy.relay.pair import Pair
from framegate.proxy.tap.rules import TapRules
from framegate.proxy.tap.writer import TapWriter
from tests.fakes.accounts import Accounts
from tests.fakes.crowd import Couple, Crowd
from tests.fakes.handled import Asked, HandledWorld, Process
from tests.fakes.lanes import SecureWorld
from tests.fakes.network import run_of
from tests.fakes.tls import TlsWorld
from tests.fakes.upstream import refusing_port
from tests.fakes.world import SECOND, World, frame, reset
from tests.proxy.conftest import builder

over_tls = pytest.mark.skipif(not IS_NATIVE, reason="the data path is not compiled, or Python's OpenSSL is not a library of its own")


def finish(world: World, *sockets: socket.socket) -> None:
    """Close the peers' sockets, and wait for the row of the pair."""
    for sock in sockets:
        sock.close()
    world.until(lambda: world.rows)


def passes(world: World, source: socket.socket, sink: socket.socket, data: bytes) -> None:
    """Send what arrives at the other side as it is."""
    source.sendall(data)
    assert world.read(sink, len(data)) == data


def assert_nothing_to_read(sock: socket.socket) -> None:
    """Nothing has arrived at this socket, and its stream has not ended."""
    sock.setblocking(False)
    with pytest.raises(BlockingIOError):
        sock.recv(1)


def run_of_frames(*frames: bytes) -> Run:
    """A run of these frames, which came in one read."""
    return run_of(b"".join(frames), len(frames))


def tapping(folder: Path, *rules: TapRule, wakeup_fd: int = -1, **tap: Any) -> dict[str, Any]:
    """The options of a world whose log is in this folder, written in the test's own thread; without rules every frame is tapped."""
    writer = TapWriter(TapConfig(directory=str(folder), **tap), "n", "0", "b", wakeup_fd=wakeup_fd)
    return {"rules": TapRules(rules or (TapRule(name="all"),), writer), "writer": writer}


def close_couple(crowd: Crowd, couple: Couple) -> None:
    """Close both peers, and wait for the row of the pair."""
    couple.client.close()
    couple.upstream.close()
    crowd.settle(lambda: crowd.rows)


def ask_handler(process: Process, client: socket.socket, body: bytes) -> Asked:
    """Send one frame, and have the handler process read it."""
    client.sendall(frame(body))
    return process.one()


def send_all(world: World, sock: socket.socket, data: bytes) -> None:
    """Send more than a socket may take at once, polling meanwhile."""
    sock.setblocking(False)
    left = memoryview(data)
    while left:
        try:
            left = left[sock.send(left) :]
        except BlockingIOError:
            world.selector.poll(1)


def reply_all(process: Process, requests: list[Asked], action: int, body: bytes | None = b"") -> None:
    """Reply to all requests that are under way, with one write; None: with the body of each."""
    process.under_way = 0
    process.send(b"".join(process.record(one, action, one.body if body is None else body) for one in requests))


def begin_drain(world: World | Crowd, seconds: int) -> None:
    """Drain, with so much time."""
    world.relay.pairs.draining = True
    world.drain.start(seconds * SECOND)


def end_by(way: str, world: World, client: socket.socket, pair: Pair) -> None:
    """End a pair: an operator aborts it, we end it in order, a drain of a second begins, or its client resets or closes."""
    if way == "admin":
        ending.abort(pair, Cause.ADMIN, "", "internal")
    elif way == "end":
        ending.end(pair, Cause.DRAINED, "", "internal")
    elif way == "drain":
        world.drain.start(SECOND)
    elif way == "reset":
        reset(client)
    else:
        client.close()


def open_pair(world: World) -> tuple[World, socket.socket, socket.socket, Pair]:
    """A world with one open pair: its client, its upstream's socket, and the pair."""
    return world, *world.pair()


def with_process(world: HandledWorld, **handler: Any) -> tuple[HandledWorld, Process]:
    """A handler process, without a client; the options are those of ``Process.hello``."""
    return world, world.process(**handler)


def with_client(world: HandledWorld, **handler: Any) -> tuple[HandledWorld, Process, socket.socket, Pair]:
    """A handler process and a client of it, without an upstream; the options are those of ``Process.hello``."""
    process = world.process(**handler)
    return world, process, *world.served()


def with_pair(world: HandledWorld, **handler: Any) -> tuple[HandledWorld, Process, socket.socket, socket.socket, Pair]:
    """As ``with_client``, with an upstream."""
    process = world.process(**handler)
    return world, process, *world.pair()


@pytest.fixture(params=["plain", "tls"])
def make_crowd(request: pytest.FixtureRequest, tls_world: TlsWorld) -> Iterator[Callable[..., Crowd]]:
    with builder(functools.partial(Crowd, tls=tls_world if request.param == "tls" else None)) as build:
        yield build


@pytest.fixture
def make_accounts(tmp_path: Path) -> Callable[..., Accounts]:
    """Makes tapped pairs with the arguments of ``Accounts``; their log is in the test's folder."""
    return functools.partial(Accounts, tmp_path)


@pytest.fixture
def refusing() -> Iterator[tuple[str, int]]:
    with refusing_port() as port:
        yield ("127.0.0.1", port)


@pytest.fixture
def silent() -> Iterator[tuple[str, int]]:
    """The address of an upstream that does not answer: its queue is full."""
    with contextlib.ExitStack() as stack:
        backlog = stack.enter_context(socket.socket())
        backlog.bind(("127.0.0.1", 0))
        backlog.listen(0)
        for filler in [stack.enter_context(socket.socket()) for _ in range(4)]:
            filler.setblocking(False)
            filler.connect_ex(backlog.getsockname())
        yield backlog.getsockname()


@pytest.fixture
def make_handled() -> Iterator[Callable[..., HandledWorld]]:
    """Makes worlds whose frames are handled, with the arguments of ``HandledWorld``."""
    with builder(HandledWorld) as build:
        yield build


@pytest.fixture(params=["plain", pytest.param("tls", marks=over_tls)])
def make_either(request: pytest.FixtureRequest, tls_world: TlsWorld) -> Iterator[Callable[..., World]]:
    with builder(World if request.param == "plain" else functools.partial(SecureWorld, tls_world)) as build:
        yield build


@pytest.fixture
def make_plain() -> Iterator[Callable[..., World]]:
    with builder(World) as build:
        yield build


@pytest.fixture(params=[pytest.param("tls", marks=over_tls)])
def make_secure(tls_world: TlsWorld) -> Iterator[Callable[..., SecureWorld]]:
    with builder(functools.partial(SecureWorld, tls_world)) as build:
        yield build
