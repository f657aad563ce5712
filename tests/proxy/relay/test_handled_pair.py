"""What the two legs of a handled pair share."""

from collections.abc import Callable

from tests.fakes.handled import HandledWorld, leg_of
from tests.proxy.relay.conftest import finish, with_pair


def test_the_legs_share_what_is_known_of_the_pair_and_let_it_go_when_it_is_over(make_handled: Callable[..., HandledWorld]) -> None:
    """Two that hold each other would stay until the garbage collector finds them."""
    world, _, *sockets, pair = with_pair(make_handled(upstream=True))
    client, upstream = leg_of(pair, 0), leg_of(pair, 1)
    handled = client.handled
    assert (handled, handled.leg(0), handled.leg(1)) == (upstream.handled, client, upstream)
    assert (client.direction, upstream.direction, handled.number) == (0, 1, pair.id)
    finish(world, *sockets)
    assert handled.pair is None
