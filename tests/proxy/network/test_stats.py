"""framegate.proxy.network.stats: everything starts at zero, and arrays are not shared."""

from framegate.proxy.network.framing import SIZE_BUCKETS
from framegate.proxy.network.mute import CAUSE_COUNT
from framegate.proxy.network.stats import SideStats


def test_counters_start_at_zero_and_are_each_sides_own() -> None:
    first, second = SideStats(), SideStats()
    first.frame_sizes[0] += 1
    first.mutes[0] += 1
    assert list(second.frame_sizes) == [0] * SIZE_BUCKETS
    assert list(second.mutes) == list(second.mute_ns) == list(second.muted) == [0] * CAUSE_COUNT
    assert next(iter(first.frame_sizes)) == 1
