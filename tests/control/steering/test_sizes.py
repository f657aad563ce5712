"""framegate.control.steering.sizes: what a limit would have refused of the frames of the last 15 minutes."""

from framegate.control.steering.sizes import EVERY_S, KEPT_S, Forecast, Sizes
from framegate.proxy.cells.metric import SIZE_BOUNDS
from tests.fakes.cells import fill
from tests.fakes.plane import FakePlane, fake_config

KIB = 1024


class Bench:
    """Sizes over the cells of a plane with two processors, on a clock."""

    def __init__(self) -> None:
        self.plane = FakePlane(fake_config("unix:/nowhere/admin.sock"))
        self.now_s = 100.0
        self.counts = [[0] * (len(SIZE_BOUNDS) + 1) for _ in range(2)]
        self.sizes = Sizes(lambda: self.plane.cells, lambda: self.now_s)

    def receive(self, slot: int, bucket: int, count: int) -> None:
        self.counts[slot][bucket] += count
        fill(self.plane, slot, {("framegate.frame.size", "downstream", "kafka"): self.counts[slot]})

    def pass_time(self, seconds: float) -> None:
        """With a look twice a second."""
        for _ in range(int(seconds * 2)):
            self.now_s += 0.5
            self.sizes.look()


def test_frames_of_ranges_above_a_limit_are_refused_and_those_of_its_own_range_may_be() -> None:
    bench = Bench()
    for slot, bucket, count in ((0, 0, 1), (0, 2, 10), (1, 2, 10), (1, 3, 100), (0, 11, 1000)):  # to 256 B, to 4 KiB, to 16 KiB, above 256 MiB
        bench.receive(slot, bucket, count)
    bench.pass_time(10)
    for limit, least, most in (
        (0, 1120, 1121),
        (255, 1120, 1121),
        (256, 1120, 1120),
        (1 * KIB, 1120, 1120),
        (1 * KIB + 1, 1100, 1120),
        (4 * KIB - 1, 1100, 1120),
        (4 * KIB, 1100, 1100),
        (16 * KIB, 1000, 1000),
        (256 * KIB * KIB, 1000, 1000),
        (256 * KIB * KIB + 1, 0, 1000),
    ):
        assert bench.sizes.forecast("kafka", limit) == Forecast(10.0, 1121, least, most), limit
    assert bench.sizes.forecast("plain", 0) == Forecast(10.0, 0, 0, 0)
    assert bench.sizes.forecast("added meanwhile", 0) == Forecast(10.0, 0, 0, 0)
    bench.plane.close()


def test_only_the_last_fifteen_minutes_count_and_no_more_is_kept() -> None:
    bench = Bench()
    bench.receive(0, 2, 5)
    bench.pass_time(KEPT_S - EVERY_S)
    assert bench.sizes.forecast("kafka", 0).frames == 5
    bench.pass_time(EVERY_S)
    assert bench.sizes.forecast("kafka", 0).frames == 0
    bench.receive(0, 2, 7)
    bench.pass_time(3 * KEPT_S)
    found = bench.sizes.forecast("kafka", 0)
    assert (found.frames, KEPT_S - 2 * EVERY_S <= found.window_s <= KEPT_S) == (0, True)
    bench.receive(0, 2, 3)
    assert bench.sizes.forecast("kafka", 0).frames == 3
    bench.plane.close()
