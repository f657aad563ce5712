"""Worlds and crowds, ended with every test: the pool is whole then, and every gauge zero."""

import contextlib
import socket
from collections.abc import Callable, Iterator

import pytest

from tests.fakes.crowd import Crowd
from tests.fakes.handled import HandledWorld
from tests.fakes.tls import TlsWorld
from tests.fakes.upstream import refusing_port
from tests.fakes.world import World


@pytest.fixture(scope="session")
def tls_world(tmp_path_factory: pytest.TempPathFactory) -> TlsWorld:
    """Certificates, made once for all tests."""
    return TlsWorld.make(tmp_path_factory.mktemp("tls"))


@pytest.fixture(params=["plain", "tls"])
def make_crowd(request: pytest.FixtureRequest, tls_world: TlsWorld) -> Iterator[Callable[..., Crowd]]:
    """Makes crowds with the options of ``Crowd``."""
    crowds: list[Crowd] = []

    def build(protocol: str = "framed", **options: object) -> Crowd:
        crowds.append(Crowd(protocol, tls=tls_world if request.param == "tls" else None, **options))
        return crowds[-1]

    yield build
    for crowd in crowds:
        crowd.close()


@pytest.fixture
def make() -> Iterator[Callable[..., World]]:
    """Makes worlds with the arguments of ``World``."""
    worlds: list[World] = []

    def build(*args: object, **options: object) -> World:
        worlds.append(World(*args, **options))
        return worlds[-1]

    yield build
    for world in worlds:
        world.close()


@pytest.fixture
def world(make: Callable[..., World]) -> World:
    """One of them, as it is without arguments."""
    return make()


@pytest.fixture
def refusing() -> Iterator[tuple[str, int]]:
    """An address that refuses."""
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
    worlds: list[HandledWorld] = []

    def build(*args: object, **options: object) -> HandledWorld:
        worlds.append(HandledWorld(*args, **options))
        return worlds[-1]

    yield build
    for world in worlds:
        world.close()
