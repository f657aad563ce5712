"""framegate.proxy.network.channel: who is muted is not read, keeps its data in the socket, and does not spin."""

import socket

from framegate.proxy.cause import Cause
from framegate.proxy.network import mute
from framegate.proxy.network.mute import MuteState
from framegate.proxy.network.state import ChannelState
from tests.fakes.cases import each_of
from tests.fakes.network import NetBench, frame, net_bench, reset


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


@each_of("begun", [2, 6], fresh={"net": net_bench})
def test_an_operators_mute_lets_the_frame_begun_finish_and_reads_no_further(net: NetBench, begun: int) -> None:
    """A header begun is a frame begun."""
    channel, peer = net.ready_pair()
    peer.send(frame(10)[:begun])
    net.poll()
    assert not channel.mute(mute.ADMIN)
    assert channel.mutes.state is MuteState.MUTING
    peer.send(frame(10)[begun:] + frame(2))
    net.poll(5)
    assert net.listener.words(channel)[1:] == ["received", "muted"]
    assert (channel.frames_received, channel.bytes_received, channel.mute_in_force, channel.leased) == (1, 14, True, 0)
    channel.unmute(mute.ADMIN)
    net.poll()
    assert channel.frames_received == 2


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


@each_of("causes", [0, mute.ADMIN | mute.MEMORY], fresh={"net": net_bench})
def test_discarded_input_is_not_delivered_and_the_end_is_told(net: NetBench, causes: int) -> None:
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
    assert channel.read_half.has_no_input()
    assert (channel.frames_received, channel.bytes_received, channel.state) == (1, 13, ChannelState.WRITE_ENDED)
    peer.close()
    net.poll_until(lambda: channel.state is ChannelState.ENDED)
    assert [word for word in net.listener.words(channel) if word not in ("muted", "write_ended")] == ["ready", "received", "end_of_stream"]
    assert (channel.lost_bytes, net.listener.data[channel]) == (6, frame(3))


def test_nothing_is_read_off_after_the_end(net: NetBench) -> None:
    channel, peer = net.ready_pair()
    peer.close()
    net.poll_until(lambda: channel.state is ChannelState.READ_ENDED)
    channel.discard_input(mute.DRAIN)
    assert (channel.read_half.discards, channel.mute_causes) == (False, 0)


@each_of("discards", [False, True], fresh={"net": net_bench})
def test_a_peer_that_is_gone_does_not_make_a_muted_channel_spin(net: NetBench, discards: bool) -> None:
    """Its frames come when the mute ends, or are discarded; then the end is told."""
    channel, peer = net.ready_pair()
    channel.mute(mute.ADMIN)
    peer.send(frame(1) * 20)
    peer.close()
    net.poll(2)
    assert channel.hung
    handled = net.stats.reads
    net.poll(10)
    assert (net.stats.reads, channel.state) == (handled, ChannelState.READY)
    if discards:
        channel.discard_input(mute.DRAIN)
    else:
        channel.unmute(mute.ADMIN)
        assert not channel.hung
    net.poll(6)
    assert (channel.frames_received, channel.state) == (0 if discards else 20, ChannelState.READ_ENDED)
    assert net.listener.words(channel).count("end_of_stream") == 1


@each_of("reads_off", [False, True], fresh={"net": net_bench})
def test_a_reset_is_noticed_while_muted_or_read_off(net: NetBench, reads_off: bool) -> None:
    channel, peer = net.ready_pair(tcp=True)
    if reads_off:
        channel.discard_input(mute.DRAIN)
    else:
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
