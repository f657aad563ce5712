"""framegate.proxy.network.watchdog: the same item, for a whole window, too slow. More of whole channels is watched in test_channel."""

import contextlib
import resource
import select
import socket
from collections.abc import Callable, Iterator

import pytest

from framegate.proxy.cause import Cause
from framegate.proxy.network import mute
from framegate.proxy.network.channel import Channel
from framegate.proxy.network.options import ChannelOptions
from framegate.proxy.network.receive import ReceiveLimit
from framegate.proxy.network.selector import BUDGET_NS, CLOCK_EACH, Selector
from framegate.proxy.network.stats import SideStats
from framegate.proxy.network.timer import spread
from framegate.proxy.network.watchdog import CHECKS, NS_PER_S, window_of
from tests.fakes.cases import each_of
from tests.fakes.clock import SECOND, FakeClock
from tests.fakes.network import NetBench, frame, net_bench, run_of
from tests.fakes.tls import TlsWorld, hold_frames, tls_pair
from tests.proxy.network.conftest import fill, pass_ms, short_bench

OPTIONS = ChannelOptions(side="downstream", limit=ReceiveLimit(-1), stats=SideStats(), stall_ns=2 * NS_PER_S, min_rate=10)


def test_a_window_lasts_for_one_item_and_begins_again_when_enough_has_moved() -> None:
    window = window_of(3, 0, 5, 100, None)
    assert window is not None
    assert [window_of(item, mutes, 9, 9, window) is window for item, mutes in ((3, 0), (3, 1), (4, 0))] == [True, False, False]
    assert window_of(-1, 0, 0, 0, None) is window_of(-1, 0, 0, 0, window) is None
    assert not window.moves_too_little(5 + 2 * NS_PER_S - 1, 100, OPTIONS)
    assert window.moves_too_little(5 + 2 * NS_PER_S, 119, OPTIONS)
    assert not window.moves_too_little(5 + 2 * NS_PER_S, 120, OPTIONS)
    assert (window.since_ns, window.moved) == (5 + 2 * NS_PER_S, 120)


def test_the_sink_is_told_when_a_channel_is_older_than_allowed_and_no_sooner() -> None:
    """A tenth sooner or later, by its id; and again at later checks, as long as it is not closed."""
    ages = []
    with net_bench() as net:
        for number in range(1, 40):
            ours, peer = socket.socketpair()
            net.keep(peer)
            options = net.options(stall_ns=60 * SECOND, min_rate=1)
            options.max_age_ns = 100 * SECOND
            channel = net.register(ours, number, options)
            net.poll(2)
            age_ns = 90 * SECOND + int(spread(number, 20 * SECOND))
            for passed_ns, times in ((age_ns - 1, 0), (1, 1), (15 * SECOND, 2)):
                net.clock.advance_ms(passed_ns / 1_000_000)
                net.poll(2)
                assert net.listener.words(channel).count("aged") == times, (number, passed_ns)
            channel.close(Cause.ADMIN)
            net.poll()
            ages.append(age_ns / SECOND)
    assert 90 <= min(ages) < 93
    assert 107 < max(ages) <= 110


# While memory is short, what waits lies in the kernel.

STALL_S = 4
MIN_RATE = 1000
USED = (1 << 20) - 1000


def watched(net: NetBench) -> tuple[Channel, socket.socket]:
    return net.ready_pair(net.options(stall_ns=STALL_S * NS_PER_S, min_rate=MIN_RATE), tcp=True)


def seconds(net: NetBench, count: float) -> None:
    """Look by look of the watchdog."""
    for _ in range(int(count * CHECKS / STALL_S)):
        net.clock.advance_ms(STALL_S * 1000 / CHECKS)
        net.poll(2)


@each_of("wanted", [True, False])
def test_a_peer_that_does_not_read_what_others_have_for_it_is_stalled(wanted: bool) -> None:
    """Nothing is pending here: what is for it waits in the kernel of who sent it."""
    with short_bench(USED) as net:
        channel, _ = watched(net)
        fill(net, channel)
        if wanted:
            channel.want_room()
        assert (channel.pending_send, channel.write_half.is_sending) == (0, wanted)
        seconds(net, STALL_S)
        assert channel.is_open
        seconds(net, STALL_S)
        assert channel.close_cause is (Cause.SEND_STALLED if wanted else None)


def test_what_the_peers_kernel_takes_is_what_moves() -> None:
    """The window opens in steps, and each time the socket has no room again before anybody is told."""
    with short_bench(USED) as net:
        channel, peer = watched(net)
        fill(net, channel)
        channel.want_room()
        for _ in range(3 * CHECKS):
            before = channel.write_half.wire_taken
            while channel.write_half.wire_taken < before + MIN_RATE * STALL_S // CHECKS:
                peer.recv(65_536)
                select.select([], [], [], 0.001)
            fill(net, channel)
            channel.want_room()
            assert channel.write_half.is_sending
            seconds(net, STALL_S / CHECKS)
        assert channel.is_open
        seconds(net, 2 * STALL_S)
        assert channel.close_cause is Cause.SEND_STALLED


def test_room_that_is_there_again_is_no_stall() -> None:
    with short_bench(USED) as net:
        channel, peer = watched(net)
        fill(net, channel)
        channel.want_room()
        seconds(net, STALL_S / 2)
        peer.setblocking(False)

        def told() -> bool:
            with contextlib.suppress(BlockingIOError):
                peer.recv(1 << 20)
            return "sent" in net.listener.words(channel)

        net.poll_until(told)
        assert not channel.write_half.is_sending
        seconds(net, 5 * STALL_S)
        assert channel.is_open


@each_of(("each", "stalled"), [(MIN_RATE * STALL_S // CHECKS, False), (MIN_RATE * STALL_S // CHECKS - 1, True)])
def test_a_small_frame_that_comes_too_slowly_is_stalled_though_it_lies_in_the_kernel(each: int, stalled: bool) -> None:
    with short_bench(USED) as net:
        channel, peer = watched(net)
        sent = 1000
        peer.sendall(frame(60_000)[:sent])
        net.poll_until(lambda: channel.read_half.bytes_arrived == sent)
        seconds(net, STALL_S / CHECKS)
        for _ in range(2 * CHECKS):
            if not channel.is_open:
                break
            peer.sendall(b"x" * each)
            sent += each
            net.poll_until(lambda now=sent: channel.read_half.bytes_arrived == now)
            seconds(net, STALL_S / CHECKS)
        assert channel.is_open is not stalled
        assert channel.close_cause is (Cause.RECEIVE_STALLED if stalled else None)
        assert channel.bytes_received == 0


def test_a_shut_channel_that_wants_room_does_not_spin() -> None:
    """The peer reads again: the socket is writable, and nobody is to be told."""
    with short_bench(USED) as net:
        channel, peer = net.ready_pair(tcp=True)
        fill(net, channel)
        channel.want_room()
        channel.shut_write()
        peer.setblocking(False)
        for _ in range(2000):
            with contextlib.suppress(BlockingIOError):
                peer.recv(1 << 20)
            if channel.room()[1] or "write_ended" in net.listener.words(channel):
                break
            net.selector.poll(1)
        with select.epoll() as epoll:
            epoll.register(int(channel.fd), max(int(channel._interest), 0))
            assert [events for _ in range(20) for _, events in epoll.poll(0.001)] == []
        assert net.listener.words(channel).count("sent") == 0


def test_room_that_is_too_little_is_looked_for_less_and_less_often() -> None:
    """The socket is writable, so nobody is told when it has more; and the peer does not read."""
    with short_bench(USED) as net:
        channel, peer = net.ready_pair(tcp=True)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        while channel.room()[1]:
            channel.send(run_of(bytes(10_000)))
        assert channel.room()[0] > 0
        looks = 0
        channel.want_room()
        for _ in range(100):
            net.clock.advance_ms(10)
            before = net.selector._timers._sequence
            net.poll()
            looks += net.selector._timers._sequence - before
        assert looks <= 16
        assert net.listener.words(channel).count("sent") == 0
        peer.recv(1 << 20)
        net.poll_until(lambda: net.clock.advance_ms(1) or "sent" in net.listener.words(channel))


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


def test_thousands_that_expire_at_once_do_not_delay_others(net: NetBench, descriptors: int) -> None:
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
        pass_ms(net, 60_000 + late_ms)
        assert channel.is_open
    pass_ms(net, 59_999)
    assert (channel.is_open, channel.frames_received) == (True, 5)
    pass_ms(net, 1)
    assert channel.close_cause is Cause.IDLE


def test_bytes_that_tls_holds_keep_a_connection_until_they_are_read(net: NetBench, tls_world: TlsWorld) -> None:
    """The socket is empty, and frames are decrypted when the time is over: they are read first. While muted, they keep nothing."""
    server, client = tls_pair(net, tls_world, idle_ns=IDLE_NS)
    hold_frames(net, server, client)
    pass_ms(net, 59_999)
    assert server.is_open
    server.unmute(mute.ADMIN)
    pass_ms(net, 1)
    assert (server.is_open, server.frames_received) == (True, 4)
    pass_ms(net, 60_000)
    assert server.close_cause is Cause.IDLE


def test_a_connection_that_never_had_a_byte_expires(net: NetBench) -> None:
    """Time runs from when it is ready, not from its first byte."""
    channel, _ = net.ready_pair(net.options(idle_ns=IDLE_NS))
    for _ in range(60):  # in small steps: a jump could hide who begins the time anew
        pass_ms(net, 999)
    assert channel.is_open
    pass_ms(net, 60)
    assert channel.close_cause is Cause.IDLE


def test_a_muted_connection_with_bytes_to_read_expires_whole(net: NetBench) -> None:
    """Bytes that nobody reads are no life; nothing of it lasts beyond the poll, though its peer has gone before."""
    channel, peer = net.ready_pair(net.options(idle_ns=IDLE_NS))
    channel.mute(mute.ADMIN)
    for _ in range(3):
        peer.send(frame(100))
        pass_ms(net, 15_000)
        assert channel.is_open
    peer.close()
    pass_ms(net, 15_000)
    assert (channel.close_cause, net.selector.channel_count, channel.frames_received) == (Cause.IDLE, 0, 0)


def seconds_until_closed(net: NetBench, channel: Channel, each: Callable[[], object] = lambda: None) -> int:
    for seconds in range(1, 30):
        each()
        pass_ms(net, 1000)
        if not channel.is_open:
            return seconds
    return 99


def test_sends_keep_a_channel_from_being_idle(net: NetBench) -> None:
    """Whole ones, and a pending one that the peer takes."""
    channel, peer = net.ready_pair(net.options(idle_ns=5 * SECOND))
    for _ in range(3):
        net.clock.advance_ms(4000)
        assert channel.send(run_of(frame(1)))
        net.poll()
    assert channel.is_open
    assert peer.recv(100) == frame(1) * 3
    assert not channel.send(run_of(frame(900_000)))
    rounds = 0
    while channel.pending_send:
        net.clock.advance_ms(4000)
        peer.recv(100_000)
        net.poll()
        rounds += 1
    assert rounds > 2
    assert channel.is_open
    pass_ms(net, 5000)
    assert channel.close_cause is Cause.IDLE


def test_a_send_of_which_the_socket_takes_nothing_is_neither_a_write_nor_activity(net: NetBench) -> None:
    channel, peer = net.ready_pair(net.options(idle_ns=5 * SECOND))
    with contextlib.suppress(BlockingIOError):
        while True:
            channel._socket.send(bytes(65536), socket.MSG_DONTWAIT)
    net.clock.advance_ms(4999)
    assert not channel.send(run_of(frame(1)))
    net.poll()
    assert (net.stats.writes, channel.write_half.bytes_sent) == (0, 0)
    assert channel.is_open
    pass_ms(net, 1)
    assert channel.close_cause is Cause.IDLE
    assert peer.recv(1) == b"\0"


def test_a_mute_of_ours_stops_the_stall_clock(net: NetBench) -> None:
    channel, peer = net.ready_pair(net.options(stall_ns=8 * SECOND, min_rate=10))
    peer.send(frame(1000)[:5])
    net.poll()
    channel.mute(mute.PEER)
    assert seconds_until_closed(net, channel) == 99
    channel.unmute(mute.PEER)
    assert 8 <= seconds_until_closed(net, channel) <= 10
    assert channel.close_cause is Cause.RECEIVE_STALLED


def test_a_peer_that_never_reads_stalls_the_send(net: NetBench) -> None:
    channel, _ = net.ready_pair(net.options(stall_ns=8 * SECOND, min_rate=10))
    channel.send(run_of(frame(900_000)))
    assert 8 <= seconds_until_closed(net, channel) <= 10
    assert channel.close_cause is Cause.SEND_STALLED
    assert channel.unsent_bytes > 0


@each_of(("sent", "each", "stalled"), [(5, 1, True), (4, 10, False), (1004, 0, False)], fresh={"net": net_bench})
def test_a_frame_that_moves_less_than_the_rate_is_stalled(net: NetBench, sent: int, each: int, stalled: bool) -> None:
    channel, peer = net.ready_pair(net.options(stall_ns=8 * SECOND, min_rate=10))
    peer.send(frame(1000)[:sent])
    net.poll()
    assert seconds_until_closed(net, channel, lambda: peer.send(b"x" * each)) in (range(8, 11) if stalled else [99])
    assert channel.close_cause is (Cause.RECEIVE_STALLED if stalled else None)
    if stalled:
        assert net.pool.used == 0
