"""framegate.proxy.network.read_half and write_half: what can be read of a channel at each point of its life."""

import itertools

from framegate.proxy.cause import Cause
from framegate.proxy.network import mute
from framegate.proxy.network.state import ChannelState
from tests.fakes.cases import each_of
from tests.fakes.network import frame, net_bench, run_of


def test_the_facts_of_a_life() -> None:
    with net_bench() as net:
        channel, peer = net.pair()
        assert (channel.is_open, channel.can_send, channel.state, channel.ready_ns) == (False, False, ChannelState.HANDSHAKE, 0)
        net.clock.advance_ms(5)
        net.poll()
        assert (channel.is_open, channel.can_send, channel.principal) == (True, True, "ANONYMOUS")
        assert channel.ready_ns - channel.opened_ns == 5_000_000
        peer.send(frame(100)[:50])
        net.clock.advance_ms(5)
        net.poll()
        assert (channel.staged, channel.read_half.is_receiving, channel.last_active_ns) == (50, True, net.clock.now)
        channel.mute(mute.PEER)
        assert (channel.read_half.is_receiving, channel.mute_causes, channel.mute_in_force, channel.mutes.count) == (False, mute.PEER, True, 1)
        assert (channel.mutes.since_ns(mute.PEER), channel.mutes.since_ns(mute.ADMIN)) == (net.clock.now, 0)
        data = frame(900_000)
        channel.send(run_of(data))
        assert (channel.write_half.is_sending, channel.can_send, channel.write_half.pending.number) == (True, False, 1)
        assert channel.pending_send + channel.write_half.wire_sent == len(data)
        assert channel.leased > channel.pending_send
        assert channel.leased == channel.read_half.receive.booked + channel.write_half.pending.booked + channel.write_half.booked_tls
        assert (channel.read_half.receive.booked, channel.write_half.booked_tls) == (net.selector.pool.begun, 0)
        assert (channel.write_half.pending.booked, channel.read_half.receive.booked) == (
            net.selector.pool.pending,
            net.selector.pool.used - net.selector.pool.pending,
        )
        since = net.clock.now
        assert channel.mutes.first_ns == since
        net.clock.advance_ms(5)
        channel.mute(mute.ADMIN)
        assert channel.mutes.first_ns == since
        channel.unmute(mute.ADMIN)
        net.clock.advance_ms(5)
        net.poll()
        channel.close(Cause.ADMIN, "because")
        assert (channel.is_open, channel.can_send, channel.leased, channel.mute_causes) == (False, False, 0, 0)
        assert (channel.lost_bytes, channel.closed_ns) == (50, net.clock.now)
        assert channel.unsent_bytes + channel.write_half.wire_sent == len(data)
        assert (channel.mutes.first_ns, net.selector.pool.pending) == (0, 0)
        assert [channel.mutes.of(mute.position(cause)) for cause in (mute.ADMIN, mute.PEER)] == [(1, 0), (1, 10_000_000)]


def test_what_is_urgent_is_read_while_memory_is_short() -> None:
    with net_bench(pool=1 << 20) as net:
        channel, peer = net.ready_pair()
        net.pool.common.charge(0, 2 << 20)
        net.listener.room = (0, False)
        peer.send(frame(100))
        net.poll(3)
        assert channel not in net.listener.frames
        channel.unmute(mute.PEER)
        channel.read_half.is_urgent = True
        net.poll(2)
        assert net.listener.frames[channel] == 1
        net.pool.common.release(0, 2 << 20)


@each_of("most", [1, 7, 26, 27, 1000])
def test_a_gated_read_has_no_more_than_the_sink_says(most: int) -> None:
    with net_bench() as net:
        channel, peer = net.ready_pair()
        channel.gated = True
        net.listener.most = most
        data = frame(3) * 10
        peer.send(data)
        net.poll_until(lambda: channel.frames_received == 10, step_ms=1)
        assert net.listener.data[channel] == data
        assert net.listener.reads == [min(most * (number + 1), len(data)) for number in range(-(-len(data) // most))], "told of each"
        net.listener.most = 1 << 20
        channel.gated = False
        peer.send(data * 100)
        net.poll(2)
        assert channel.frames_received == 1010, "and what suits the traffic is not forgotten"


def test_a_limit_of_none_is_one_frame() -> None:
    with net_bench() as net:
        channel, peer = net.ready_pair()
        channel.gated = True
        net.listener.most = 0
        peer.send(frame(3) + frame(0) + frame(70_000) + frame(5))
        seen: list[int] = []
        for _ in range(40):
            net.poll()
            seen.append(int(channel.frames_received))
        assert seen[-1] == 4
        assert max(after - before for before, after in itertools.pairwise(seen)) == 1


def test_a_throttled_channel_reads_the_frame_begun_and_the_sink_is_told() -> None:
    with net_bench() as net:
        channel, peer = net.ready_pair()
        channel.gated = True
        net.listener.most = 10
        peer.send(frame(20) + frame(1))
        net.poll()
        assert (channel.staged, net.listener.reads) == (10, [10])
        assert not channel.mute(mute.THROTTLE)
        net.poll(3)
        assert (channel.frames_received, net.listener.reads[-1], channel.mute_in_force) == (1, 24, True)
        net.poll(3)
        assert net.listener.reads[-1] == 24
        channel.unmute(mute.THROTTLE)
        net.poll(2)
        assert (channel.frames_received, net.listener.reads[-1]) == (2, 29)


def test_a_sink_is_told_of_the_end_and_of_a_read_that_closed() -> None:
    with net_bench() as net:
        channel, peer = net.ready_pair()
        channel.gated = True
        peer.send(frame(1))
        peer.close()
        net.poll(3)
        assert net.listener.reads == [5, 5]
        other, peer = net.ready_pair()
        other.gated = True
        net.listener.on["received"] = lambda channel: channel.close(Cause.ADMIN)
        peer.send(frame(1))
        net.poll(2)
        assert net.listener.reads == [5, 5, 5]
