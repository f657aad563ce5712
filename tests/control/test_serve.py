import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from control.configuration.child import Loaded
from control.guard import Guard
from control.meters import Meters
from control.serve import EXIT_CONFIGURATION, Proxy, _in_thread, _until
from tests.fakes.fleet import MemoryLog, fleet_config


def test_a_faulty_configuration_is_told_line_by_line_and_nothing_starts(tmp_path: Path) -> None:
    path = tmp_path / "framegate.yaml"
    path.write_text("node: a/b\nlisteners: []\n")
    done = subprocess.run([sys.executable, "-m", "control.serve", "--config", str(path)], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (EXIT_CONFIGURATION, "")
    assert sorted(line.split(": ")[2].split(" = ")[0] for line in done.stderr.splitlines()) == ["listeners", "node", "upstreams"]


def test_work_on_a_thread_gives_its_result_or_its_error_and_is_left_behind_when_cancelled() -> None:
    def fail() -> None:
        raise ValueError("no")

    async def scenario() -> None:
        assert await _in_thread(lambda: 7) == 7
        with pytest.raises(ValueError, match="no"):
            await _in_thread(fail)
        done = threading.Event()
        waiting = asyncio.create_task(_in_thread(done.wait))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        done.set()

    asyncio.run(scenario())


def proxy() -> tuple[Proxy, MemoryLog]:
    log, meters = MemoryLog(), Meters()
    return Proxy(Loaded(fleet_config(1), [], {}, {}), log, meters, Guard(log, meters)), log


def test_what_fails_to_stop_is_said_and_the_rest_is_undone_last_first() -> None:
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


def test_a_stop_that_is_cancelled_leaves_what_hangs_and_undoes_the_rest() -> None:
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


def test_what_an_event_cuts_off_is_told_before_it_is_cancelled() -> None:
    """The processors are killed first: what waits for their end has not to wait."""

    async def scenario() -> None:
        seen: list[str] = []
        event = asyncio.Event()

        async def work() -> None:
            try:
                event.set()
                await asyncio.Event().wait()
            finally:
                seen.append("cancelled")

        assert await _until(work(), event, lambda: seen.append("told")) is None
        assert seen == ["told", "cancelled"]

    asyncio.run(scenario())
