"""framegate.proxy.network.channel: what is idle, or hardly moves, is closed."""

import contextlib
import socket
from collections.abc import Callable

from framegate.proxy.cause import Cause
from framegate.proxy.network import mute
from framegate.proxy.network.channel import Channel
from framegate.proxy.network.run import Run
from tests.fakes.clock import SECOND
from tests.fakes.network import NetBench, frame


def run_of(data: bytes, frames: int = 1) -> Run:
    return Run(None, 0, data, 0, len(data), frames, 0)


def seconds_until_closed(net: NetBench, channel: Channel, each: Callable[[], object] = lambda: None) -> int:
    for seconds in range(1, 30):
        each()
        net.clock.advance_ms(1000)
        net.poll()
        if not channel.is_open:
            return seconds
    return 99


def test_sends_keep_a_channel_from_being_idle(net: NetBench) -> None:
    channel, peer = net.ready_pair(net.options(idle_ns=5 * SECOND))
    for _ in range(3):
        net.clock.advance_ms(4000)
        assert channel.send(run_of(frame(1)))
        net.poll()
    assert channel.is_open
    assert peer.recv(100) == frame(1) * 3
    net.clock.advance_ms(5000)
    net.poll()
    assert channel.close_cause is Cause.IDLE


def test_a_pending_send_that_the_peer_takes_keeps_a_channel_from_being_idle(net: NetBench) -> None:
    channel, peer = net.ready_pair(net.options(idle_ns=5 * SECOND))
    assert not channel.send(run_of(frame(900_000)))
    rounds = 0
    while channel.pending_send:
        net.clock.advance_ms(4000)
        peer.recv(100_000)
        net.poll()
        rounds += 1
    assert rounds > 2
    assert channel.is_open


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
    net.clock.advance_ms(1)
    net.poll()
    assert channel.close_cause is Cause.IDLE
    assert peer.recv(1) == b"\0"


def test_a_frame_begun_that_hardly_moves_is_stalled(net: NetBench) -> None:
    channel, peer = net.ready_pair(net.options(stall_ns=8 * SECOND, min_rate=10))
    peer.send(frame(1000)[:5])
    net.poll()
    assert 8 <= seconds_until_closed(net, channel, lambda: peer.send(b"x")) <= 10
    assert channel.close_cause is Cause.RECEIVE_STALLED
    assert net.pool.used == 0


def test_a_frame_begun_that_moves_enough_is_not(net: NetBench) -> None:
    channel, peer = net.ready_pair(net.options(stall_ns=8 * SECOND, min_rate=10))
    peer.send(frame(1000)[:4])
    for _ in range(40):
        peer.send(b"x" * 10)
        net.clock.advance_ms(1000)
        net.poll()
    assert channel.is_open


def test_a_mute_of_ours_stops_the_stall_clock(net: NetBench) -> None:
    channel, peer = net.ready_pair(net.options(stall_ns=8 * SECOND, min_rate=10))
    peer.send(frame(1000)[:5])
    net.poll()
    channel.mute(mute.PEER)
    for _ in range(30):
        net.clock.advance_ms(1000)
        net.poll()
    assert channel.is_open
    channel.unmute(mute.PEER)
    assert 8 <= seconds_until_closed(net, channel) <= 10
    assert channel.close_cause is Cause.RECEIVE_STALLED


def test_a_peer_that_never_reads_stalls_the_send(net: NetBench) -> None:
    channel, _ = net.ready_pair(net.options(stall_ns=8 * SECOND, min_rate=10))
    channel.send(run_of(frame(900_000)))
    assert 8 <= seconds_until_closed(net, channel) <= 10
    assert channel.close_cause is Cause.SEND_STALLED
    assert channel.unsent_bytes > 0


def test_a_channel_between_frames_is_not_stalled(net: NetBench) -> None:
    channel, peer = net.ready_pair(net.options(stall_ns=8 * SECOND, min_rate=10))
    peer.send(frame(1))
    for _ in range(40):
        net.clock.advance_ms(1000)
        net.poll()
    assert channel.is_open
