"""Hypothesis without a stopwatch and without dice: the machine may be busy, and a test that failed once fails again."""

import contextlib
from collections.abc import Callable, Iterator

import pytest
from hypothesis import settings

from framegate.proxy.network.authenticator import Waker
from framegate.proxy.network.channel import Channel
from framegate.proxy.network.memory_pool import PENDING, MemoryPool
from framegate.proxy.network.options import TlsSettings
from framegate.proxy.network.timer import NEVER
from framegate.proxy.network.tls import TlsTransport
from framegate.proxy.network.tls_wire import BioPair
from framegate.proxy.network.transport import DONE
from tests.fakes.clock import FakeClock
from tests.fakes.network import NetBench, net_bench, run_of
from tests.fakes.tls import TlsWorld
from tests.fakes.transport import as_socket, memory_sockets
from tests.proxy.conftest import builder

settings.register_profile("framegate", deadline=None, derandomize=True)
settings.load_profile("framegate")


class Alarm(Waker):
    """Counts how often it was asked to wake."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.woken = 0
        self.at = NEVER

    def now_ns(self) -> int:
        return self.clock.now

    def wake(self) -> None:
        self.woken += 1

    def wake_at(self, deadline_ns: int) -> None:
        self.at = deadline_ns


@contextlib.contextmanager
def short_bench(used: int = 1 << 20, largest: int = 0) -> Iterator[NetBench]:
    """A bench of whose pool of 1 MiB so many bytes are used from outside; ``largest``: bytes of the largest request, 0: as it is."""
    with net_bench(pool=1 << 20) as net:
        if largest:
            net.pool.set_largest(largest, 0)
        net.pool.common.charge(PENDING, used)
        try:
            yield net
        finally:
            net.pool.common.release(PENDING, used)


def pass_ms(net: NetBench, ms: float) -> None:
    """Let so much time pass, and poll."""
    net.clock.advance_ms(ms)
    net.poll()


def fill(net: NetBench, channel: Channel) -> None:
    """Send until the socket has no room, with nothing pending."""
    quiet = 0
    while quiet < 5:
        room, _ = channel.room()
        if room == 0:
            quiet += 1
            net.selector.poll(1)
        else:
            quiet = 0
            assert channel.send(run_of(bytes(int(room))))


class Ends:
    """A server's and a client's transport over memory."""

    def __init__(self, server: TlsSettings, client: TlsSettings, *, capacity: int = 1 << 20) -> None:
        self.pool = MemoryPool(1 << 30, FakeClock().now_ns)
        self.server_socket, self.client_socket = memory_sockets(capacity)
        bios = BioPair()
        self.server = TlsTransport(as_socket(self.server_socket), server, self.pool.common, bios)
        self.client = TlsTransport(as_socket(self.client_socket), client, self.pool.common, bios)

    def shake(self, rounds: int = 20) -> None:
        for _ in range(rounds):
            if (self.server.handshake(), self.client.handshake()) == (DONE, DONE):
                return
        raise AssertionError("the handshake does not come to an end")

    def close(self) -> None:
        """Nothing may be booked then."""
        self.server.close()
        self.client.close()
        assert self.pool.used == 0


@pytest.fixture
def make_ends() -> Iterator[Callable[..., Ends]]:
    """Makes ends with the arguments of ``Ends``."""
    with builder(Ends) as build:
        yield build


@pytest.fixture
def ends(make_ends: Callable[..., Ends], tls_world: TlsWorld) -> Ends:
    """A server that asks for no certificate, and a client; their handshake has not begun."""
    return make_ends(tls_world.server_settings(), tls_world.client_settings())


@pytest.fixture
def shaken(ends: Ends) -> Ends:
    """Likewise, with their handshake done."""
    ends.shake()
    return ends
