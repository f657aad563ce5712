"""framegate.proxy.network.event_loop: what the selector promises to channels, and they to it."""

import pytest

from framegate.proxy.cause import Cause
from framegate.proxy.network.channel import Channel
from framegate.proxy.network.event_loop import EventLoop, PolledChannel
from tests.fakes.network import NetBench


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
