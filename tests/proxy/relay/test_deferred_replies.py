"""Replies that wait in the handler process: announced, asked for when there is memory, and here."""

from collections.abc import Iterator

import pytest

from framegate.proxy.network.memory_pool import BEGUN, MemoryPool
from framegate.proxy.network.selector import Selector
from framegate.proxy.relay.deferred_replies import DeferredReplies
from framegate.proxy.relay.handler_wire import WireError
from tests.fakes.clock import FakeClock

MIB = 1 << 20
SIZE = 8 * MIB


class Bench:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.pool = MemoryPool(16 * MIB, self.clock.now_ns)
        self.selector = Selector(self.clock, self.pool)
        self.asked: list[int] = []
        self.replies = DeferredReplies(self.asked.append, self.pool, self.selector)

    def poll(self) -> None:
        self.selector.poll(0)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.replies.drop()
    made.selector.close()


def test_a_reply_is_announced_once_and_asked_for_before_it_comes_at_once_if_there_is_memory(bench: Bench) -> None:
    with pytest.raises(WireError, match="not asked for"):
        bench.replies.came(15, SIZE)
    bench.replies.announce(15, SIZE)
    assert bench.asked == [15]
    with pytest.raises(WireError, match="two replies"):
        bench.replies.announce(15, SIZE)
    bench.replies.came(15, SIZE)
    with pytest.raises(WireError, match="not asked for"):
        bench.replies.came(15, SIZE)


def test_what_there_is_no_memory_for_waits_until_another_was_taken(bench: Bench) -> None:
    bench.pool.common.charge(BEGUN, 16 * MIB, bench)
    for connection in (1, 2, 3):
        bench.replies.announce(2 * connection, SIZE)
    first = list(bench.asked)
    assert len(first) <= 1, "the reserve is for one"
    bench.pool.common.release(BEGUN, 16 * MIB, bench)
    done = 0
    for _ in range(4):
        bench.poll()
        for key in bench.asked[done:]:
            bench.replies.came(key, SIZE)
            done += 1
        bench.replies.end_slots()
    assert sorted(bench.asked) == [2, 4, 6]


def test_what_waits_is_forgotten_and_what_was_asked_for_comes_all_the_same(bench: Bench) -> None:
    bench.pool.common.charge(BEGUN, 16 * MIB, bench)
    for connection in (1, 2):
        bench.replies.announce(2 * connection, SIZE)
    asked = {key // 2 for key in bench.asked}
    for connection in (1, 2, 3):
        bench.replies.forget(connection)
    for connection in (1, 2):
        if connection in asked:
            bench.replies.came(2 * connection, SIZE)
        else:
            with pytest.raises(WireError):
                bench.replies.came(2 * connection, SIZE)
    bench.pool.common.release(BEGUN, 16 * MIB, bench)
