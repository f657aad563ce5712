"""A leg is the sink of its channel. What it passes on is tested with the pair; here: whose it is."""

from framegate.proxy.network.channel_sink import ChannelSink
from framegate.proxy.relay.leg import RelayLeg


def test_both_channels_of_a_pair_tell_their_own_leg(world):
    _, upstream, pair = world.pair()
    for leg, other in ((pair.client, pair.upstream), (pair.upstream, pair.client)):
        assert {RelayLeg, ChannelSink} <= set(type(leg).__mro__)
        assert (leg.other, leg.channel.sink) == (other, leg)
    upstream.close()
