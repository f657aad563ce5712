"""A pair as a whole: one row, and nothing left. Each test ends with the pool whole and every gauge zero."""

import gc

from tests.fakes.world import frame


def test_a_closed_pair_leaves_nothing_for_the_garbage_collector(world):
    client, upstream, pair = world.pair()
    client.sendall(frame(b"abc"))
    world.read(upstream, 7)
    gc.collect()
    gc.disable()
    try:
        client.close()
        upstream.close()
        del pair
        world.until(lambda: world.rows)
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_every_end_leaves_exactly_one_row(world):
    for _ in range(3):
        client, upstream, _ = world.pair()
        client.close()
        upstream.close()
    world.until(lambda: len(world.rows) == 3)
    assert len({row["id"] for row in world.rows}) == 3
