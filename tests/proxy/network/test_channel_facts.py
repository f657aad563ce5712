"""proxy.network.channel_facts: what can be read of a channel at each point of its life."""

from proxy.network import mute
from proxy.network.cause import Cause
from proxy.network.run import Run
from proxy.network.state import ChannelState
from tests.fakes.network import frame, net_bench


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
        assert (channel.staged, channel.is_receiving, channel.last_active_ns) == (50, True, net.clock.now)
        channel.mute(mute.PEER)
        assert (channel.is_receiving, channel.mute_causes, channel.mute_in_force, channel.mute_count) == (False, mute.PEER, True, 1)
        assert (channel.muted_ns(mute.PEER), channel.muted_ns(mute.ADMIN)) == (net.clock.now, 0)
        data = frame(900_000)
        channel.send(Run(None, 0, data, 0, len(data), 1, 0))
        assert (channel.is_sending, channel.can_send, channel.send_number) == (True, False, 1)
        assert channel.pending_send + channel.wire_sent == len(data)
        assert channel.leased > channel.pending_send
        assert channel.leased == channel.booked_begun + channel.booked_pending + channel.booked_tls
        assert (channel.booked_begun, channel.booked_tls) == (net.selector.pool.begun, 0)
        assert (channel.booked_pending, channel.booked_begun) == (net.selector.pool.pending, net.selector.pool.used - net.selector.pool.pending)
        since = net.clock.now
        assert channel.first_muted_ns == since
        net.clock.advance_ms(5)
        channel.mute(mute.ADMIN)
        assert channel.first_muted_ns == since
        channel.unmute(mute.ADMIN)
        net.clock.advance_ms(5)
        net.poll()
        channel.close(Cause.ADMIN, "because")
        assert (channel.is_open, channel.can_send, channel.leased, channel.mute_causes) == (False, False, 0, 0)
        assert (channel.closed_in, channel.lost_bytes, channel.closed_ns) == (ChannelState.READY, 50, net.clock.now)
        assert channel.unsent_bytes + channel.wire_sent == len(data)
        assert (channel.first_muted_ns, net.selector.pool.pending) == (0, 0)
        assert channel.mute_summary() == {"admin": {"count": 1, "ns": 0}, "peer": {"count": 1, "ns": 10_000_000}}
