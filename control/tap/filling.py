"""When the disk of the tap will be full, from what has come in the last ten minutes."""

from collections import deque
from typing import Final

EACH_S: Final = 10.0
SPAN_S: Final = 600.0
LEAST_S: Final = 60.0  # before that nothing is said


class Filling:
    """Watches the free bytes of a disk, and the bytes of a log on it that stops growing at its budget. ``budget``: of the log."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._seen: deque[tuple[float, int, int]] = deque(maxlen=int(SPAN_S / EACH_S) + 1)

    def see(self, now_s: float, free: int, usage: int) -> float | None:
        """Note what is there now; returns how many seconds it takes until the disk is full, None if it does not fill.

        Args:
            now_s: a monotonic clock.
            free: bytes of the disk.
            usage: bytes of the log.
        """
        if not self._seen or now_s - self._seen[-1][0] >= EACH_S:
            self._seen.append((now_s, free, usage))
        then_s, free_then, usage_then = self._seen[0]
        span_s = now_s - then_s
        if span_s < LEAST_S:
            return None
        log = max(usage - usage_then, 0) / span_s
        others = (free_then - free) / span_s - log
        room = self._budget - usage
        if log > 0 and log + others > 0 and free / (log + others) <= room / log:
            return free / (log + others)
        until_s = max(room, 0) / log if log > 0 else 0.0  # then the log grows no more
        left = free - (log + others) * until_s
        return until_s + left / others if others > 0 else None
