"""framegate.control.steering.tap_losses: rows when the tap begins to lose frames, each minute, and when that is over."""

from typing import cast

from framegate.control.steering.tap_losses import EACH_S, OVER_S, TapLosses
from framegate.proxy.cells import CellReader
from tests.fakes.fleet import MemoryLog


class Cells:
    """Of one processor: what it dropped, by reason."""

    def __init__(self) -> None:
        self.dropped: dict[str, int] = {}

    def cell(self, name: str, reason: str) -> int:
        assert name == "framegate.tap.dropped"
        return self.dropped.get(reason, 0)


class Bench:
    def __init__(self) -> None:
        self.now = 1000.0
        self.low = ""
        self.slots = [Cells(), Cells()]
        self.log = MemoryLog()
        readers = [(number, cast(CellReader, cells)) for number, cells in enumerate(self.slots)]
        self.losses = TapLosses(lambda: readers, self.log, "/tap", lambda: self.low, lambda: self.now)

    def after(self, seconds: float, slot: int = 0, **dropped: int) -> list[tuple[str, dict[str, int], float]]:
        """The rows that a look then writes."""
        self.now += seconds
        for reason, count in dropped.items():
            self.slots[slot].dropped[reason] = self.slots[slot].dropped.get(reason, 0) + count
        known = len(self.log.rows)
        self.losses.look()
        return [(row["event"], row["frames"], row["seconds"]) for row in self.log.rows[known:]]


def test_a_loss_is_told_when_it_begins_each_minute_and_when_it_is_over() -> None:
    bench = Bench()
    assert (bench.after(1), bench.losses.losing, bench.losses.troubles) == ([], False, [])
    assert bench.after(1, disk_full=5) == [("tap_losing", {"disk_full": 5}, 0.0)]
    assert bench.losses.losing
    assert bench.after(1, slot=1, queue_full=2) == []
    assert bench.after(7, disk_full=1) == []
    for _ in range(6):
        assert bench.after(8, disk_full=10) == []
    assert bench.after(EACH_S - 56, disk_full=10) == [("tap_losing", {"queue_full": 2, "disk_full": 71}, EACH_S)]
    assert bench.losses.troubles == ["the tap loses frames, for 60 s: 2 queue_full, 76 disk_full; gaps in its log say how many"]
    assert bench.after(OVER_S - 0.1) == []
    assert bench.after(0.1) == [("tap_losing_ended", {"queue_full": 2, "disk_full": 76}, EACH_S)]
    assert (bench.losses.losing, bench.losses.troubles, bench.after(100)) == (False, [], [])
    assert bench.after(1, disk_error=1) == [("tap_losing", {"disk_error": 1}, 0.0)], "the next one is another"


def test_a_loss_that_is_not_over_when_framegate_stops_is_told_with_all_that_was_lost() -> None:
    bench = Bench()
    bench.after(1, disk_full=5)
    bench.slots[1].dropped["disk_full"] = 7
    bench.now += 2
    bench.losses.close()
    bench.losses.close()
    assert [(row["event"], row["frames"]) for row in bench.log.rows] == [("tap_losing", {"disk_full": 5}), ("tap_losing_ended", {"disk_full": 12})]
