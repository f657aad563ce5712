"""proxy.clock: time never goes back."""

import time

from proxy.clock import MonotonicClock
from tests.fakes.clock import FakeClock


def test_the_clock_is_the_systems_monotonic_clock() -> None:
    clock = MonotonicClock()
    before = time.monotonic_ns()
    assert before <= clock.now_ns() <= time.monotonic_ns()


def test_the_fake_stands_still_until_it_is_moved() -> None:
    clock = FakeClock(5)
    assert (clock.now_ns(), clock.now_ns()) == (5, 5)
    clock.advance_ms(2)
    assert clock.now_ns() == 2_000_005
