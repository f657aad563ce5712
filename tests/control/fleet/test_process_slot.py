"""The pauses between processes, and how processes follow each other in a slot."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from framegate.control.errors import StartError
from framegate.control.events import Bus
from framegate.control.fleet.child import SpawnOptions
from framegate.control.fleet.process_slot import ProcessSlot, Respawner
from framegate.control.fleet.processor import KIND
from framegate.control.meters import Meters
from framegate.control.task_monitor import TaskMonitor
from tests.fakes.fleet import MemoryLog


class FakeChild:
    """A process that has ended with code 3."""

    ready, kill_reason, pid = False, "", 1

    def __init__(self) -> None:
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.ended.set_result(3)

    def kill(self, reason: str) -> None:
        """It has ended already."""


class Scripted(Respawner[ProcessSlot[Any], Any]):
    """Slot 5, in which ``bring_up`` is called for each process, with its number from 1."""

    def __init__(self, log: MemoryLog, bring_up: Callable[[ProcessSlot[Any], int], Awaitable[None]]) -> None:
        super().__init__(
            SpawnOptions(KIND, (), Any, log), Bus((log,), on_failure=pytest.fail), Meters(), log, TaskMonitor(log, Meters()), "slot", "heartbeats"
        )
        self.bring_up, self.lives = bring_up, 0
        self.slots = {5: ProcessSlot[Any](5)}
        self.slot = self.slots[5]

    def _spawn(self, slot: ProcessSlot[Any]) -> FakeChild:
        self.lives += 1
        return FakeChild()

    async def _bring_up(self, slot: ProcessSlot[Any], child: FakeChild) -> None:
        await self.bring_up(slot, self.lives)

    def _release(self, slot: ProcessSlot[Any], child: FakeChild) -> dict[str, Any]:
        return {}

    def _take_notice(self, child: FakeChild, message: Any) -> None:
        raise AssertionError("there are no messages")


def run(bring_up: Callable[[ProcessSlot[Any], int], Awaitable[None]], scenario: Callable[[Scripted, MemoryLog], Awaitable[None]]) -> None:
    async def main() -> None:
        log = MemoryLog()
        async with asyncio.timeout(10):
            respawner = Scripted(log, bring_up)
            await scenario(respawner, log)
            await respawner.stop()

    asyncio.run(main())


def test_the_time_for_which_a_heartbeat_stands_is_counted_beyond_a_second() -> None:
    async def bring_up(slot: ProcessSlot[Any], life: int) -> None:
        """Nothing is started."""

    async def scenario(respawner: Scripted, log: MemoryLog) -> None:
        respawner.slot.child = SimpleNamespace(ready=True, slot=5, kill_reason="", look=iter([0, 1, 2, 3, 4, 0]).__next__)
        found = []
        for _ in range(6):
            respawner._look()
            found.append(respawner._meters.value("worker.lag.time", "5"))
        assert found == [0, 0, 0, 0.5, 1, 1]
        respawner.slot.child = None

    run(bring_up, scenario)


def test_generations_grow_within_a_slot_and_over_slots_of_the_same_number() -> None:
    slot = ProcessSlot[Any](3)
    first = slot.next_generation()
    assert 0 < first < 2**28
    assert slot.next_generation() == first + 1
    assert ProcessSlot[Any](3, first + 1000).next_generation() == first + 1001


def test_pauses_double_up_to_a_bound_and_begin_anew_after_a_good_run() -> None:
    slot = ProcessSlot[Any](0)
    assert [slot.backoff.pause(0.0) for _ in range(9)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]
    assert [slot.backoff.pause(10.0), slot.backoff.pause(0.0)] == [0.1, 0.2]
    slot.begin()
    assert slot.backoff.pause(0.0) == 0.1


def test_a_first_process_that_does_not_come_up_is_the_last_and_its_error_is_raised() -> None:
    for error, said in ((StartError("no", reason="R"), "^no$"), (OSError("no file"), r"processor 5 could not be started: OSError\('no file'\)")):

        async def fail(slot: ProcessSlot[Any], life: int, error: Exception = error) -> None:
            raise error

        async def scenario(respawner: Scripted, log: MemoryLog, error: Exception = error, said: str = said) -> None:
            slot = respawner.slot
            with pytest.raises(StartError, match=said):
                await respawner._begin(slot)
            assert slot.task is not None
            await slot.task
            assert (slot.state, slot.restarts, slot.lives_on) == ("stopped", 0, False)
            assert [row["error"] for row in log.events("task_failed")] == ([repr(error)] if isinstance(error, OSError) else [])
            assert log.events("processor_start_failed") == []

        run(fail, scenario)


def test_later_failures_are_rows_and_tried_again_until_the_slot_is_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("framegate.control.fleet.process_slot._BACKOFF_FIRST_S", 0.001)

    async def bring_up(slot: ProcessSlot[Any], life: int) -> None:
        if life in (2, 3):
            raise StartError(f"not the {life}.", reason="R")
        slot.leaving = life == 4

    async def scenario(respawner: Scripted, log: MemoryLog) -> None:
        slot = respawner.slot
        await respawner._begin(slot)
        assert slot.task is not None
        await slot.task
        assert [row["error"] for row in log.events("processor_start_failed")] == ["not the 2.", "not the 3."]
        assert [(row["reason"], row["exit_code"]) for row in log.events("processor_died")] == [("died", 3)] * 2
        assert (respawner.lives, slot.restarts, slot.state) == (4, 3, "stopped")

    run(bring_up, scenario)


def test_a_slot_that_waits_for_its_next_process_ends_at_once_and_the_first_start_is_an_error() -> None:
    async def never(slot: ProcessSlot[Any], life: int) -> None:
        await asyncio.Event().wait()

    async def scenario(respawner: Scripted, log: MemoryLog) -> None:
        first = respawner._begin(respawner.slot)
        await asyncio.sleep(0)
        respawner.slot.child = None
        await respawner.stop_slots([5])
        with pytest.raises(StartError, match="processor 5 was stopped before it was ready"):
            await first
        assert respawner.slot.state == "stopped"

    run(never, scenario)
