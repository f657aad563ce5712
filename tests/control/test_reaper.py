import asyncio
import os
import signal
import subprocess
import sys

from control.reaper import Reaper


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
