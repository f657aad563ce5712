"""framegate.proxy.network.channel: one connection, from its first byte to its one cause."""

import contextlib
import socket

import pytest

from framegate.proxy.cause import Cause
from framegate.proxy.errors import InternalError, ProxyError
from framegate.proxy.network import mute
from framegate.proxy.network.channel import Channel
from framegate.proxy.network.memory_pool import PIECE_OVERHEAD
from framegate.proxy.network.run import Run
from framegate.proxy.network.state import ChannelState
from tests.fakes.cases import each_of
from tests.fakes.network import NetBench, frame, net_bench, run_of, trace_of

# Reading.


def test_frames_are_delivered_and_counted(net: NetBench) -> None:
    channel, peer = net.ready_pair()
    peer.send(frame(3) + frame(0) + frame(5)[:6])
    net.poll()
    assert net.listener.data[channel] == frame(3) + frame(0)
    assert (channel.frames_received, channel.bytes_received, channel.staged) == (2, 17, 6)
    assert net.pool.used == channel.leased == 6 + PIECE_OVERHEAD
    peer.send(frame(5)[6:])
    net.poll()
    assert (channel.frames_received, channel.staged, net.pool.used) == (3, 0, 0)
    assert (net.stats.frames_received, net.stats.bytes_received, net.stats.reads) == (3, 20, 2)


def test_a_gated_channel_is_asked_for_before_each_read(net: NetBench) -> None:
    channel, peer = net.ready_pair()
    other, other_peer = net.ready_pair()
    asked: list[Channel] = []
    open_gate = [True, False]

    def gate(which: Channel) -> bool:
        asked.append(which)
        if not open_gate[0]:
            which.mute(mute.TAP)
        return open_gate.pop(0)

    net.listener.gate = gate
    channel.gated = True
    for sock in (peer, other_peer):
        sock.send(frame(3))
    net.poll()
    for sock in (peer, other_peer):
        sock.send(frame(3))
    net.poll(5)
    assert asked == [channel, channel], "not of a channel that is not gated, not while it is muted"
    assert (net.listener.data[channel], net.listener.data[other]) == (frame(3), frame(3) * 2)
    channel.gated = False
    channel.unmute(mute.TAP)
    net.poll()
    assert net.listener.data[channel] == frame(3) * 2


@each_of("size", [1, 108, 109, 331, 332, 333, 444, 445, 1000, 3000, 30_000], fresh={"net": net_bench})
def test_traffic_that_stays_as_it_is_gets_one_read_for_each_send(net: NetBench, size: int) -> None:
    channel, peer = net.ready_pair()
    sizes = []
    for _ in range(12):
        peer.send(frame(size))
        net.poll(3)
        reads = net.stats.reads
        sizes.append(channel.read_half._read_size)
    peer.send(frame(size))
    net.poll()
    assert net.stats.reads == reads + 1
    assert len(set(sizes[-4:])) == 1, "a size that is found is kept"


@each_of(
    ("data", "cause", "words"),
    [
        (frame(1) + b"\xff\xff\xff\xff", Cause.NEGATIVE_SIZE, "-1"),
        (frame(1) + b"\0\0\x04\x01", Cause.FRAME_TOO_LARGE, "1025 bytes exceeds the limit of 1024"),
        (b"GET / HTTP/1.1\r\n\r\n", Cause.WRONG_PROTOCOL, "HTTP"),
        (b"\x16\x03\x01\x00\xf0" + b"\1" * 240, Cause.WRONG_PROTOCOL, "TLS"),
        (b"ruok", Cause.WRONG_PROTOCOL, "ZooKeeper's four-letter word ruok"),
        (b"mntr\n", Cause.WRONG_PROTOCOL, "ZooKeeper's four-letter word mntr"),
    ],
    fresh={"net": net_bench},
)
def test_what_the_peer_does_wrong_has_a_name_and_good_frames_before_it_pass(net: NetBench, data: bytes, cause: Cause, words: str) -> None:
    net.limit.value = 1024
    channel, peer = net.ready_pair()
    other, other_peer = net.ready_pair()
    peer.send(data)
    other_peer.send(frame(1))
    net.poll(2)
    assert (channel.close_cause, channel.state) == (cause, ChannelState.CLOSED)
    assert words in channel.detail
    assert isinstance(channel.error, ProxyError)
    assert channel.error.side == "downstream"
    assert channel.frames_received == (1 if data[0] == 0 else 0)
    assert other.frames_received == 1
    assert peer.recv(10) == b""


def test_refused_frames_are_counted_by_reason(net: NetBench) -> None:
    """Once each, also if its header comes in parts."""
    net.limit.value = 10
    for data in ((b"\xff\xff\xff\xff",), (b"\xff\xff", b"\xff\xff"), (frame(11),), (frame(11),), (frame(5)[:5],)):
        _, peer = net.ready_pair()
        for part in data:
            peer.send(part)
            net.poll()
        peer.shutdown(socket.SHUT_WR) if len(data) == 1 else None
        net.poll(3)
    assert (net.stats.refused_negative, net.stats.refused_too_large, net.stats.refused_incomplete) == (2, 2, 1)
    assert net.stats.lost_bytes == 4 + 4 + 15 + 15 + 5


# Writing.


def test_a_send_that_is_out_at_once_is_not_told(net: NetBench) -> None:
    channel, peer = net.ready_pair()
    assert channel.send(run_of(frame(3) + frame(4), 2))
    net.poll(2)
    assert peer.recv(100) == frame(3) + frame(4)
    assert net.listener.words(channel) == ["ready"]
    assert (channel.write_half.frames_sent, channel.write_half.bytes_sent, channel.can_send) == (2, 15, True)
    assert (net.stats.frames_sent, net.stats.bytes_sent, net.stats.writes) == (2, 15, 1)


def test_what_the_socket_does_not_take_is_the_pending_send(net: NetBench) -> None:
    channel, peer = net.ready_pair()
    data = frame(900_000)
    assert not channel.send(run_of(data))
    assert channel.pending_send > 0
    assert net.pool.used == channel.leased >= channel.pending_send
    assert not channel.can_send
    with pytest.raises(InternalError, match="send pending"):
        channel.send(run_of(frame(1)))
    with pytest.raises(InternalError):
        channel.shut_write()
    seen = 0
    while channel.pending_send:
        seen += len(peer.recv(1 << 20))
        net.poll()
    seen += len(peer.recv(1 << 20)) if seen < len(data) else 0
    assert net.listener.words(channel) == ["ready", "sent"]
    assert (channel.write_half.frames_sent, channel.write_half.bytes_sent, net.pool.used) == (1, len(data), 0)


def test_what_is_booked_moves_from_the_receive_to_the_send(net: NetBench) -> None:
    source, feeder = net.ready_pair()
    target, reader = net.ready_pair()
    moved: list[int] = []

    def forward(channel: Channel, run: Run) -> None:
        if channel is source:
            moved.append(run.lease)
            target.send(run)
            assert run.lease == 0

    net.listener.on_run = forward
    data = frame(700_000)
    sent = 0
    feeder.setblocking(False)
    while not moved:
        with contextlib.suppress(BlockingIOError):
            sent += feeder.send(data[sent:])
        net.poll()
    assert moved[0] > len(data) // 2
    assert source.leased == 0
    assert net.pool.used == target.leased >= target.pending_send > 0
    while target.pending_send:
        reader.recv(1 << 20)
        net.poll()
    assert net.pool.used == 0


def test_a_failing_write_closes_the_channel_at_the_end_of_the_poll(net: NetBench) -> None:
    channel, peer = net.ready_pair()
    peer.close()
    assert not channel.send(run_of(frame(1)))
    assert (channel.state, channel.close_cause) == (ChannelState.CLOSED, Cause.PEER_RESET)
    assert "closed" not in net.listener.words()
    net.poll()
    assert net.listener.words(channel)[-1] == "closed"
    assert channel.unsent_bytes == 5


def test_our_end_of_the_stream_is_told_once_and_the_peers_goes_on(net: NetBench) -> None:
    channel, peer = net.ready_pair()
    channel.shut_write()
    assert "write_ended" not in net.listener.words()
    net.poll()
    assert peer.recv(10) == b""
    peer.send(frame(1))
    net.poll()
    assert net.listener.words(channel) == ["ready", "write_ended", "received"]
    peer.close()
    net.poll(3)
    assert channel.state is ChannelState.ENDED
    assert net.listener.words(channel)[-1] == "end_of_stream"


# Ends.


@each_of("word", ["ready", "sent", "end_of_stream", "muted"], fresh={"net": net_bench})
def test_an_error_in_any_callback_is_that_channels_end(net: NetBench, word: str) -> None:
    def fail(channel: Channel) -> None:
        if channel is not other:
            raise RuntimeError("a bug")

    other, other_peer = net.ready_pair()
    net.listener.on[word] = fail
    channel, peer = net.pair()
    net.poll()
    if channel.is_open:
        peer.send(frame(9)[:5])
        net.poll()
        channel.mute(mute.ADMIN)
        channel.send(run_of(frame(900_000)))
        peer.send(frame(9)[5:])
        net.poll()
        channel.unmute(mute.ADMIN)
        peer.recv(1 << 20)
        peer.shutdown(socket.SHUT_WR)
        net.poll(3)
        while channel.is_open and word == "sent":
            peer.recv(1 << 20)
            net.poll()
    net.poll()
    assert (channel.close_cause, channel.detail) == (Cause.INTERNAL, "RuntimeError: a bug")
    other_peer.send(frame(1))
    net.poll()
    assert other.frames_received == 1
    net.faults = 1


@each_of("when", ["received", "end_of_stream", "ready", "muted"], fresh={"net": net_bench})
def test_a_callback_may_close_its_own_channel(net: NetBench, when: str) -> None:
    net.listener.on[when] = lambda channel: channel.close(Cause.ADMIN)
    channel, peer = net.pair()
    net.poll()
    if channel.is_open:
        peer.send(frame(9)[:5])
        net.poll()
        channel.mute(mute.ADMIN)
        peer.send(frame(9)[5:] + frame(1) + b"\xff\xff\xff\xff")
        peer.shutdown(socket.SHUT_WR)
        net.poll()
        channel.unmute(mute.ADMIN)
        if when == "end_of_stream":
            net.limit.value = -1
            peer2 = net.ready_pair()[1]
            peer2.shutdown(socket.SHUT_WR)
    net.poll(3)
    assert Cause.ADMIN in [who.close_cause for word, who in net.listener.told if word == "closed"]


def test_what_is_closed_leaves_the_selector_and_lets_go_of_its_sink(net: NetBench) -> None:
    channel, peer = net.ready_pair()
    trace = trace_of(channel.sink)
    peer.send(frame(10)[:6])
    net.poll()
    net.listener.on["muted"] = lambda channel: channel.close(Cause.ADMIN)
    channel.mute(mute.ADMIN)
    assert net.selector.channel_count == 1
    peer.shutdown(socket.SHUT_WR)
    net.poll(2)
    assert net.listener.words(channel) == ["ready", "muted", "closed"]
    assert (net.selector.channel_count, net.selector._handlers[channel.fd]) == (0, None)
    assert trace() is None
    assert peer.recv(1) == b""


def test_a_mute_before_the_handshake_holds_from_the_first_frame(net: NetBench) -> None:
    channel, peer = net.pair()
    channel.mute(mute.ADMIN)
    channel.mute(mute.PEER)
    channel.unmute(mute.PEER)
    peer.send(frame(1))
    net.poll(3)
    assert (channel.is_open, channel.frames_received) == (True, 0)
    channel.unmute(mute.ADMIN)
    net.poll()
    assert channel.frames_received == 1


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
    channel.send(run_of(frame(1)))
    assert (read_ns - channel.ready_ns, channel.last_active_ns - read_ns) == (5_000_000, 5_000_000)
