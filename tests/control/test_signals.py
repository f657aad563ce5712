import asyncio
import os
import signal
import subprocess
import sys

from framegate.control.signals import Signals


def test_a_signal_behind_the_end_changes_nothing() -> None:
    code = "import os, signal; from framegate.control.signals import Signals; "
    "Signals().ignore(); [os.kill(os.getpid(), number) for number in (1, 2, 15)]"
    assert subprocess.run([sys.executable, "-c", code], timeout=30, check=False).returncode == 0


def test_a_signal_before_the_loop_runs_is_not_lost() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        signals = Signals()
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGHUP)

        async def scenario() -> int:
            told, hung_up = asyncio.Event(), asyncio.Event()
            signals.attach(asyncio.get_running_loop(), told.set, hung_up.set)
            async with asyncio.timeout(5):
                await told.wait()
                await hung_up.wait()
            told.clear()
            hung_up.clear()
            os.kill(os.getpid(), signal.SIGHUP)
            async with asyncio.timeout(5):
                await hung_up.wait()
            assert not told.is_set()
            os.kill(os.getpid(), signal.SIGINT)
            async with asyncio.timeout(5):
                await told.wait()
            return signals.count

        assert asyncio.run(scenario()) == 2
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
