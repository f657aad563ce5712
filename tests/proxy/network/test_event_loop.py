"""framegate.proxy.network.event_loop: what the selector promises to channels, and they to it."""

import pytest

from framegate.proxy.cause import Cause
from framegate.proxy.network.channel import Channel
from tests.fakes.network import NetBench, frame, run_of


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
    channel.send(run_of(data))
    assert (read_ns - channel.ready_ns, channel.last_active_ns - read_ns) == (5_000_000, 5_000_000)
