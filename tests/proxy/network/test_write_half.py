"""proxy.network.write_half: what it says when it may not write, and that nothing holds a channel that is closed."""

import gc
import socket

import pytest

from proxy.cause import Cause
from proxy.errors import InternalError
from proxy.network.run import Run
from tests.fakes.network import NetBench, Recorder, RecorderSink, frame, trace_of
from tests.fakes.transport import MemoryTransport, Wire


def one_frame() -> Run:
    data = frame(3)
    return Run(None, 0, data, 0, len(data), 1, 0)


def test_who_may_not_write_says_why(net: NetBench) -> None:
    channel, _ = net.pair()
    half = channel.write_half
    with pytest.raises(InternalError, match="in its handshake"):
        half.send(one_frame())
    net.poll()
    assert half.send(one_frame())
    half.shut()
    for call in (half.shut, lambda: half.send(one_frame())):
        with pytest.raises(InternalError, match="shut"):
            call()


def test_a_channel_whose_peer_is_slow_is_counted_until_the_last_byte_has_gone(net: NetBench) -> None:
    channel, peer = net.ready_pair()
    assert channel.send(one_frame())
    assert net.stats.pending == 0, "what is out at once waits for nobody"
    data = frame(4 << 20)
    assert not channel.send(Run(None, 0, data, 0, len(data), 1, 0))
    assert net.stats.pending == 1
    channel.want_room()
    assert net.stats.pending == 1, "a channel, whatever it waits for"
    while channel.pending_send:
        assert net.stats.pending == 1
        assert peer.recv(65536)
        net.poll()
    assert (net.stats.pending, channel.can_send) == (0, True)


def test_a_channel_that_is_closed_waits_for_nobody(net: NetBench) -> None:
    for asks in (False, True):
        channel, _ = net.ready_pair()
        if asks:
            channel.want_room()
        else:
            data = frame(4 << 20)
            assert not channel.send(Run(None, 0, data, 0, len(data), 1, 0))
        assert net.stats.pending == 1
        channel.close(Cause.ADMIN)
        assert net.stats.pending == 0


def test_what_room_is_wanted_for_is_over_when_our_end_goes_out(net: NetBench) -> None:
    channel, _ = net.ready_pair()
    channel.want_room()
    channel.shut_write()
    assert net.stats.pending == 0


def test_a_half_whose_channel_is_gone_takes_nothing_and_breaks_nothing(net: NetBench) -> None:
    channel, _ = net.ready_pair()
    half = channel.write_half
    channel.close(Cause.ADMIN)
    net.poll()
    half.want_room(1)
    assert (half.can_send, half.takes_pipe(), half.room(), half.is_sending) == (False, False, (0, False), False)
    with pytest.raises(InternalError, match="closed"):
        half.send(one_frame())
    channel.mute(1)
    channel.unmute(1)
    channel.discard_input(64)
    channel.close(Cause.IDLE)
    assert (channel.close_cause, channel.mute_causes) == (Cause.ADMIN, 0)


def test_a_closed_channel_goes_without_the_garbage_collector(net: NetBench) -> None:
    recorder = Recorder()
    sink = RecorderSink(recorder)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    inbound = Wire()
    transport = MemoryTransport(inbound, Wire())
    sink.channel = net.selector.adopt(ours, transport, 9, net.options(), sink)
    net.poll()
    inbound.put(frame(5)[:4])
    theirs.send(b"x")  # an event
    net.poll()
    assert sink.channel.staged == 4
    sink.channel.want_room(0)  # arms a timer, which holds the half
    trace = trace_of(transport)
    del transport
    gc.disable()
    try:
        sink.channel.close(Cause.ADMIN)
        net.poll()
        recorder.told.clear()
        recorder.data.clear()
        recorder.frames.clear()
        net.selector.close_channels()
        del sink
        assert trace() is None
    finally:
        gc.enable()
        theirs.close()
