"""Hypothesis without a stopwatch and without dice: the machine may be busy, and a test that failed once fails again."""

import contextlib
from collections.abc import Iterator

import pytest
from hypothesis import settings

from framegate.proxy.network.channel import Channel
from framegate.proxy.network.memory_pool import PENDING
from tests.fakes.network import NetBench, net_bench, run_of
from tests.fakes.tls import TlsWorld

settings.register_profile("framegate", deadline=None, derandomize=True)
settings.load_profile("framegate")


@pytest.fixture(scope="session")
def tls_world(tmp_path_factory: pytest.TempPathFactory) -> TlsWorld:
    """Certificates, made once for all tests."""
    return TlsWorld.make(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def net() -> Iterator[NetBench]:
    """One selector and what goes with it; afterwards nothing may be left."""
    with net_bench() as bench:
        yield bench


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
