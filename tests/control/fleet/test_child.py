"""What processors and handler processes have in common, shown with a processor."""

import asyncio
import contextlib
import errno
import os
import pathlib
import resource
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from framegate.control.errors import StartError
from framegate.control.fleet.child import SpawnOptions
from framegate.control.fleet.processor import KIND, Processor
from framegate.control.fleet.reaper import Reaper
from framegate.control.fleet.slot_cells import SlotCells
from framegate.proxy.cells import CellLayout
from framegate.proxy.config.model import to_wire
from framegate.proxy.server.messages import StartMessage
from framegate.proxy.server.protocol import WIRE_VERSION
from tests.fakes.fleet import COMMAND, MemoryLog, fleet_config

CONFIG = fleet_config(1)
START = StartMessage(type="start", wire=WIRE_VERSION, config=to_wire(CONFIG), slot=0, generation=7, boot_id="b", share=1, endpoints={})


def run(scenario: Callable[[Processor, MemoryLog], Awaitable[None]], command: tuple[str, ...] = COMMAND) -> MemoryLog:
    log = MemoryLog()

    async def main() -> None:
        reaper = Reaper()
        cells = SlotCells(0, CellLayout.of(CONFIG), ["a"])
        notices: list[Any] = []
        processor = Processor(0, 7, cells, SpawnOptions(KIND, command, reaper, log), lambda _, message: notices.append(message))
        try:
            async with asyncio.timeout(20):
                await scenario(processor, log)
        finally:
            processor.kill("test")
            await processor.ended
            processor.close()
            reaper.close()
            cells.close()

    asyncio.run(main())
    return log


def test_one_that_ends_at_once_did_not_start_and_its_last_words_are_logged() -> None:
    async def scenario(processor: Processor, log: MemoryLog) -> None:
        with pytest.raises(StartError, match="ended with code 3 before"):
            await processor.start(START)

    program = "import sys; print('first'); sys.stderr.write('last words'); sys.exit(3)"
    log = run(scenario, (sys.executable, "-u", "-c", program))
    assert [row["line"] for row in log.events("processor_output")] == ["first", "last words"]


@pytest.mark.parametrize("lines", [499, 500, 501, 502, 20_000])
def test_of_what_a_process_prints_only_some_hundred_lines_a_second_have_a_row_and_the_others_are_counted(lines: int) -> None:
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


def test_one_that_does_not_stop_is_killed() -> None:
    async def scenario(processor: Processor, log: MemoryLog) -> None:
        await processor.start(START)
        os.kill(processor.pid, signal.SIGSTOP)
        await processor.stop(0.05)
        assert processor.ended.result() == -signal.SIGKILL
        assert processor.kill_reason == "stop"
        assert len(log.events("processor_killed")) == 1

    run(scenario)


def test_it_is_started_without_our_descriptors_and_finds_the_packages_without_the_current_folder() -> None:
    async def scenario(processor: Processor, log: MemoryLog) -> None:
        await processor.start(START)
        links = [os.readlink(f"/proc/{processor.pid}/fd/{number}") for number in os.listdir(f"/proc/{processor.pid}/fd") if int(number) > 2]
        kinds = [link.partition(":")[0] for link in links]
        assert set(kinds) == {"/memfd", "anon_inode", "socket"}
        assert kinds.count("socket") == 2

    with open(os.devnull) as secret:
        os.set_inheritable(secret.fileno(), True)
        run(scenario)


def environment() -> dict[str, str]:
    """Of a processor that has answered, so that what it was started with is there to be read."""
    found: dict[str, str] = {}

    async def look(processor: Processor, log: MemoryLog) -> None:
        await processor.start(START)
        with open(f"/proc/{processor.pid}/environ", "rb") as file:
            found.update(row.split("=", 1) for row in file.read().decode().split("\0") if row)

    run(look)
    return found


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
    found = environment()
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


def test_a_processor_inherits_what_it_is_to_keep_and_no_other_of_our_files(tmp_path: pathlib.Path) -> None:
    kept, other = (os.open(tmp_path / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC) for name in ("kept", "other"))

    async def main() -> set[str]:
        reaper = Reaper()
        cells = SlotCells(0, CellLayout.of(CONFIG), ["a"])
        processor = Processor(0, 7, cells, SpawnOptions(KIND, COMMAND, reaper, MemoryLog(), (kept,)), lambda _, message: None)
        try:
            await processor.start(START)
            folder = f"/proc/{processor.pid}/fd"
            found = {os.readlink(f"{folder}/{number}") for number in os.listdir(folder)}
        finally:
            processor.kill("test")
            await processor.ended
            processor.close()
            reaper.close()
            cells.close()
        return found

    found = asyncio.run(main())
    os.close(kept)
    os.close(other)
    assert {path for path in found if path.startswith(str(tmp_path))} == {str(tmp_path / "kept")}


def test_with_too_few_descriptors_nothing_is_left_of_it() -> None:
    """One more is to be had each time, so that each of those that it takes is once the one that is missing."""

    async def main() -> int:
        reaper = Reaper()
        cells = SlotCells(0, CellLayout.of(CONFIG), ["a"])
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
            assert descriptors() == before
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
def test_one_that_the_loop_cannot_watch_is_killed_and_nothing_is_left_of_it(call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        reaper = Reaper()
        cells = SlotCells(0, CellLayout.of(CONFIG), ["a"])
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
