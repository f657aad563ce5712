"""What everybody who asks for the time relies on, of the system's clock and of those that a test moves."""

import time
from collections.abc import Callable
from typing import Final, NamedTuple

import pytest

from proxy.clock import Clock, MonotonicClock
from tests.fakes.clock import MS, FakeClock
from tests.fakes.conformance import Kind
from tests.fakes.world import HandClock

INTERFACE: Final = Clock


class Given(NamedTuple):
    """A clock, and how to let 2 ms pass for it."""

    clock: Clock
    pass_2_ms: Callable[[], None]


def real() -> Given:
    return Given(MonotonicClock(), lambda: time.sleep(0.002))


def fake() -> Given:
    clock = FakeClock(5)
    return Given(clock, lambda: clock.advance_ms(2))


def by_hand() -> Given:
    clock = HandClock()

    def move() -> None:
        clock.ns += 2 * MS

    return Given(clock, move)


KINDS: Final = {"system": Kind(MonotonicClock, real), "fake": Kind(FakeClock, fake), "by hand": Kind(HandClock, by_hand)}


@pytest.fixture(params=KINDS)
def given(request: pytest.FixtureRequest) -> Given:
    made: Given = KINDS[request.param].make()
    return made


def test_time_is_whole_nanoseconds_that_never_go_back(given: Given) -> None:
    readings = [given.clock.now_ns() for _ in range(1000)]
    assert readings == sorted(readings)
    assert {type(reading) for reading in readings} == {int}
    assert readings[0] > 0


def test_what_passes_is_seen_as_long_as_it_was(given: Given) -> None:
    before = given.clock.now_ns()
    given.pass_2_ms()
    assert given.clock.now_ns() - before >= 2 * MS


def test_its_function_can_be_kept_without_it(given: Given) -> None:
    """As the selector and the memory pool do."""
    now_ns = given.clock.now_ns
    before = given.clock.now_ns()
    given.pass_2_ms()
    assert before + 2 * MS <= now_ns() <= given.clock.now_ns()


def test_the_real_one_is_the_systems_monotonic_clock() -> None:
    clock = MonotonicClock()
    before = time.monotonic_ns()
    assert before <= clock.now_ns() <= time.monotonic_ns()


def test_those_of_tests_stand_still_until_they_are_moved() -> None:
    for given in (fake(), by_hand()):
        before = given.clock.now_ns()
        assert given.clock.now_ns() == before
        given.pass_2_ms()
        assert given.clock.now_ns() == before + 2 * MS
