"""The sizes of the frames that clients sent in the last 15 minutes, to say what a lower limit would have refused.

The processors count frames by size, in few ranges (``SIZE_BOUNDS``), since their start. This module keeps the counts of every 15 s; the difference of
now to the oldest is what was received since. Of the range that contains a limit it is not known how many frames are above it.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from framegate.proxy.cells import LISTENER, CellReader
from framegate.proxy.cells.metric import SIZE_BOUNDS

KEPT_S: Final = 900.0
EVERY_S: Final = 15.0
_METRIC: Final = "framegate.frame.size"
_SIDE: Final = "downstream"
Counts = dict[str, tuple[int, ...]]


class Forecast(NamedTuple):
    """What a limit would have refused: from ``least`` to ``most`` of ``frames``, which clients sent within ``window_s`` seconds."""

    window_s: float
    frames: int
    least: int
    most: int


class Sizes:
    """Keeps counts by size of each listener. Event loop only. ``clock_s``: monotonic."""

    def __init__(self, readers: Callable[[], Sequence[tuple[int, CellReader]]], clock_s: Callable[[], float] = time.monotonic) -> None:
        self._readers = readers
        self._clock_s = clock_s
        self._kept: deque[tuple[float, Counts]] = deque([(clock_s(), self._counts())], maxlen=int(KEPT_S / EVERY_S))

    def look(self) -> None:
        """Keep the present counts, if the last ones are old enough."""
        now_s = self._clock_s()
        if now_s - self._kept[-1][0] >= EVERY_S:
            self._kept.append((now_s, self._counts()))

    def forecast(self, listener: str, limit: int) -> Forecast:
        """What a limit would have refused of the frames of a listener's clients that were received."""
        began_s, before = self._kept[0]
        now = self._counts().get(listener, ())
        earlier = before.get(listener, (0,) * len(now))
        counts = [max(count - known, 0) for count, known in zip(now, earlier, strict=True)]
        lower = (-1, *SIZE_BOUNDS)
        upper = (*SIZE_BOUNDS, math.inf)
        least = sum(count for count, low in zip(counts, lower, strict=False) if low >= limit)
        most = sum(count for count, high in zip(counts, upper, strict=False) if high > limit)
        return Forecast(self._clock_s() - began_s, sum(counts), least, most)

    def _counts(self) -> Counts:
        found: Counts = {}
        for _, reader in self._readers():
            cells = reader.cells()
            for name in reader.layout.names(LISTENER):
                start = reader.layout.index(_METRIC, _SIDE, name)
                counts = cells[start : start + len(SIZE_BOUNDS) + 1]
                found[name] = tuple(map(sum, zip(found[name], counts, strict=True))) if name in found else tuple(counts)
        return found
