import asyncio

import pytest

from framegate.control.configuration.child import Loaded
from framegate.control.meters import Meters
from framegate.control.runtime import Proxy
from framegate.control.task_monitor import TaskMonitor
from tests.fakes.fleet import MemoryLog, fleet_config


def proxy() -> tuple[Proxy, MemoryLog]:
    log, meters = MemoryLog(), Meters()
    return Proxy(Loaded(fleet_config(1), [], {}, {}), log, meters, TaskMonitor(log, meters)), log


def test_a_stop_that_fails_is_reported_and_the_others_run_last_first() -> None:
    async def scenario() -> None:
        made, log = proxy()
        undone: list[int] = []

        async def fail() -> None:
            raise OSError("no")

        made._on_stop(lambda: undone.append(1))
        made._on_stop(fail)
        made._on_stop(lambda: undone.append(2))
        await made.stop()
        await made.stop()
        assert undone == [2, 1]
        assert [row["error"] for row in log.events("stop_failed")] == ["OSError('no')"]

    asyncio.run(scenario())


def test_a_cancelled_stop_abandons_the_one_that_hangs_and_runs_the_others() -> None:
    async def scenario() -> None:
        made, log = proxy()
        undone: list[int] = []
        hangs = asyncio.Event()

        async def hang() -> None:
            hangs.set()
            await asyncio.Event().wait()

        made._on_stop(lambda: undone.append(1))
        made._on_stop(hang)
        stopping = asyncio.create_task(made.stop())
        await hangs.wait()
        stopping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stopping
        assert (undone, log.rows) == ([1], [])

    asyncio.run(scenario())
