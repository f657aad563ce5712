"""framegate.proxy.network.stats: everything starts at zero, and arrays are not shared."""

import bisect

from framegate.proxy.cells import FIRST_POWERS
from framegate.proxy.network.framing import SIZE_BUCKETS
from framegate.proxy.network.mute import CAUSE_COUNT
from framegate.proxy.network.stats import Histogram, SideStats


def test_counters_start_at_zero_and_are_each_sides_own() -> None:
    first, second = SideStats(), SideStats()
    first.frame_sizes[0] += 1
    first.mutes[0] += 1
    assert list(second.frame_sizes) == [0] * SIZE_BUCKETS
    assert list(second.mutes) == list(second.mute_ns) == list(second.muted) == [0] * CAUSE_COUNT
    assert next(iter(first.frame_sizes)) == 1


def test_a_duration_equal_to_a_bound_belongs_to_it() -> None:
    histogram = Histogram((0.001, 0.01))
    for duration_ns in (0, 1_000_000, 1_000_001, 10_000_000, 10_000_001):
        histogram.observe(duration_ns)
    assert list(histogram.buckets) == [2, 2, 1]
    assert (histogram.count, histogram.sum) == (5, 22_000_002)


def test_many_equal_durations_count_as_if_each_were_observed() -> None:
    one, many = Histogram((0.001, 0.01)), Histogram((0.001, 0.01))
    for _ in range(64):
        one.observe(5_000_000)
    many.observe(5_000_000, 64)
    assert (list(one.buckets), one.count, one.sum) == (list(many.buckets), many.count, many.sum) == ([0, 64, 0], 64, 320_000_000)


def test_buckets_are_each_ones_own() -> None:
    first, second = Histogram((1.0,), 3), Histogram((1.0,), 6)
    first.observe(1)
    assert (list(second.buckets), second.count, first.offset, second.offset) == ([0, 0], 0, 3, 6)


def test_fine_buckets_are_found_as_by_a_search() -> None:
    for bounds_s in FIRST_POWERS:
        bounds = [round(bound * 1e9) for bound in bounds_s]
        for duration_ns in {0, -1, 1, bounds[-1] * 3, 1 << 60, *(bound + step for bound in bounds for step in (-1, 0, 1))}:
            histogram = Histogram(bounds_s)
            histogram.observe(duration_ns)
            assert list(histogram.buckets).index(1) == bisect.bisect_left(bounds, duration_ns), duration_ns
