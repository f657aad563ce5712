"""What a selector relies on, of a timer, and who arms one of a selector: one of the processor's own, and the one that does what a test says."""

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import pytest

from proxy.network.timer import NEVER, Timer
from proxy.relay.drain import Drain
from tests.fakes.conformance import Kind
from tests.fakes.loop import Act
from tests.fakes.world import World

INTERFACE: Final = Timer
MS: Final = 1_000_000


class Given(NamedTuple):
    """A timer that is not armed, how to arm it, how often it has fired, and the selector's world."""

    timer: Timer
    arm: Callable[[int], None]
    fired: list[int]
    world: World


def drain(world: World) -> Given:
    """Without a pair it is over with its first look, and says so."""
    timer = world.drain

    def arm(deadline_ns: int) -> None:
        timer.active = True
        world.selector.call_at(deadline_ns, timer)

    return Given(timer, arm, world.told.cut_off, world)


def act(world: World) -> Given:
    fired: list[int] = []
    timer = Act(lambda: fired.append(0))
    return Given(timer, lambda deadline_ns: world.selector.call_at(deadline_ns, timer), fired, world)


KINDS: Final = {"drain": Kind(Drain, drain), "act": Kind(Act, act)}


@pytest.fixture(params=KINDS)
def given(request: pytest.FixtureRequest) -> Iterator[Given]:
    world = World()
    world.poll(1)
    made: Given = KINDS[request.param].make(world)
    yield made
    world.close()


def pass_ns(given: Given, nanoseconds: int) -> None:
    given.world.clock.ns += nanoseconds
    given.world.poll(2)


def test_it_fires_at_its_deadline_once_and_not_before(given: Given) -> None:
    assert given.timer.deadline_ns == NEVER
    deadline = given.world.clock.ns + 5 * MS
    given.arm(deadline)
    assert given.timer.deadline_ns == deadline
    pass_ns(given, 5 * MS - 1)
    assert given.fired == []
    pass_ns(given, 1)
    assert (len(given.fired), given.timer.deadline_ns) == (1, NEVER)
    pass_ns(given, 1000 * MS)
    assert len(given.fired) == 1


@pytest.mark.parametrize("moved_ms", [1, 9])
def test_armed_again_it_fires_at_the_new_time_only(given: Given, moved_ms: int) -> None:
    now = given.world.clock.ns
    given.arm(now + 5 * MS)
    given.arm(now + moved_ms * MS)
    pass_ns(given, moved_ms * MS - 1)
    assert given.fired == []
    pass_ns(given, 20 * MS)
    assert len(given.fired) == 1


def test_cancelled_it_does_not_fire_and_can_be_armed_again(given: Given) -> None:
    given.arm(given.world.clock.ns + MS)
    given.world.selector.cancel(given.timer)
    assert given.timer.deadline_ns == NEVER
    pass_ns(given, 2 * MS)
    assert given.fired == []
    given.arm(given.world.clock.ns + MS)
    pass_ns(given, MS)
    assert len(given.fired) == 1


def test_what_is_due_already_fires_in_the_next_poll(given: Given) -> None:
    given.arm(0)
    given.world.poll(1)
    assert len(given.fired) == 1
