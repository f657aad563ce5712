"""framegate.proxy.network.channel_callbacks: what the halves of a channel share through it."""

from framegate.proxy.network.run import Run
from tests.fakes.network import NetBench, frame


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
