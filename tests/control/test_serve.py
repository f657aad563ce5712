import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from framegate.control.serve import EXIT_CONFIGURATION, Signals, _until


def test_faults_of_the_configuration_are_printed_and_nothing_starts(tmp_path: Path) -> None:
    path = tmp_path / "framegate.yaml"
    path.write_text("node: a/b\nlisteners: []\n")
    done = subprocess.run(
        [sys.executable, "-m", "framegate.control.serve", "--config", str(path)], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout) == (EXIT_CONFIGURATION, "")
    assert sorted(line.split(": ")[2].split(" = ")[0] for line in done.stderr.splitlines()) == ["listeners", "node", "upstreams"]


def test_a_file_that_cannot_be_read_is_named_once(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "framegate.control.serve", "--config", str(tmp_path)], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (EXIT_CONFIGURATION, "", f"{tmp_path}: cannot be read: Is a directory\n")


def test_a_closed_standard_output_is_reported_and_no_later_file_gets_its_rows(tmp_path: Path) -> None:
    code = (
        "import sys; from framegate.control.serve import _occupy_stdout; from framegate.control.logs import RowLog\n"
        "_occupy_stdout(); later = open(sys.argv[1], 'w')\n"
        "log = RowLog(1); log.write('serving'); log.close()"
    )
    path = tmp_path / "later"
    for closed in (">&-", "<&- >&-"):
        words = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", code, str(path)]
        done = subprocess.run(words, stderr=subprocess.PIPE, text=True, timeout=30, check=True)
        assert done.stderr.splitlines()[0] == "framegate: rows can no longer be written, changes are refused: standard output is closed"
        assert path.read_text() == ""


def test_the_callback_of_an_event_runs_before_the_work_is_cancelled() -> None:
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


def test_a_signal_behind_the_end_changes_nothing() -> None:
    code = (
        "import os; from framegate.control.serve import Signals; "
        "signals = Signals(); signals.ignore(); [os.kill(os.getpid(), number) for number in (1, 2, 15)]"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=30, check=False).returncode == 0


def test_a_signal_before_the_loop_runs_is_not_lost() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)}
    try:
        signals = Signals()
        os.kill(os.getpid(), signal.SIGTERM)
        for number in (signal.SIGHUP, signal.SIGUSR1):
            os.kill(os.getpid(), number)

        async def scenario() -> int:
            told = asyncio.Event()
            others = {signal.SIGHUP: asyncio.Event(), signal.SIGUSR1: asyncio.Event()}
            signals.attach(asyncio.get_running_loop(), told.set, {number: event.set for number, event in others.items()})
            async with asyncio.timeout(5):
                await told.wait()
                for number, event in others.items():
                    await event.wait()
                    event.clear()
                    os.kill(os.getpid(), number)
                    await event.wait()
            assert told.is_set()
            told.clear()
            os.kill(os.getpid(), signal.SIGINT)
            async with asyncio.timeout(5):
                await told.wait()
            return signals.count

        assert asyncio.run(scenario()) == 2
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
