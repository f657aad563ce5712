"""framegate.proxy.network.channel_sink: each channel tells its own sink, and nobody else's."""

import socket

from framegate.proxy.cause import Cause
from tests.fakes.network import NetBench, Recorder, RecorderSink, frame


def test_two_channels_of_one_selector_tell_their_own_sinks(net: NetBench) -> None:
    mine, peer = net.ready_pair()
    other = Recorder()
    sink = RecorderSink(other)
    ours, theirs = socket.socketpair()
    sink.channel = net.selector.register(ours, 77, net.options(), sink)
    net.poll()
    theirs.send(frame(3))
    theirs.close()
    net.poll(2)
    sink.channel.shut_write()
    sink.channel.close(Cause.ADMIN)
    net.poll(2)
    assert other.words() == ["ready", "received", "end_of_stream", "closed"]
    assert net.listener.words() == ["ready"]
    peer.send(frame(1))
    net.poll()
    assert net.listener.words(mine) == ["ready", "received"]
