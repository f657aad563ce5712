"""What processors and handler processes have in common, shown with a processor; and the reaper of children."""

import asyncio
import contextlib
import errno
import os
import pathlib
import resource
import signal
import subprocess
import sys
from typing import Any

import pytest

from framegate.control.errors import StartError
from framegate.control.fleet.child import Reaper, SpawnOptions
from framegate.control.fleet.processor import KIND, Processor
from framegate.control.fleet.slot_cells import SlotCells
from framegate.proxy.cells import CellLayout
from tests.fakes.fleet import COMMAND, START, MemoryLog, fleet_config, one_processor
from tests.fakes.fleet import run_processor as run
from tests.fakes.scenario import run_by


def test_a_process_that_ends_at_once_did_not_start_and_its_output_is_logged() -> None:
    async def scenario(processor: Processor, log: MemoryLog) -> None:
        with pytest.raises(StartError, match="ended with code 3 before"):
            await processor.start(START)

    program = "import sys; print('first'); sys.stderr.write('last words'); sys.exit(3)"
    log = run(scenario, (sys.executable, "-u", "-c", program))
    assert [row["line"] for row in log.events("processor_output")] == ["first", "last words"]


@pytest.mark.parametrize("lines", [499, 500, 501, 502, 20_000])
def test_output_above_500_lines_a_second_is_counted_and_not_logged(lines: int) -> None:
    async def scenario(processor: Processor, log: MemoryLog) -> None:
        with pytest.raises(StartError):
            await processor.start(START)

    log = run(scenario, (sys.executable, "-c", f"import sys; [print('line', n) for n in range({lines})]; sys.exit(3)"))
    rows = log.events("processor_output")
    numbers = [int(row["line"].split()[1]) for row in rows]
    seconds = [index for index, row in enumerate(rows) if "suppressed" in row]  # a slow machine may need more than one
    assert numbers[:499] == list(range(499))
    assert numbers[-1] == lines - 1, "the last words are there"
    assert len(rows) + sum(rows[index]["suppressed"] for index in seconds) == lines
    assert len(rows) <= 501 * max(1, len(seconds))
    assert len(rows) == lines or seconds


@run_by(run)
async def test_one_that_does_not_stop_is_killed(processor: Processor, log: MemoryLog) -> None:
    await processor.start(START)
    os.kill(processor.pid, signal.SIGSTOP)
    await processor.stop(0.05)
    assert processor.ended.result() == -signal.SIGKILL
    assert processor.kill_reason == "stop"
    assert len(log.events("processor_killed")) == 1


def test_a_processor_gets_what_it_needs_of_the_environment_and_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = {
        "PATH": os.environ["PATH"],
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "SSL_CERT_FILE": "/etc/ssl/ca.pem",
        "PYTHONHASHSEED": "7",
        "GLIBC_TUNABLES": "glibc.malloc.check=0",
        "WANTED": "by name",
    }
    secrets = {"AWS_SECRET_ACCESS_KEY": "x", "GITHUB_TOKEN": "x", "KUBERNETES_SERVICE_HOST": "x", "FRAMEGATE_ADDRESS": "unix:x", "http_proxy": "x"}
    for name, value in (needed | secrets).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("FRAMEGATE_PROCESSOR_ENV", "ABSENT, WANTED")
    found: dict[str, str] = {}

    async def read(processor: Processor, log: MemoryLog) -> None:
        await processor.start(START)
        with open(f"/proc/{processor.pid}/environ", "rb") as file:
            found.update(row.split("=", 1) for row in file.read().decode().split("\0") if row)

    run(read)
    assert found.items() >= needed.items()
    assert not found.keys() & secrets.keys()
    assert found.keys() <= needed.keys() | {"HOME", "LANG", "LANGUAGE", "TMPDIR", "LD_LIBRARY_PATH", "LD_PRELOAD"} | {
        name for name in found if name.startswith(("LC_", "MALLOC_", "PYTHON", "SSL_", "OPENSSL_"))
    }


def descriptors() -> set[str]:
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the list itself
            found.add(f"{number} {os.readlink(f'/proc/self/fd/{number}')}")
    return found


def make(cells: SlotCells, reaper: Reaper, command: tuple[str, ...] = COMMAND) -> Processor:
    return Processor(0, 7, cells, SpawnOptions(KIND, command, reaper, MemoryLog()), lambda _, message: None)


def test_a_processor_inherits_the_given_descriptors_and_no_other_of_our_files(tmp_path: pathlib.Path) -> None:
    kept, other, inheritable = (os.open(tmp_path / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC) for name in ("kept", "other", "inheritable"))
    os.set_inheritable(inheritable, True)

    async def main() -> list[str]:
        async with asyncio.timeout(20), one_processor(MemoryLog(), inherited=(kept,)) as processor:
            await processor.start(START)
            folder = f"/proc/{processor.pid}/fd"
            return [os.readlink(f"{folder}/{number}") for number in os.listdir(folder) if int(number) > 2]

    found = asyncio.run(main())
    for number in (kept, other, inheritable):
        os.close(number)
    found.remove(str(tmp_path / "kept"))
    kinds = [path.partition(":")[0] for path in found]
    assert (set(kinds), kinds.count("socket")) == ({"/memfd", "anon_inode", "socket"}, 2)


def test_without_enough_descriptors_the_start_fails_and_leaves_none_open() -> None:
    """The limit grows by one with each try, so that each descriptor that a start needs is missing once."""

    async def main() -> int:
        reaper = Reaper()
        cells = SlotCells(0, CellLayout.of(fleet_config(1)))
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        used = max(int(number) for number in os.listdir("/proc/self/fd"))
        fillers = [os.open(os.devnull, os.O_RDONLY)]
        while fillers[-1] < used + 1:
            fillers.append(os.open(os.devnull, os.O_RDONLY))
        before = descriptors()
        failures = 0
        while True:
            resource.setrlimit(resource.RLIMIT_NOFILE, (fillers[-1] + 1 + failures, limits[1]))
            try:
                processor = make(cells, reaper)
            except OSError:
                failures += 1
            else:
                break
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            assert descriptors() <= before  # an earlier test's may be collected meanwhile
        processor.kill("test")
        await processor.ended
        processor.close()
        assert descriptors() == before
        cells.close()
        reaper.close()
        for filler in fillers:
            os.close(filler)
        return failures

    assert asyncio.run(main()) >= 4


@pytest.mark.parametrize("call", [0, 1])
def test_a_process_that_the_loop_cannot_watch_is_killed_and_leaves_no_descriptors(call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        reaper = Reaper()
        cells = SlotCells(0, CellLayout.of(fleet_config(1)))
        loop = asyncio.get_running_loop()
        add_reader, calls = loop.add_reader, iter(range(9))

        def refuse(*arguments: Any) -> None:
            if next(calls) == call:
                raise OSError(errno.ENOSPC, "no room for another watch")
            add_reader(*arguments)

        before = descriptors()
        monkeypatch.setattr(loop, "add_reader", refuse)
        with pytest.raises(OSError, match="another watch"):
            make(cells, reaper, (sys.executable, "-c", "import time; time.sleep(60)"))
        assert descriptors() == before
        monkeypatch.undo()
        while reaper._watched:
            await asyncio.sleep(0.01)
        reaper.close()
        cells.close()

    asyncio.run(asyncio.wait_for(main(), 10))


# The reaper.


def test_every_child_is_reaped_and_its_watcher_called() -> None:
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


def test_a_watcher_that_fails_does_not_stop_the_reaping_of_others() -> None:
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
