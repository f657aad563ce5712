"""framegate.proxy.network.event_loop: what the selector promises to channels, and they to it."""

import pytest

from framegate.proxy.cause import Cause
from framegate.proxy.network.channel import Channel
from framegate.proxy.network.event_loop import EventLoop, PolledChannel
from framegate.proxy.network.run import Run
from tests.fakes.network import NetBench, frame


def test_the_selector_is_the_loop_and_a_channel_what_it_polls(net: NetBench) -> None:
    channel, _ = net.pair()
    assert EventLoop in type(net.selector).__mro__  # isinstance remembers what it found for one abstract native class for others, too
    assert PolledChannel in type(channel).__mro__
    assert (channel.is_open, channel.opened_ns, net.selector.pool) == (False, net.selector.now_ns, net.pool)
    net.poll()
    assert channel.is_open


def test_the_socket_is_closed_after_the_end_was_told(net: NetBench) -> None:
    channel, peer = net.ready_pair()
    peer.setblocking(False)

    def is_open(closed: Channel) -> None:
        with pytest.raises(BlockingIOError):
            peer.recv(1)
        assert not closed.is_open

    net.listener.on["closed"] = is_open
    channel.close(Cause.ADMIN)
    assert net.listener.words(channel) == ["ready"], "nothing is told before the end of a poll"
    net.poll()
    assert net.listener.words(channel) == ["ready", "closed"]
    assert peer.recv(1) == b""


def test_either_half_says_when_a_byte_moved(net: NetBench) -> None:
    channel, peer = net.ready_pair()
    assert channel.last_active_ns == channel.ready_ns
    net.clock.advance_ms(5)
    peer.send(frame(1))
    net.poll()
    read_ns = channel.last_active_ns
    net.clock.advance_ms(5)
    net.poll()
    assert channel.last_active_ns == read_ns
    data = frame(1)
    channel.send(Run(None, 0, data, 0, len(data), 1, 0))
    assert (read_ns - channel.ready_ns, channel.last_active_ns - read_ns) == (5_000_000, 5_000_000)


def test_the_end_of_one_half_is_not_that_of_the_other(net: NetBench) -> None:
    channel, peer = net.ready_pair()
    assert not channel.shutting
    channel.shut_write()
    assert (channel.shutting, channel.read_half.ended, channel.is_open) == (True, False, True)
    peer.send(frame(7))
    net.poll()
    assert channel.frames_received == 1
    peer.close()
    net.poll()
    assert (channel.read_half.ended, channel.is_open) == (True, True)
