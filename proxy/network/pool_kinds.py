"""The kinds of memory pool: ``bounded``, ``unbounded`` and ``leak_finding``. Chosen where a pool is made; no kind costs the others anything."""

from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from framegate.proxy.network.leak_finding import LeakFindingPool
from framegate.proxy.network.memory_pool import Account, MemoryPool

__all__ = ["UnboundedPool", "make_pool"]

NO_LINE: Final = 1 << 62


class UnboundedPool(MemoryPool):
    """Counts what is held, and is never short: nobody waits, and nobody is closed for what it holds. Nothing is guaranteed: nothing runs out."""

    def account(self, percent: int) -> Account:
        return super().account(0)

    def _set_lines(self) -> None:
        super()._set_lines()
        self.line = NO_LINE
        self.answer_line = NO_LINE


def make_pool(kind: str, size: i64, now_ns: Callable[[], int]) -> MemoryPool:
    """A pool of a kind.

    Raises:
        ValueError: there is no such kind, or the size is not positive.
    """
    if kind == "bounded":
        return MemoryPool(size, now_ns)
    if kind == "unbounded":
        return UnboundedPool(size, now_ns)
    if kind == "leak_finding":
        return LeakFindingPool(size, now_ns)
    raise ValueError(f"no kind of memory pool is called {kind}")
