"""How long one waits between two processes, and how they follow each other."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from framegate.control.errors import StartError
from framegate.control.fleet.child import Child
from framegate.control.fleet.process_slot import ProcessSlot, Respawner
from framegate.control.fleet.processor import KIND
from framegate.control.meters import Meters
from framegate.control.task_monitor import TaskMonitor
from tests.fakes.fleet import MemoryLog


class Nobody(ProcessSlot):
    """A place for what is no process."""

    @property
    def child(self) -> Child | None:
        return None


def test_generations_grow_over_lives_and_over_places_of_the_same_number() -> None:
    place = Nobody(3)
    first = place.next_generation()
    assert 0 < first < 2**28
    assert place.next_generation() == first + 1
    assert Nobody(3, first + 1000).next_generation() == first + 1001


def test_pauses_double_up_to_a_bound_and_begin_anew_after_a_good_run() -> None:
    place = Nobody(0)
    assert [place.backoff.pause(0.0) for _ in range(9)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]
    assert [place.backoff.pause(10.0), place.backoff.pause(0.0)] == [0.1, 0.2]
    place.begin()
    assert place.backoff.pause(0.0) == 0.1


def run(scenario: Callable[[Respawner, MemoryLog], Awaitable[None]]) -> None:
    async def main() -> None:
        log = MemoryLog()
        async with asyncio.timeout(10):
            await scenario(Respawner(KIND, log, TaskMonitor(log, Meters()), "slot"), log)

    asyncio.run(main())


def test_a_first_life_that_does_not_come_up_is_the_last_and_is_raised() -> None:
    async def scenario(respawner: Respawner, log: MemoryLog) -> None:
        for error, said in ((StartError("no", reason="R"), "^no$"), (OSError("no file"), r"processor 5 could not be started: OSError\('no file'\)")):
            place = Nobody(5)

            async def live(first: asyncio.Future[None], error: Exception = error) -> None:
                raise error

            with pytest.raises(StartError, match=said):
                await respawner.begin(place, live)
            assert place.task is not None
            await place.task
            assert (place.state, place.restarts, place.lives_on) == ("stopped", 0, False)
        assert [row["error"] for row in log.events("task_failed")] == ["OSError('no file')"]
        assert log.events("processor_start_failed") == []

    run(scenario)


def test_later_ones_that_fail_are_rows_and_tried_again_until_the_place_is_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("framegate.control.fleet.process_slot._BACKOFF_FIRST_S", 0.001)

    async def scenario(respawner: Respawner, log: MemoryLog) -> None:
        place, lives = Nobody(5), 0

        async def live(first: asyncio.Future[None]) -> None:
            nonlocal lives
            lives += 1
            if lives == 1:
                first.set_result(None)
            elif lives == 4:
                place.leaving = True
            else:
                raise StartError(f"not the {lives}.", reason="R")

        await respawner.begin(place, live)
        assert place.task is not None
        await place.task
        assert [row["error"] for row in log.events("processor_start_failed")] == ["not the 2.", "not the 3."]
        assert (lives, place.restarts, place.state) == (4, 3, "stopped")

    run(scenario)


def test_a_place_that_waits_for_its_next_process_ends_at_once_and_who_waits_for_a_first_is_told() -> None:
    async def scenario(respawner: Respawner, log: MemoryLog) -> None:
        place, never = Nobody(5), asyncio.Event()

        async def live(first: asyncio.Future[None]) -> None:
            await never.wait()

        first = respawner.begin(place, live)
        await asyncio.sleep(0)
        place.wanted = False
        await respawner.end(place)
        with pytest.raises(StartError, match="processor 5 was stopped before it was ready"):
            await first
        assert place.state == "stopped"

    run(scenario)
