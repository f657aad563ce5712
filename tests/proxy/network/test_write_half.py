"""framegate.proxy.network.write_half: what it says when it may not write, and that nothing holds a channel that is closed."""

import gc
import socket

import pytest

from framegate.proxy.cause import Cause
from framegate.proxy.errors import InternalError
from framegate.proxy.network.run import Run
from framegate.proxy.network.write_half import HELD_MOST
from tests.fakes.clock import MS, SECOND
from tests.fakes.network import NetBench, Recorder, RecorderSink, frame, run_of, trace_of
from tests.fakes.transport import MemoryTransport, Wire


def one_frame() -> Run:
    return run_of(frame(3))


def large() -> Run:
    """More than any socket takes at once."""
    return run_of(frame(4 << 20))


def test_a_write_that_is_not_allowed_says_why(net: NetBench) -> None:
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
    assert not channel.send(large())
    assert net.stats.pending == 1
    channel.want_room()
    assert net.stats.pending == 1, "a channel, whatever it waits for"
    while channel.pending_send:
        assert net.stats.pending == 1
        assert peer.recv(65536)
        net.poll()
    assert (net.stats.pending, channel.can_send) == (0, True)


def test_a_channel_that_is_closed_or_shut_is_not_counted_as_pending(net: NetBench) -> None:
    for asks, shuts in ((False, False), (True, False), (True, True)):
        channel, _ = net.ready_pair()
        if asks:
            channel.want_room()
        else:
            assert not channel.send(large())
        assert net.stats.pending == 1
        if shuts:
            channel.shut_write()
        else:
            channel.close(Cause.ADMIN)
        assert net.stats.pending == 0


# Times of runs.


def times(net: NetBench) -> tuple[int, int]:
    net.selector.settle_runs()
    return int(net.stats.forwards.count), int(net.stats.forwards.sum)


def test_every_run_is_measured_until_the_end_of_the_poll_that_sent_it(net: NetBench) -> None:
    for number in range(1, 3):
        channel, peer = net.ready_pair()
        net.clock.advance_ms(3)  # in the poll: what was done for others
        assert all(channel.send(one_frame()) for _ in range(3))
        assert net.stats.forwards.count == 3 * (number - 1), "the poll is not over"
        net.poll()
        peer.recv(100)
        assert times(net) == (3 * number, 9 * number * MS)


def test_a_run_that_waits_is_measured_until_its_last_byte_has_gone(net: NetBench) -> None:
    channel, peer = net.ready_pair()
    net.clock.advance_ms(1)
    assert not channel.send(large())
    assert times(net) == (0, 0), "it is not over"
    while channel.pending_send:
        net.clock.advance_ms(1)
        before = net.clock.now
        peer.recv(1 << 20)
        net.poll()
    assert times(net) == (1, before - SECOND)
    assert channel.send(one_frame())
    assert times(net)[0] == 2


def test_a_run_that_never_went_out_has_no_time(net: NetBench) -> None:
    channel, _ = net.ready_pair()
    assert not channel.send(large())
    channel.close(Cause.ADMIN)
    net.poll()
    assert times(net) == (0, 0)


def test_a_half_whose_channel_is_gone_takes_nothing_and_breaks_nothing(net: NetBench) -> None:
    channel, _ = net.ready_pair()
    half = channel.write_half
    channel.close(Cause.ADMIN, "because")
    channel.close(Cause.IDLE)
    net.poll()
    half.want_room(1)
    assert (half.can_send, half.accepts_pipe(), half.room(), half.is_sending) == (False, False, (0, False), False)
    with pytest.raises(InternalError, match="closed"):
        half.send(one_frame())
    channel.mute(1)
    channel.unmute(1)
    channel.discard_input(64)
    channel.close(Cause.IDLE)
    assert (channel.close_cause, channel.detail, channel.mute_causes) == (Cause.ADMIN, "because", 0), "the first cause wins"
    net.poll()
    assert net.listener.words(channel).count("closed") == 1


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


# Runs that are held.


def nothing_at(peer: socket.socket) -> bool:
    peer.setblocking(False)
    try:
        return not peer.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True


def test_held_runs_go_out_together_in_order_and_are_counted_then(net: NetBench) -> None:
    channel, peer = net.ready_pair()
    half = channel.write_half
    half.hold()
    assert half.holding
    assert [channel.send(run_of(frame(size))) for size in (3, 5)] == [True, True]
    net.poll()
    assert (nothing_at(peer), half.frames_sent, half.pending.frames, half.accepts_pipe(), half.room()) == (True, 0, 2, False, (0, False))
    half.release_held()
    half.release_held()
    half.uncork()
    assert (half.holding, half.frames_sent, channel.pending_send, channel.can_send) == (False, 2, 0, True)
    peer.setblocking(True)
    assert peer.recv(100) == frame(3) + frame(5)
    assert channel.send(one_frame())


def test_no_more_is_held_than_the_bound_and_nothing_while_a_send_is_pending(net: NetBench) -> None:
    channel, _ = net.ready_pair()
    half = channel.write_half
    half.hold()
    assert channel.send(run_of(frame(HELD_MOST - 5)))
    assert half.may_hold
    assert not channel.send(run_of(frame(0)))
    assert (half.may_hold, channel.can_send) == (False, False)
    channel.close(Cause.ADMIN)
    assert (half.holding, channel.unsent_bytes) == (False, HELD_MOST + 3)
    busy, _ = net.ready_pair()
    assert not busy.send(large())
    busy.write_half.hold()
    assert not busy.write_half.holding
