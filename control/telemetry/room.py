"""How many spans, or log records, may wait until the collector has them. What finds no room is dropped and counted, and nobody waits.

The SDK's batch processors have a bound, too, but drop the oldest behind everybody's back; here the newest goes, as the specification has it, and the
count is exact. Their queues are as large as the room, so they are never full.
"""

import os
import threading
from collections.abc import Callable

__all__ = ["Room", "queue_size"]


def queue_size(prefix: str) -> int:
    """As the SDK's batch processor reads it: ``BSP`` for spans, ``BLRP`` for log records."""
    return int(os.environ.get(f"OTEL_{prefix}_MAX_QUEUE_SIZE") or 2_048)


class Room:
    """Counts what waits. Any thread.

    Args:
        most: what fits.
        dropped: is told how many found no room. It must not block.
    """

    def __init__(self, most: int, dropped: Callable[[int], None]) -> None:
        assert most > 0, "a queue that holds nothing has nothing to give"
        self._most = most
        self._dropped = dropped
        self._used = 0
        self._lock = threading.Lock()

    @property
    def used(self) -> int:
        """How many wait, those that are just being sent included."""
        return self._used

    def take(self, count: int = 1) -> int:
        """Take places; how many of them there were. The others are counted as dropped."""
        with self._lock:
            taken = min(count, self._most - self._used)
            self._used += taken
        if taken < count:
            self._dropped(count - taken)
        return taken

    def free(self, count: int) -> None:
        """Give places back."""
        with self._lock:
            self._used -= count
            assert self._used >= 0, "more was given back than was taken"
