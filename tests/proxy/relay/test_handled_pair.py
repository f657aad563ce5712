"""What the two legs of a handled pair share."""

from collections.abc import Callable

from tests.fakes.handled import HandledWorld, leg_of
from tests.proxy.relay.conftest import finish


def test_the_legs_share_what_is_known_of_the_pair(make_handled: Callable[..., HandledWorld]) -> None:
    world = make_handled(upstream=True)
    _, _, pair = world.pair()
    client, upstream = leg_of(pair, 0), leg_of(pair, 1)
    assert client.handled is upstream.handled
    assert (client.handled.leg(0), client.handled.leg(1)) == (client, upstream)
    assert (client.direction, upstream.direction, client.handled.number) == (0, 1, pair.id)


def test_a_pair_that_is_over_is_let_go(make_handled: Callable[..., HandledWorld]) -> None:
    """Two that hold each other would stay until the garbage collector finds them."""
    world = make_handled()
    world.process()
    client, pair = world.served()
    handled = leg_of(pair).handled
    finish(world, client)
    assert handled.pair is None
