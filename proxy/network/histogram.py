"""Durations in buckets: what somebody measures on the way of the traffic, copied into the shared cells by who publishes."""

from typing import Final

from librt.vecs import append, vec
from mypy_extensions import i64

__all__ = ["Histogram"]


class Histogram:
    """Durations in ns, counted into buckets. One thread observes.

    Args:
        bounds_s: ascending upper bounds in seconds, inclusive; one more bucket lies above them.
        offset: where its cells lie in its block: the buckets, then the sum.

    Attributes:
        buckets: counts that do not add up over bounds.
        count, sum: of all durations: how many, and ns.
        offset: as above.
    """

    def __init__(self, bounds_s: tuple[float, ...], offset: i64 = 0) -> None:
        zero: i64 = 0
        buckets = vec[i64]([0])
        for _ in bounds_s:
            buckets = append(buckets, zero)
        self.buckets: vec[i64] = buckets
        self.count: i64 = 0
        self.sum: i64 = 0
        self.offset: Final[i64] = offset
        self._bounds: vec[i64] = vec[i64]([round(bound * 1e9) for bound in bounds_s])

    def observe(self, duration_ns: i64, times: i64 = 1) -> None:
        """Count one duration, or so many equal ones."""
        bucket: i64 = 0
        bounds = self._bounds
        while bucket < len(bounds) and duration_ns > bounds[bucket]:
            bucket += 1
        self.buckets[bucket] += times
        self.count += times
        self.sum += duration_ns * times
