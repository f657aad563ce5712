"""proxy.network.channel: one connection, from its first byte to its one cause."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from proxy.errors import InternalError, ProxyError
from proxy.network import mute
from proxy.network.careful import SMALL
from proxy.network.cause import Cause
from proxy.network.channel import Channel
from proxy.network.memory_pool import PENDING, PIECE_OVERHEAD
from proxy.network.mute import MuteState
from proxy.network.read_half import MAX_READ, MIN_READ
from proxy.network.run import PART, PART_FIRST, PART_LAST, Run
from proxy.network.state import ChannelState
from tests.fakes.clock import SECOND
from tests.fakes.network import NetBench, frame, net_bench, reset, trace_of


@pytest.fixture
def net() -> Iterator[NetBench]:
    with net_bench() as bench:
        yield bench


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


def test_a_gated_channel_is_read_when_its_listener_says_nothing(net: NetBench) -> None:
    channel, peer = net.ready_pair()
    channel.gated = True
    peer.send(frame(3))
    net.poll()
    assert net.listener.data[channel] == frame(3)


def test_frames_byte_by_byte(net: NetBench) -> None:
    channel, peer = net.ready_pair()
    data = frame(3, b"a") + frame(0) + frame(1, b"b")
    for position in range(len(data)):
        peer.send(data[position : position + 1])
        net.poll()
    assert (net.listener.data[channel], channel.frames_received) == (data, 3)


def test_reads_grow_with_the_traffic_and_shrink_again(net: NetBench) -> None:
    channel, peer = net.ready_pair(tcp=True)
    peer.setblocking(False)
    for _ in range(20):
        peer.send(frame(60_000) * 3)
        net.poll(3)
    assert channel.read_half._read_size == MAX_READ
    for _ in range(20):
        peer.send(frame(1))
        net.poll()
    assert channel.read_half._read_size == MIN_READ


@pytest.mark.parametrize("size", [1, 108, 109, 331, 332, 333, 444, 445, 1000, 3000, 30_000])
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


@pytest.mark.parametrize(
    ("data", "cause", "words"),
    [
        (frame(1) + b"\xff\xff\xff\xff", Cause.NEGATIVE_SIZE, "-1"),
        (frame(1) + b"\0\0\x04\x01", Cause.FRAME_TOO_LARGE, "1025 bytes exceeds the limit of 1024"),
        (b"GET / HTTP/1.1\r\n\r\n", Cause.WRONG_PROTOCOL, "HTTP"),
        (b"\x16\x03\x01\x00\xf0" + b"\1" * 240, Cause.WRONG_PROTOCOL, "TLS"),
        (b"ruok", Cause.WRONG_PROTOCOL, "ZooKeeper's four-letter word ruok"),
        (b"mntr\n", Cause.WRONG_PROTOCOL, "ZooKeeper's four-letter word mntr"),
    ],
)
def test_what_the_peer_does_wrong_has_a_name_and_good_frames_before_it_pass(net: NetBench, data: bytes, cause: Cause, words: str) -> None:
    net.limit.value = 1024
    channel, peer = net.ready_pair()
    other, other_peer = net.ready_pair()
    peer.send(data)
    other_peer.send(frame(1))
    net.poll(2)
    assert (channel.close_cause, channel.state, channel.closed_in) == (cause, ChannelState.CLOSED, ChannelState.READY)
    assert words in channel.detail
    assert isinstance(channel.error, ProxyError)
    assert channel.error.side == "downstream"
    assert channel.frames_received == (1 if data[0] == 0 else 0)
    assert other.frames_received == 1
    assert peer.recv(10) == b""


def test_refused_frames_are_counted_by_reason(net: NetBench) -> None:
    net.limit.value = 10
    for data in (b"\xff\xff\xff\xff", frame(11), frame(11), frame(5)[:5]):
        _, peer = net.ready_pair()
        peer.send(data)
        peer.shutdown(socket.SHUT_WR)
        net.poll(3)
    assert (net.stats.refused_negative, net.stats.refused_too_large, net.stats.refused_incomplete) == (1, 2, 1)
    assert net.stats.lost_bytes == 4 + 15 + 15 + 5


def test_the_end_of_the_stream_drops_the_frame_begun(net: NetBench) -> None:
    channel, peer = net.ready_pair()
    peer.send(frame(2) + frame(100)[:50])
    peer.shutdown(socket.SHUT_WR)
    net.poll(3)
    assert net.listener.words(channel) == ["ready", "received", "end_of_stream"]
    assert (channel.state, channel.lost_bytes, channel.staged, net.pool.used) == (ChannelState.READ_ENDED, 50, 0, 0)
    assert channel.send(run_of(frame(1)))
    assert peer.recv(100) == frame(1)


def test_a_reset_closes_with_its_cause(net: NetBench) -> None:
    channel, peer = net.ready_pair(tcp=True)
    reset(peer)
    net.poll_until(lambda: channel.state is ChannelState.CLOSED)
    assert (channel.close_cause, channel.closed_in) == (Cause.PEER_RESET, ChannelState.READY)


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


def test_a_channel_that_is_not_ready_cannot_send(net: NetBench) -> None:
    channel, _ = net.pair()
    with pytest.raises(InternalError, match="handshake"):
        channel.send(run_of(frame(1)))


def test_our_end_of_the_stream_is_told_once_and_the_peers_goes_on(net: NetBench) -> None:
    channel, peer = net.ready_pair()
    channel.shut_write()
    assert "write_ended" not in net.listener.words()
    net.poll()
    assert peer.recv(10) == b""
    peer.send(frame(1))
    net.poll()
    assert net.listener.words(channel) == ["ready", "write_ended", "received"]
    with pytest.raises(InternalError, match="shut"):
        channel.shut_write()
    with pytest.raises(InternalError, match="shut"):
        channel.send(run_of(frame(1)))
    peer.close()
    net.poll(3)
    assert channel.state is ChannelState.ENDED
    assert net.listener.words(channel)[-1] == "end_of_stream"


# Muting.


def test_a_muted_channel_keeps_its_data_in_the_socket(net: NetBench) -> None:
    channel, peer = net.ready_pair()
    assert channel.mute(mute.ADMIN)
    assert channel.mute_in_force
    peer.send(frame(3))
    net.poll(3)
    assert channel.bytes_received == 0
    net.clock.advance_ms(5)
    net.poll()
    channel.unmute(mute.ADMIN)
    net.poll()
    assert channel.frames_received == 1
    index = mute.position(mute.ADMIN)
    assert (net.stats.mutes[index], net.stats.mute_ns[index], channel.mutes.count) == (1, 5_000_000, 1)


def test_reading_goes_on_with_the_last_cause_only(net: NetBench) -> None:
    channel, peer = net.ready_pair()
    channel.mute(mute.PEER)
    channel.mute(mute.ADMIN)
    channel.mute(mute.ADMIN)
    peer.send(frame(1))
    net.poll(2)
    channel.unmute(mute.PEER)
    channel.unmute(mute.PEER)
    net.poll(2)
    assert channel.frames_received == 0
    channel.unmute(mute.ADMIN)
    net.poll()
    assert channel.frames_received == 1
    assert channel.mutes.count == 2


def test_an_operators_mute_lets_the_frame_begun_finish_and_reads_no_further(net: NetBench) -> None:
    channel, peer = net.ready_pair()
    peer.send(frame(10)[:6])
    net.poll()
    assert not channel.mute(mute.ADMIN)
    assert channel.mutes.state is MuteState.MUTING
    peer.send(frame(10)[6:] + frame(2))
    net.poll()
    assert net.listener.words(channel)[1:] == ["received", "muted"]
    assert (channel.frames_received, channel.bytes_received, channel.mute_in_force) == (1, 14, True)
    net.poll(3)
    assert (channel.frames_received, channel.leased) == (1, 0)
    channel.unmute(mute.ADMIN)
    net.poll()
    assert channel.frames_received == 2


def test_a_header_begun_is_a_frame_begun(net: NetBench) -> None:
    channel, peer = net.ready_pair()
    peer.send(b"\0\0")
    net.poll()
    assert not channel.mute(mute.DRAIN)
    peer.send(b"\0\3abc" + frame(1))
    net.poll(3)
    assert channel.mute_in_force
    assert channel.bytes_received == 7


def test_a_hard_cause_stops_within_a_frame_and_a_soft_one_waits_behind_it(net: NetBench) -> None:
    channel, peer = net.ready_pair()
    peer.send(frame(10)[:6])
    net.poll()
    assert channel.mute(mute.PEER)
    assert not channel.mute(mute.ADMIN)
    assert channel.mutes.state is MuteState.HELD
    peer.send(frame(10)[6:])
    net.poll(3)
    assert channel.frames_received == 0
    channel.unmute(mute.PEER)
    net.poll()
    assert channel.frames_received == 1
    assert channel.mute_in_force
    assert "muted" in net.listener.words()


def test_the_end_of_the_stream_ends_the_frame_that_a_mute_waits_for(net: NetBench) -> None:
    channel, peer = net.ready_pair()
    peer.send(frame(10)[:6])
    net.poll()
    channel.mute(mute.ADMIN)
    peer.shutdown(socket.SHUT_WR)
    net.poll()
    assert net.listener.words(channel)[1:] == ["muted", "end_of_stream"]


def test_the_end_of_the_stream_is_not_seen_while_muted(net: NetBench) -> None:
    channel, peer = net.ready_pair(tcp=True)
    channel.mute(mute.ADMIN)
    peer.sendall(frame(1) * 20)
    peer.shutdown(socket.SHUT_WR)
    net.poll(5)
    assert net.listener.words(channel) == ["ready"]
    channel.unmute(mute.ADMIN)
    net.poll_until(lambda: "end_of_stream" in net.listener.words())
    assert channel.frames_received == 20


@pytest.mark.parametrize("causes", [0, mute.ADMIN | mute.MEMORY])
def test_what_is_read_off_is_seen_by_nobody_and_the_end_is_told(net: NetBench, causes: int) -> None:
    channel, peer = net.ready_pair(tcp=True)
    peer.send(frame(3) + frame(9)[:6])
    net.poll()
    for cause in (mute.ADMIN, mute.MEMORY):
        if causes & cause:
            channel.mute(cause)
    channel.discard_input(mute.DRAIN)
    channel.discard_input(mute.DRAIN)
    assert (channel.lost_bytes, channel.staged, net.pool.used, channel.mute_in_force) == (6, 0, 0, True)
    channel.shut_write()
    peer.sendall(frame(9)[6:] + frame(100_000) * 5 + frame(3))
    net.poll(20)
    assert channel.read_half.is_dry()
    assert (channel.frames_received, channel.bytes_received, channel.state) == (1, 13, ChannelState.WRITE_ENDED)
    peer.close()
    net.poll_until(lambda: channel.state is ChannelState.ENDED)
    assert [word for word in net.listener.words(channel) if word not in ("muted", "write_ended")] == ["ready", "received", "end_of_stream"]
    assert (channel.lost_bytes, net.listener.data[channel]) == (6, frame(3))


def test_what_is_read_off_was_hung_before(net: NetBench) -> None:
    channel, peer = net.ready_pair()
    channel.mute(mute.ADMIN)
    peer.send(frame(1) * 20)
    peer.close()
    net.poll(2)
    assert channel.hung
    channel.discard_input(mute.DRAIN)
    net.poll(3)
    assert (channel.frames_received, channel.state) == (0, ChannelState.READ_ENDED)
    net.poll(3)
    reads = net.listener.words(channel).count("end_of_stream")
    assert reads == 1


def test_a_reset_is_noticed_while_the_rest_is_read_off(net: NetBench) -> None:
    channel, peer = net.ready_pair(tcp=True)
    channel.discard_input(mute.DRAIN)
    reset(peer)
    net.poll_until(lambda: channel.state is ChannelState.CLOSED)
    assert channel.close_cause is Cause.PEER_RESET


def test_nothing_is_read_off_after_the_end(net: NetBench) -> None:
    channel, peer = net.ready_pair()
    peer.close()
    net.poll_until(lambda: channel.state is ChannelState.READ_ENDED)
    channel.discard_input(mute.DRAIN)
    assert (channel.read_half.discards, channel.mute_causes) == (False, 0)


def test_a_peer_that_is_gone_does_not_make_a_muted_channel_spin(net: NetBench) -> None:
    channel, peer = net.ready_pair()
    channel.mute(mute.ADMIN)
    peer.send(frame(1) * 20)
    peer.close()
    net.poll(2)
    assert channel.hung
    handled = net.stats.reads
    net.poll(10)
    assert (net.stats.reads, channel.state) == (handled, ChannelState.READY)
    channel.unmute(mute.ADMIN)
    assert not channel.hung
    net.poll(3)
    assert channel.frames_received == 20
    assert channel.state is ChannelState.READ_ENDED


def test_a_reset_is_noticed_while_muted(net: NetBench) -> None:
    channel, peer = net.ready_pair(tcp=True)
    channel.mute(mute.PEER)
    reset(peer)
    net.poll_until(lambda: channel.state is ChannelState.CLOSED)
    assert channel.close_cause is Cause.PEER_RESET


def test_both_ends_of_the_stream_do_not_spin(net: NetBench) -> None:
    channel, peer = net.ready_pair()
    channel.shut_write()
    peer.close()
    net.poll(3)
    assert (channel.state, channel.hung) == (ChannelState.ENDED, True)


# Memory.


@contextlib.contextmanager
def short_bench(pool: int = 1 << 20) -> Iterator[NetBench]:
    """A bench whose pool is used up by somebody."""
    with net_bench(pool=pool) as net:
        net.pool.common.charge(PENDING, pool)
        try:
            yield net
        finally:
            net.pool.common.release(PENDING, pool)


@pytest.mark.parametrize("size", [0, 1, 100, 65_532, SMALL - 4])
def test_a_small_frame_that_is_here_passes_though_nothing_is_left(size: int) -> None:
    with short_bench() as net:
        channel, peer = net.ready_pair(tcp=True)
        sender = threading.Thread(target=peer.sendall, args=(frame(size) * 2,))
        sender.start()
        net.poll_until(lambda: channel.frames_received == 2, step_ms=1)
        assert (channel.mute_causes, net.pool.begun, net.listener.data[channel]) == (0, 0, frame(size) * 2)
        sender.join()


@pytest.mark.parametrize("size", [100, 65_532])
def test_the_beginning_of_a_small_frame_stays_in_the_kernel(size: int) -> None:
    with short_bench() as net:
        channel, peer = net.ready_pair(tcp=True)
        peer.send(frame(3) + frame(size)[:-1])
        net.poll(10)
        assert (channel.frames_received, net.pool.begun, channel.mute_causes, channel.read_half.is_receiving) == (1, 0, 0, True)
        assert channel.read_half.begun_bytes == 4 + size - 1
        peer.send(b"x")
        net.poll_until(lambda: channel.frames_received == 2, step_ms=1)
        assert net.listener.data[channel] == frame(3) + frame(size)
        peer.send(frame(1))
        net.poll_until(lambda: channel.frames_received == 3, step_ms=1)


def test_a_small_frame_in_small_segments_is_waited_for() -> None:
    with short_bench() as net:
        channel, peer = net.ready_pair(tcp=True)
        data = frame(20_000)
        for position in range(0, len(data), 40):
            peer.send(data[position : position + 40])
            net.poll()
        for _ in range(10):
            net.poll(2)
            net.clock.advance_ms(10)
        net.poll_until(lambda: channel.frames_received == 1, step_ms=1)
        assert net.pool.evicted == 0


def test_a_stream_that_ends_within_a_small_frame_in_the_kernel_is_seen() -> None:
    with short_bench() as net:
        channel, peer = net.ready_pair(tcp=True)
        peer.send(frame(70_000)[:60_000])
        net.poll(5)
        peer.shutdown(socket.SHUT_WR)
        net.poll_until(lambda: channel.state is ChannelState.READ_ENDED, step_ms=1)
        assert (channel.lost_bytes, net.pool.begun, net.stats.refused_incomplete) == (60_000, 0, 1)


def test_a_reset_within_a_small_frame_in_the_kernel_is_seen() -> None:
    with short_bench() as net:
        channel, peer = net.ready_pair(tcp=True)
        peer.send(frame(70_000)[:60_000])
        net.poll(5)
        reset(peer)
        net.poll_until(lambda: channel.state is ChannelState.CLOSED, step_ms=1)
        assert channel.close_cause is Cause.PEER_RESET


def test_a_frame_over_a_unix_socket_waits_for_its_rest_by_the_clock() -> None:
    with short_bench() as net:
        channel, peer = net.ready_pair()
        peer.send(frame(5000)[:3000])
        net.poll(5)
        assert (net.pool.begun, channel.bytes_received) == (0, 0)
        peer.send(frame(5000)[3000:])
        net.clock.advance_ms(10)
        net.poll(2)
        assert channel.frames_received == 1


def test_a_large_frame_takes_its_turn_and_goes_on_when_there_is_room() -> None:
    with net_bench(pool=1 << 20) as net:
        net.pool.set_largest(400_000, 0)
        net.pool.common.charge(PENDING, 1 << 21)
        channel, peer = net.ready_pair(tcp=True)
        sender = threading.Thread(target=peer.sendall, args=(frame(390_000),))
        sender.start()
        net.poll_until(lambda: channel.mute_causes == mute.MEMORY, step_ms=1)
        assert (net.pool.waiting, net.pool.refused, channel.frames_received) == (1, 1, 0)
        assert net.pool.begun < 256
        net.pool.common.release(PENDING, (1 << 20) + 1000)
        net.poll_until(lambda: channel.frames_received == 1, step_ms=1)
        assert (channel.mute_causes, net.pool.waiting, net.pool.begun) == (0, 0, 0)
        net.pool.common.release(PENDING, (1 << 20) - 1000)
        sender.join()


def test_closing_a_channel_that_waits_for_its_turn_leaves_nobody_waiting() -> None:
    with net_bench(pool=1 << 20) as net:
        net.pool.common.charge(PENDING, 1 << 21)
        channel, peer = net.ready_pair(tcp=True)
        peer.send(frame(400_000)[:100_000])
        net.poll_until(lambda: channel.mute_causes == mute.MEMORY, step_ms=1)
        channel.close(Cause.ADMIN)
        assert net.pool.waiting == 0
        net.pool.common.release(PENDING, 1 << 21)


def test_the_other_sides_room_is_waited_for() -> None:
    with short_bench() as net:
        channel, peer = net.ready_pair(tcp=True)
        net.listener.room = (0, False)
        peer.send(frame(100))
        net.poll(3)
        assert (channel.mute_causes, channel.bytes_received) == (mute.PEER, 0)
        net.listener.room = (1000, False)
        channel.unmute(mute.PEER)
        net.poll(3)
        assert channel.frames_received == 1


def test_a_frame_larger_than_the_room_passes_in_pieces() -> None:
    with short_bench() as net:
        channel, peer = net.ready_pair(tcp=True)
        net.listener.room = (10_000, False)
        parts: list[int] = []
        net.listener.on_run = lambda _, run: parts.append(run.size)
        peer.send(frame(60_000))
        net.poll_until(lambda: channel.frames_received == 1, step_ms=1)
        assert (max(parts), sum(parts), len(parts) > 1) == (10_000, 60_004, True)
        assert (net.listener.data[channel], net.pool.begun) == (frame(60_000), 0)


# Cut through.


@pytest.mark.parametrize(("size", "pieces"), [(1023, False), (1024, False), (1025, True)])
def test_frames_above_the_limit_pass_as_they_come(net: NetBench, size: int, pieces: bool) -> None:
    channel, peer = net.ready_pair(net.options(cut_from=1024), tcp=True)
    parts: list[int] = []
    net.listener.on_run = lambda _, run: parts.append(run.part)
    data = frame(size - 4)
    for part in (data[:100], data[100:900], data[900:]):
        peer.send(part)
        net.poll(2)
    assert parts == ([PART | PART_FIRST, PART, PART | PART_LAST] if pieces else [0])
    assert (net.listener.data[channel], channel.frames_received, net.pool.used) == (data, 1, 0)


def test_whole_frames_before_and_behind_a_frame_in_pieces(net: NetBench) -> None:
    channel, peer = net.ready_pair(net.options(cut_from=1024), tcp=True)
    runs: list[tuple[int, int]] = []
    net.listener.on_run = lambda _, run: runs.append((run.part, run.frames))
    data = frame(10) + frame(20) + frame(2000) + frame(30)
    peer.send(data[:100])
    net.poll(3)
    assert runs == [(0, 2), (PART | PART_FIRST, 0)]
    peer.send(data[100:])
    net.poll(3)
    assert runs[2:] == [(PART | PART_LAST, 1), (0, 1)]
    assert (net.listener.data[channel], channel.frames_received) == (data, 4)


def test_a_stream_that_ends_within_a_frame_in_pieces_says_so(net: NetBench) -> None:
    channel, peer = net.ready_pair(net.options(cut_from=1024), tcp=True)
    peer.send(frame(2000)[:500])
    net.poll()
    peer.close()
    net.poll(2)
    assert (channel.read_half.cut_short_at, channel.lost_bytes, net.stats.cut_short, net.stats.refused_incomplete) == (500, 0, 1, 1)


def test_an_operators_mute_waits_for_the_end_of_a_frame_in_pieces(net: NetBench) -> None:
    channel, peer = net.ready_pair(net.options(cut_from=1024), tcp=True)
    peer.send(frame(2000)[:500])
    net.poll()
    assert not channel.mute(mute.ADMIN)
    peer.send(frame(2000)[500:] + frame(1))
    net.poll(3)
    assert (channel.frames_received, channel.mute_in_force) == (1, True)
    channel.unmute(mute.ADMIN)
    net.poll()
    assert channel.frames_received == 2


# Times.


def test_an_idle_channel_is_closed_strictly_after_its_time(net: NetBench) -> None:
    channel, peer = net.ready_pair(net.options(idle_ns=5 * SECOND))
    net.clock.advance_ms(3000)
    peer.send(frame(1))
    net.poll()
    net.clock.advance_ms(4999)
    net.poll()
    assert channel.is_open
    net.clock.advance_ms(1)
    net.poll()
    assert channel.close_cause is Cause.IDLE


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


def test_a_muted_channel_expires_too(net: NetBench) -> None:
    channel, peer = net.ready_pair(net.options(idle_ns=5 * SECOND))
    channel.mute(mute.ADMIN)
    peer.send(frame(1))
    net.poll(2)
    net.clock.advance_ms(5000)
    net.poll()
    assert channel.close_cause is Cause.IDLE


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


# Ends.


def test_the_first_cause_wins_and_is_told_once(net: NetBench) -> None:
    channel, _ = net.ready_pair()
    channel.close(Cause.ADMIN, "because")
    channel.close(Cause.IDLE)
    net.poll(2)
    assert (channel.close_cause, channel.detail) == (Cause.ADMIN, "because")
    assert net.listener.words(channel).count("closed") == 1


def test_an_error_in_a_callback_closes_that_channel_only(net: NetBench) -> None:
    def fail(channel: Channel, run: Run) -> None:
        if channel is bad:
            raise RuntimeError("a bug")

    net.listener.on_run = fail
    bad, bad_peer = net.ready_pair()
    good, good_peer = net.ready_pair()
    bad_peer.send(frame(500)[:100])
    net.poll()
    bad_peer.send(frame(500)[100:])
    good_peer.send(frame(1))
    net.poll(2)
    assert (bad.close_cause, bad.detail) == (Cause.INTERNAL, "RuntimeError: a bug")
    assert good.frames_received == 1
    assert net.pool.used == 0
    (fault,) = net.selector.faults.take()
    assert fault[:3] == ("channel", 1, "RuntimeError: a bug")
    net.faults = 1


@pytest.mark.parametrize("word", ["ready", "sent", "end_of_stream", "muted"])
def test_an_error_in_any_callback_is_that_channels_end(net: NetBench, word: str) -> None:
    def fail(channel: Channel) -> None:
        raise RuntimeError("a bug")

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
    assert channel.close_cause is Cause.INTERNAL
    net.faults = 1


@pytest.mark.parametrize("when", ["received", "end_of_stream", "ready", "muted"])
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


def test_what_is_closed_lets_go_of_its_sink(net: NetBench) -> None:
    channel, peer = net.ready_pair()
    trace = trace_of(channel.sink)
    channel.close(Cause.ADMIN)
    assert net.selector.channel_count == 1
    net.poll()
    assert net.selector.channel_count == 0
    assert trace() is None
    assert peer.recv(1) == b""


def test_a_channel_closed_by_a_callback_never_comes_back_to_the_selector(net: NetBench) -> None:
    net.listener.on["muted"] = lambda channel: channel.close(Cause.ADMIN)
    channel, peer = net.ready_pair()
    peer.send(frame(10)[:6])
    net.poll()
    channel.mute(mute.ADMIN)
    peer.shutdown(socket.SHUT_WR)
    net.poll(2)
    assert net.listener.words(channel) == ["ready", "muted", "closed"]
    assert net.selector._handlers[channel.fd] is None


def test_a_refused_frame_is_not_counted_as_incomplete_too(net: NetBench) -> None:
    channel, peer = net.ready_pair()
    for part in (b"\xff\xff", b"\xff\xff"):
        peer.send(part)
        net.poll()
    assert (net.stats.refused_negative, net.stats.refused_incomplete, channel.lost_bytes) == (1, 0, 4)


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
