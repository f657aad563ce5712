"""framegate.proxy.network.watchdog: the same item, for a whole window, too slow. More of whole channels is watched in test_channel."""

import contextlib
import select
import socket
from collections.abc import Iterator

from framegate.proxy.cause import Cause
from framegate.proxy.network.channel import Channel
from framegate.proxy.network.memory_pool import PENDING
from framegate.proxy.network.options import ChannelOptions
from framegate.proxy.network.receive import ReceiveLimit
from framegate.proxy.network.run import Run
from framegate.proxy.network.stats import SideStats
from framegate.proxy.network.watchdog import CHECKS, NS_PER_S, window_of
from tests.fakes.cases import each_of
from tests.fakes.network import NetBench, frame, net_bench

OPTIONS = ChannelOptions(side="downstream", limit=ReceiveLimit(-1), stats=SideStats(), stall_ns=2 * NS_PER_S, min_rate=10)


def test_a_window_begins_again_with_another_item_or_after_a_mute() -> None:
    window = window_of(3, 0, 0, 0, None)
    assert window_of(3, 0, 9, 9, window) is window
    assert window_of(3, 1, 9, 9, window) is not window
    assert window_of(4, 0, 9, 9, window) is not window


def test_nothing_in_progress_has_no_window() -> None:
    assert window_of(-1, 0, 0, 0, None) is None
    assert window_of(-1, 0, 0, 0, window_of(3, 0, 0, 0, None)) is None


def test_a_window_is_judged_when_it_is_over_and_begins_again_when_enough_has_moved() -> None:
    window = window_of(3, 0, 5, 100, None)
    assert window is not None
    assert not window.moves_too_little(5 + 2 * NS_PER_S - 1, 100, OPTIONS)
    assert window.moves_too_little(5 + 2 * NS_PER_S, 119, OPTIONS)
    assert not window.moves_too_little(5 + 2 * NS_PER_S, 120, OPTIONS)
    assert (window.since_ns, window.moved) == (5 + 2 * NS_PER_S, 120)


# While memory is short, what waits lies in the kernel.

STALL_S = 4
MIN_RATE = 1000


@contextlib.contextmanager
def short_bench() -> Iterator[NetBench]:
    with net_bench(pool=1 << 20) as net:
        net.pool.common.charge(PENDING, (1 << 20) - 1000)
        try:
            yield net
        finally:
            net.pool.common.release(PENDING, (1 << 20) - 1000)


def watched(net: NetBench) -> tuple[Channel, socket.socket]:
    return net.ready_pair(net.options(stall_ns=STALL_S * NS_PER_S, min_rate=MIN_RATE), tcp=True)


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
            assert channel.send(Run(None, 0, bytes(int(room)), 0, room, 1, 0))


def seconds(net: NetBench, count: float) -> None:
    """Look by look of the watchdog."""
    for _ in range(int(count * CHECKS / STALL_S)):
        net.clock.advance_ms(STALL_S * 1000 / CHECKS)
        net.poll(2)


@each_of("wanted", [True, False])
def test_a_peer_that_does_not_read_what_others_have_for_it_is_stalled(wanted: bool) -> None:
    """Nothing is pending here: what is for it waits in the kernel of who sent it."""
    with short_bench() as net:
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
    with short_bench() as net:
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
    with short_bench() as net:
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
    with short_bench() as net:
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


def test_who_wants_room_and_is_shut_does_not_spin() -> None:
    """The peer reads again: the socket is writable, and nobody is to be told."""
    with short_bench() as net:
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
    with short_bench() as net:
        channel, peer = net.ready_pair(tcp=True)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        while channel.room()[1]:
            channel.send(Run(None, 0, bytes(10_000), 0, 10_000, 1, 0))
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
