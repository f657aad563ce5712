"""When a disk is full, by what came to it and to the log."""

from framegate.control.tap.filling import LEAST_S, SPAN_S, Filling

GIB = 1 << 30


def left(budget: int, log: float, others: float, seconds: float = 120.0, free: int = 100 * GIB, usage: int = 0) -> float | None:
    """What is said after so many seconds in which the log and others have grown by so many bytes a second; ``free`` and ``usage`` at the end."""
    filling, found, at = Filling(budget), None, 0.0
    while at <= seconds:
        rest = seconds - at
        found = filling.see(at, int(free + (log + others) * rest), int(usage - log * rest))
        at += 1.0
    return found


def test_a_disk_is_full_when_what_is_free_has_come_at_this_rate() -> None:
    assert left(1 << 60, log=GIB, others=0) == 100
    assert left(1 << 60, log=GIB, others=GIB) == 50
    assert left(1 << 60, log=0, others=2 * GIB) == 50


def test_a_log_stops_at_its_budget_and_then_only_others_fill_the_disk() -> None:
    assert left(40 * GIB, log=GIB, others=0) is None
    assert left(100 * GIB, log=GIB, others=0) == 100, "it just fits"
    assert left(100 * GIB - 1, log=GIB, others=0) is None
    assert left(20 * GIB, log=GIB, others=GIB) == 20 + 60
    assert left(0, log=0, others=GIB) == 100


def test_nothing_is_said_of_a_disk_that_does_not_fill_or_is_watched_for_less_than_a_minute() -> None:
    assert left(1 << 60, log=0, others=0) is left(1 << 60, log=GIB, others=-2 * GIB) is None
    assert left(1 << 60, log=GIB, others=0, seconds=LEAST_S - 1) is None
    assert left(1 << 60, log=GIB, others=0, seconds=LEAST_S) == 100


def test_only_the_last_ten_minutes_count() -> None:
    filling = Filling(1 << 60)
    free, found = 1000 * GIB, None
    for second in range(int(2 * SPAN_S) + 20):
        free -= GIB if second < SPAN_S else 0
        found = filling.see(float(second), free, 0)
    assert found is None
