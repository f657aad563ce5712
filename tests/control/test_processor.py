import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from control.errors import StartError, UnavailableError
from control.processor import Processor
from control.reaper import Reaper
from control.slot_cells import SlotCells
from proxy.cells import CellLayout
from proxy.config.model import to_wire
from tests.fakes.fleet import COMMAND, MemoryLog, fleet_config

CONFIG = fleet_config(1)
START = {"type": "start", "config": to_wire(CONFIG), "slot": 0, "generation": 7, "boot_id": "b", "share": 1, "endpoints": {}}


def run(scenario: Callable[[Processor, MemoryLog], Awaitable[None]], command: tuple[str, ...] = COMMAND) -> MemoryLog:
    log = MemoryLog()

    async def main() -> None:
        reaper = Reaper()
        cells = SlotCells(0, CellLayout.of(CONFIG), ["a"])
        notices: list[Any] = []
        processor = Processor(0, 7, cells, reaper, log, lambda _, message: notices.append(message), command)
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


def test_a_processor_starts_answers_and_stops() -> None:
    async def scenario(processor: Processor, log: MemoryLog) -> None:
        await processor.start(START)
        assert processor.modules["fake"].endswith("processor.py")
        answer = await processor.request({"type": "list", "after": 0, "limit": 5, "listener": None}, 1000)
        assert answer["rows"] == []
        await processor.stop(5)
        assert processor.ended.result() == 0
        assert processor.kill_reason == ""

    run(scenario)


def test_one_that_says_failed_did_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(processor: Processor, log: MemoryLog) -> None:
        with pytest.raises(StartError, match="processor 0 could not start: the fake was told to"):
            await processor.start(START)

    monkeypatch.setenv("FAKE_PROCESSOR", "fail")
    run(scenario)


def test_one_that_ends_at_once_did_not_start_and_its_last_words_are_logged() -> None:
    async def scenario(processor: Processor, log: MemoryLog) -> None:
        with pytest.raises(StartError, match="ended with code 3 before"):
            await processor.start(START)

    program = "import sys; print('first'); sys.stderr.write('last words'); sys.exit(3)"
    log = run(scenario, (sys.executable, "-u", "-c", program))
    assert [row["line"] for row in log.events("processor_output")] == ["first", "last words"]


def test_one_that_does_not_stop_is_killed() -> None:
    async def scenario(processor: Processor, log: MemoryLog) -> None:
        await processor.start(START)
        os.kill(processor.pid, signal.SIGSTOP)
        await processor.stop(0.05)
        assert processor.ended.result() == -signal.SIGKILL
        assert processor.kill_reason == "stop"
        assert len(log.events("processor_killed")) == 1

    run(scenario)


def test_a_request_to_a_dead_one_fails() -> None:
    async def scenario(processor: Processor, log: MemoryLog) -> None:
        await processor.start(START)
        processor.kill("test")
        with pytest.raises(UnavailableError):
            await processor.request({"type": "list", "after": 0, "limit": 5, "listener": None}, 5000)
        processor.kill("another word")
        assert processor.kill_reason == "test"

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


def test_a_processor_gets_the_allocator_settings_unless_the_user_has_set_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MALLOC_MMAP_THRESHOLD_", raising=False)
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1000000")
    found = {name: value for name, value in environment().items() if name.startswith("MALLOC_")}
    assert found == {"MALLOC_MMAP_THRESHOLD_": "33554432", "MALLOC_TRIM_THRESHOLD_": "1000000"}


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
