import asyncio
import os
import signal
import subprocess
import sys

from framegate.control.fleet.reaper import Reaper


def test_every_child_is_reaped_and_its_watcher_told() -> None:
    async def scenario() -> None:
        reaper = Reaper()
        codes: asyncio.Queue[int] = asyncio.Queue()
        watched = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
        reaper.watch(watched.pid, codes.put_nowait)
        killed = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        reaper.watch(killed.pid, codes.put_nowait)
        stranger = subprocess.Popen(["/bin/true"])
        os.kill(killed.pid, signal.SIGKILL)
        async with asyncio.timeout(10):
            assert {await codes.get(), await codes.get()} == {3, -signal.SIGKILL}
            while os.path.exists(f"/proc/{stranger.pid}"):
                await asyncio.sleep(0.01)
        reaper.close()
        watched.returncode = killed.returncode = stranger.returncode = 0

    asyncio.run(scenario())


def test_a_watcher_that_fails_costs_no_other_its_child() -> None:
    told: list[dict[str, object]] = []

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: told.append(context))
        reaper = Reaper()
        codes: asyncio.Queue[int] = asyncio.Queue()

        def fail(code: int) -> None:
            raise ValueError("our bug")

        children = [subprocess.Popen(["/bin/true"]) for _ in range(2)]
        for child in children:
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # both have ended before the first is reaped
        reaper.watch(children[0].pid, fail)
        reaper.watch(children[1].pid, codes.put_nowait)
        async with asyncio.timeout(10):
            assert await codes.get() == 0
        assert not any(os.path.exists(f"/proc/{child.pid}") for child in children)
        reaper.close()
        for child in children:
            child.returncode = 0

    asyncio.run(scenario())
    assert [str(context["exception"]) for context in told] == ["our bug"]
