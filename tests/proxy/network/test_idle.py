"""Idle connections end in batches: however many at once, no poll is longer for it, and they are gone after few polls."""

import resource
import socket
from collections.abc import Iterator

import pytest

from framegate.proxy.cause import Cause
from framegate.proxy.network import mute
from framegate.proxy.network.run import Run
from framegate.proxy.network.selector import BUDGET_NS, CLOCK_EACH, Selector
from tests.fakes.cases import each_of
from tests.fakes.clock import SECOND, FakeClock
from tests.fakes.network import NetBench, frame, net_bench, tcp_pair
from tests.fakes.tls import TlsWorld

IDLE_NS = 60 * SECOND
MANY = 2000
COST_NS = 20_000  # of one expiry, and of telling one


class TickingClock(FakeClock):
    """Moves with each reading once ``step_ns`` is set: it is read once for ``CLOCK_EACH`` things that are done."""

    def __init__(self) -> None:
        super().__init__()
        self.step_ns = 0

    def now_ns(self) -> int:
        self.now += self.step_ns
        return self.now


@pytest.fixture
def descriptors() -> Iterator[int]:
    """How many connections there may be: as many descriptors as this user may have, but for some."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    yield min(MANY, before[1] - 1000) if before[1] > 0 else MANY
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_thousands_that_expire_at_once_keep_nobody_waiting(net: NetBench, descriptors: int) -> None:
    """Frames of another connection come back with every poll; no poll takes longer than its budgets; and it takes a fiftieth of as many polls."""
    clock = TickingClock()
    net.clock = clock
    net.selector.close()
    net.selector = Selector(clock, net.pool)
    options = net.options(idle_ns=IDLE_NS)
    for number in range(descriptors):  # nothing ever comes from a datagram socket without an address; a pair would need two descriptors each
        net.register(socket.socket(socket.AF_INET, socket.SOCK_DGRAM), number + 2, options)
    busy, peer = net.pair()
    net.poll_until(lambda: net.selector.channel_count == descriptors + 1 and net.listener.words().count("ready") == descriptors + 1)
    clock.now += IDLE_NS + SECOND
    clock.step_ns = COST_NS * CLOCK_EACH
    polls = 0
    while net.selector.channel_count > 1:
        peer.send(frame(9))
        before = clock.now
        net.poll()
        polls += 1
        assert net.listener.frames[busy] == polls
        assert clock.now - before <= 2 * BUDGET_NS + 12 * clock.step_ns, "one budget for timers, one for who is told"
    clock.step_ns = 0
    assert polls <= descriptors // 50
    ends = [channel for word, channel in net.listener.told if word == "closed"]
    assert len(ends) == descriptors
    assert {channel.close_cause for channel in ends} == {Cause.IDLE}
    assert busy.is_open


@each_of("late_ms", [0, 1, 60_000], fresh={"net": net_bench})
def test_bytes_that_lie_there_when_the_time_is_over_keep_a_connection(net: NetBench, late_ms: int) -> None:
    """What came in time counts, though it is looked at later; then the time begins again."""
    channel, peer = net.ready_pair(net.options(idle_ns=IDLE_NS))
    for _ in range(5):
        peer.send(frame(3))
        net.clock.advance_ms(60_000 + late_ms)
        net.poll()
        assert channel.is_open
    net.clock.advance_ms(59_999)
    net.poll()
    assert (channel.is_open, channel.frames_received) == (True, 5)
    net.clock.advance_ms(1)
    net.poll()
    assert channel.close_cause is Cause.IDLE


def test_bytes_that_tls_holds_keep_a_connection_until_they_are_read(net: NetBench, tls_world: TlsWorld) -> None:
    """The socket is empty, and frames lie decrypted, or to be decrypted, when the time is over: they are read first. Muted, they keep nothing."""
    ours, theirs = tcp_pair()
    server = net.register(ours, 1, net.options(tls=tls_world.server_settings(), idle_ns=IDLE_NS))
    client = net.register(theirs, 2, net.options(side="upstream", tls=tls_world.client_settings()))
    net.poll_until(lambda: server.is_open and client.is_open)
    client.send(Run(None, 0, frame(50)[:30], 0, 30, 0, 0))
    net.poll_until(lambda: server.staged == 30)
    server.mute(mute.ADMIN)
    rest = frame(50)[30:] + frame(7) * 3
    client.send(Run(None, 0, rest, 0, len(rest), 4, 0))
    net.poll_until(lambda: server.frames_received == 1)
    net.clock.advance_ms(59_999)
    net.poll()
    assert server.is_open
    server.unmute(mute.ADMIN)
    net.clock.advance_ms(1)
    net.poll()
    assert (server.is_open, server.frames_received) == (True, 4)
    net.clock.advance_ms(60_000)
    net.poll()
    assert server.close_cause is Cause.IDLE


def test_a_connection_that_never_had_a_byte_expires(net: NetBench) -> None:
    """Time runs from when it is ready, not from its first byte."""
    channel, _ = net.ready_pair(net.options(idle_ns=IDLE_NS))
    for _ in range(60):  # in small steps: a jump could hide who begins the time anew
        net.clock.advance_ms(999)
        net.poll()
    assert channel.is_open
    net.clock.advance_ms(60)
    net.poll()
    assert channel.close_cause is Cause.IDLE


def test_a_muted_connection_with_bytes_to_read_expires_whole(net: NetBench) -> None:
    """Bytes that nobody reads are no life; nothing of it lasts beyond the poll, though its peer has gone before."""
    channel, peer = net.ready_pair(net.options(idle_ns=IDLE_NS))
    channel.mute(mute.ADMIN)
    for _ in range(3):
        peer.send(frame(100))
        net.clock.advance_ms(15_000)
        net.poll()
        assert channel.is_open
    peer.close()
    net.clock.advance_ms(15_000)
    net.poll()
    assert (channel.close_cause, net.selector.channel_count, channel.frames_received) == (Cause.IDLE, 0, 0)
