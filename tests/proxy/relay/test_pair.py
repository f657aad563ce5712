"""A pair as a whole: one row, and nothing left. Each test ends with the pool whole and every gauge zero."""

import gc

from tests.fakes.world import frame
from tests.proxy.relay.conftest import passes


def test_a_closed_pair_leaves_nothing_for_the_garbage_collector(world):
    client, upstream, pair = world.pair()
    passes(world, client, upstream, frame(b"abc"))
    while gc.collect():  # what earlier tests left may leave more when it is collected
        pass
    gc.disable()
    try:
        client.close()
        upstream.close()
        del pair
        world.until(lambda: world.rows)
        assert gc.collect() == 0
    finally:
        gc.enable()
