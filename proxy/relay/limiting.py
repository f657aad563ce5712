"""Which quotas hold for each leg of a pair: asked when its channel is READY, and again when other limits come into force; none from the end on.

A channel is gated while a quota holds for it, or a tap whose full log is to stop it: see ``Leg.gates_reads``.
"""

from framegate.proxy.network.channel import Channel
from framegate.proxy.relay.pair import Leg, Pair
from framegate.proxy.relay.state import PairState

__all__ = ["follow", "limit", "release"]


def limit(pair: Pair, leg: Leg, channel: Channel) -> None:
    """Have the quotas in force hold for a leg whose channel is READY."""
    quotas = pair.owner.quotas
    client = pair.client.channel
    if client is None or (not quotas.active and leg.throttle is None):
        return
    leg.throttle = quotas.join(leg.throttle, channel, pair.route.listener, client.peer, requests=leg.is_client)
    if pair.route.upstream is None:
        leg.throttle = quotas.join(leg.throttle, channel, pair.route.listener, client.peer, requests=False, answers=True)
    channel.gated = leg.gates_reads()


def follow(pair: Pair) -> None:
    """Other limits are in force: have them hold for an open pair."""
    if pair.state is PairState.CLOSING or pair.state is PairState.CLOSED:
        return
    for leg in (pair.client, pair.upstream):
        if leg.channel is not None and leg.channel.ready_ns != 0:
            limit(pair, leg, leg.channel)


def release(pair: Pair, leg: Leg, channel: Channel) -> None:
    """The pair ends: what a leg read is paid for, and nothing throttles it. Harmless when that is so."""
    throttle = leg.throttle
    if throttle is not None:
        pair.owner.quotas.leave(throttle)
        throttle.let_go(throttle.holders)
        channel.gated = leg.gates_reads()
