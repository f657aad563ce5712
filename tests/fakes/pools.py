"""The memory pool of a test's own selector. ``FRAMEGATE_TEST_POOL`` names its kind: with ``leak_finding`` any suite looks for leaks, too."""

import os
from collections.abc import Callable
from typing import Final

from framegate.proxy.network.memory_pool import MemoryPool
from framegate.proxy.network.pool_kinds import LeakFindingPool, make_pool

KIND: Final = os.environ.get("FRAMEGATE_TEST_POOL", "bounded")


def pool_of(size: int, now_ns: Callable[[], int]) -> MemoryPool:
    """A pool of the kind that this run of the tests asks for."""
    return make_pool(KIND, size, now_ns)


def found_in(pool: MemoryPool) -> list[str]:
    """What a pool that finds leaks has found; nothing of other kinds."""
    return pool.found if isinstance(pool, LeakFindingPool) else []
