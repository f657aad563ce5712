"""Sockets that came too often, kept open for a while and then closed: closing them at once would invite the next try at once.

A heap with the nearest end first, bounded: each takes a descriptor. Nothing is read from them, and no processor sees them.
"""

import heapq
import os
from typing import Final

__all__ = ["MAX_PARKED", "DelayedClose", "close_descriptor"]

MAX_PARKED: Final = 1_000


class DelayedClose:
    """Descriptors, each with the time at which it is closed. One thread's, but for ``len``."""

    def __init__(self, most: int = MAX_PARKED) -> None:
        self._most: Final = most
        self._heap: Final[list[tuple[int, int]]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, descriptor: int, due_ns: int) -> bool:
        """Keep a descriptor, which is closed here from now on; False, and it is not ours, when there are enough."""
        if len(self._heap) >= self._most:
            return False
        heapq.heappush(self._heap, (due_ns, descriptor))
        return True

    @property
    def next_ns(self) -> int | None:
        """When the first is to be closed; None: there is none."""
        return self._heap[0][0] if self._heap else None

    def close_due(self, now_ns: int) -> None:
        """Close those that are due."""
        while self._heap and self._heap[0][0] <= now_ns:
            close_descriptor(heapq.heappop(self._heap)[1])

    def close(self) -> None:
        """Close all."""
        while self._heap:
            close_descriptor(self._heap.pop()[1])


def close_descriptor(descriptor: int) -> None:
    """Close one."""
    try:
        os.close(descriptor)
    except OSError:  # the kernel may report what became of the connection; the descriptor is gone all the same
        return
