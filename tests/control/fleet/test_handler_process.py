"""One handler process: how busy it was, how much memory it has, what is shown of its place."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable

from framegate.control.fleet.child import Reaper, SpawnOptions
from framegate.control.fleet.handler_process import KIND, HandlerProcess, HandlerSlot
from framegate.proxy.handler.activity import HeartbeatSample
from framegate.proxy.server.messages import HandlerStartMessage
from framegate.proxy.server.protocol import WIRE_VERSION
from tests.fakes.fleet import ECHO, HANDLER_COMMAND, MemoryLog
from tests.fakes.scenario import run_by

SECOND = 10**9
START = HandlerStartMessage(type="start", wire=WIRE_VERSION, slot=0, generation=7, node="n", handlers={"a": ECHO}, path=[])


def last_sample(busy_ns: int = 0) -> HeartbeatSample:
    return HeartbeatSample(handled=5, failed=1, busy_ns=busy_ns, in_handler=1, oldest_ns=2_500_000, queued=3)


def run(scenario: Callable[[HandlerProcess], Awaitable[None]]) -> None:
    async def main() -> None:
        reaper = Reaper()
        spawn_options = SpawnOptions(KIND, HANDLER_COMMAND, reaper, MemoryLog())
        process = HandlerProcess(0, 7, spawn_options, lambda _, message: None)
        try:
            async with asyncio.timeout(20):
                await scenario(process)
        finally:
            process.kill("test")
            await process.ended
            process.close()
            assert (process.last_sample, process.busy, process.resident)[2] == 0, "another thread may read them still"
            reaper.close()

    asyncio.run(main())


@run_by(run)
async def test_it_starts_with_its_handlers_and_stops(process: HandlerProcess) -> None:
    await process.start(START)
    assert process.handlers["a"]["description"] == "Answers every frame with itself."
    assert process.ready
    assert process.resident > 1_000_000
    await process.stop(5)
    assert (process.ended.result(), process.kill_reason, process.resident) == (0, "", 0)


def stop(process: HandlerProcess) -> None:
    """It tells nothing any more: the test does."""
    os.kill(process.pid, signal.SIGSTOP)


@run_by(run)
async def test_it_is_busy_for_a_share_of_the_last_seconds(process: HandlerProcess) -> None:
    assert (process.busy, process.last_sample) == (0.0, None)
    stop(process)
    shares = []
    for second in range(21):
        process._cells.write(last_sample(second * SECOND // 2 if second <= 10 else 5 * SECOND), (100 + second) * SECOND)
        for _ in range(3):
            process.look()
        shares.append(round(process.busy, 2))
    assert shares[:11] == [0.0] + [0.5] * 10
    assert shares[11:] == [0.4, 0.3, 0.2, 0.1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]


@run_by(run)
async def test_looks_that_find_the_same_heartbeat_are_counted(process: HandlerProcess) -> None:
    stop(process)
    assert [process.look() for _ in range(3)] == [1, 2, 3]
    process._cells.write(last_sample(), 100 * SECOND)
    assert [process.look() for _ in range(3)] == [0, 1, 2]


@run_by(run)
async def test_its_kill_is_harmless_once_it_has_ended(process: HandlerProcess) -> None:
    os.kill(process.pid, signal.SIGKILL)
    await process.ended
    process.kill("timeout")
    assert process.kill_reason == ""


def test_a_slot_shows_the_report_of_its_process_and_why_the_last_one_ended() -> None:
    place = HandlerSlot(4)
    assert (place.status({}).pid, place.status({}).state, place.status({}).handlers) == (0, "stopped", ())

    async def scenario(process: HandlerProcess) -> None:
        place.next_life()
        assert place.status({"a": ECHO}).state == "starting"
        await process.start(START)
        place.child, place.state = process, "running"
        stop(process)
        process._cells.write(last_sample(), SECOND)
        found = place.status({"a": ECHO})
        assert (found.pid, found.handled, found.failed, found.in_handler, found.queued, found.oldest_ms) == (process.pid, 5, 1, 1, 3, 2)
        assert [item.listener for item in found.handlers] == ["a"]
        place.child, place.state = None, "stopped"
        place.ended("memory")
        found = place.status({"a": ECHO})
        assert (found.pid, found.state, found.last_reason, found.handled, found.handlers) == (0, "stopped", "memory", 0, ())
        assert found.last_ended_ns >= found.started_ns > 0

    run(scenario)
