"""Handler processes over fakes of them: started, joined with processors, watched, killed, started anew, ended."""

import asyncio
import os
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable
from typing import Any
from unittest.mock import patch

import pytest

from framegate.control.errors import StartError
from framegate.control.fleet import handlers as module
from framegate.control.fleet import process_slot
from framegate.control.fleet.handler_process import HandlerProcess
from framegate.control.fleet.handlers import Handlers, handler_names
from framegate.control.fleet.supervisor import Supervisor
from framegate.control.status import HandlerProcessStatus, HandlerStatus
from framegate.proxy.config.model import MIB, HandlersConfig
from tests.fakes.fleet import ECHO, FakeRequest, Fleet, fleet, fleet_config, until
from tests.fakes.framegate import alive
from tests.fakes.scenario import run_by

HANDLED: dict[str, Any] = {"handler": ECHO, "upstream": None}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_slot, "_BACKOFF_FIRST_S", 0.01)
    monkeypatch.setattr(Handlers, "watch_interval_s", 0.02)


def run(
    scenario: Callable[[Fleet, Handlers], Awaitable[None]],
    mode: str = "",
    *,
    processors: int = 1,
    start: bool = True,
    processor_mode: str = "",
    **handlers: Any,
) -> None:
    """Run a test's coroutine beside a fleet with handler processes, which misbehave as ``mode`` says (see ``tests.fakes.handler``)."""

    async def main() -> None:
        async with fleet(processors, processor_mode, start=start, handlers=HandlersConfig(**handlers), **HANDLED) as made:
            assert made.handlers is not None
            await scenario(made, made.handlers)

    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, FAKE_HANDLER=mode, FAKE_HANDLER_LIVES=f"{folder}/life"):
        asyncio.run(main())


def status(handlers: Handlers, slot: int = 0) -> HandlerProcessStatus:
    return handlers.status()[slot]


def process(handlers: Handlers, slot: int = 0) -> HandlerProcess:
    return handlers.running[slot]


def names(handlers: Handlers) -> list[str]:
    """What the processors are told they are joined with."""
    return sorted(f"{item.slot}.{item.generation}" for item in handlers.running)


async def told(made: Fleet) -> list[dict[str, Any]]:
    """What each processor says that it was handed over."""
    request = FakeRequest("handlers")
    return [await processor.request(request, 5000) for processor in made.supervisor.running]


async def joined(made: Fleet) -> list[list[str]]:
    """Which handler processes each processor is joined with."""
    return [sorted(found["handlers"]) for found in await told(made)]


async def until_joined(made: Fleet, handlers: Handlers) -> None:
    while await joined(made) != [names(handlers)] * len(made.supervisor.running):
        await asyncio.sleep(0.005)


def test_a_configuration_without_handlers_names_none() -> None:
    assert handler_names(fleet_config(1)) == {}
    assert handler_names(fleet_config(1, **HANDLED)) == {"a": ECHO}


@run_by(run, processes=2)
async def test_every_slot_runs_and_has_a_status(made: Fleet, handlers: Handlers) -> None:
    await until(lambda: all(item.handled == 0 and item.state == "running" for item in handlers.status()))
    for slot, found in enumerate(made.steering.state.handler_processes()):
        assert (found.slot, found.state, found.restarts, found.last_reason, found.last_ended_ns) == (slot, "running", 0, "", 0)
        assert found.pid == process(handlers, slot).pid != os.getpid()
        assert found.resident > MIB
        assert found.generation > 50_000_000
        assert found.started_ns > 1e18
        assert found.handlers == (
            HandlerStatus(listener="a", handler=ECHO, directions=("request", "response"), description="Answers every frame with itself."),
        )
    assert len(handlers.running) == 2
    assert made.steering.state.health().ready
    assert len(made.log.events("handler_ready")) == 2


@run_by(run, processors=2, processes=2)
async def test_each_processor_is_joined_with_each_process_however_they_come_and_go(made: Fleet, handlers: Handlers) -> None:
    await until_joined(made, handlers)
    assert len(names(handlers)) == 2
    before = names(handlers)
    os.kill(process(handlers).pid, signal.SIGKILL)
    await until(lambda: len(handlers.running) == 2 and names(handlers) != before)
    await until_joined(made, handlers)
    made.supervisor.running[0].kill("died")
    await until(lambda: made.supervisor.status()[0].restarts == 1 and len(made.supervisor.running) == 2)
    await until_joined(made, handlers)
    await made.steering.pool.set_processors(3)
    await until_joined(made, handlers)
    assert len(made.supervisor.running) == 3
    await made.steering.pool.set_processors(1)
    await until_joined(made, handlers)
    assert len(made.supervisor.running) == 1


@run_by(run)
async def test_a_processor_has_its_sockets_before_its_first_connection(made: Fleet, handlers: Handlers) -> None:
    made.supervisor.running[0].kill("died")
    await until(lambda: not made.supervisor.running)
    client = await made.connect()
    assert await client.echo(b"x") == b"x"
    assert [found["first"] for found in await told(made)] == ["@handler"]


@pytest.mark.parametrize(
    ("mode", "processor", "times", "error"), [("", "losing@1", 3, "no descriptor to be had"), ("breaking@1", "", 1, "the fake was told to")]
)
def test_two_processes_whose_socket_broke_get_another_which_is_a_row_and_an_event(mode: str, processor: str, times: int, error: str) -> None:
    async def scenario(made: Fleet, handlers: Handlers) -> None:
        await until(lambda: len(made.log.events("handler_rejoined")) == times)
        await until_joined(made, handlers)
        for row in made.log.events("handler_rejoined"):
            found = process(handlers, row["slot"])
            assert (row["pid"], row["generation"], row["error"], row["level"]) == (found.pid, found.generation, error, "warning")
            assert row["processor" if processor else "slot"] == 1
            assert 10 <= row["apart_ms"] < 5000
        assert [event["error"] for event in made.events if event["event"] == "handler_rejoined"] == [error] * times
        assert handlers._wiring.joined == 4
        assert [item.restarts for item in handlers.status()] == [0, 0]

    run(scenario, mode, processors=2, processor_mode=processor, processes=2)


@run_by(run, processors=2, processes=2)
async def test_no_pair_is_made_with_a_process_that_died_or_while_all_end(made: Fleet, handlers: Handlers) -> None:
    await until_joined(made, handlers)
    os.kill(process(handlers).pid, signal.SIGKILL)
    await until(lambda: made.log.events("handler_died") and len(handlers.running) == 2)
    await until_joined(made, handlers)
    await until(lambda: handlers._wiring.waiting == 0)
    assert made.log.events("handler_rejoined") == []
    assert handlers._wiring.joined == 4
    await handlers.stop()  # the processors see the ends of their sockets
    request = FakeRequest("handlers")
    for processor in made.supervisor.running:
        while (await processor.request(request, 5000))["handlers"]:
            await asyncio.sleep(0.005)
    assert handlers._wiring.joined == 0


@run_by(run)
async def test_one_that_dies_is_replaced_and_counted(made: Fleet, handlers: Handlers) -> None:
    before = status(handlers)
    os.kill(before.pid, signal.SIGKILL)
    await until(lambda: handlers.running and status(handlers).restarts == 1)
    after = status(handlers)
    assert (after.last_reason, after.generation > before.generation, after.pid != before.pid) == ("died", True, True)
    assert after.last_ended_ns > before.started_ns
    (row,) = made.log.events("handler_died")
    assert (row["slot"], row["pid"], row["exit_code"], row["reason"], row["level"]) == (0, before.pid, -9, "died", "error")
    assert [event["reason"] for event in made.events if event["event"] == "handler_died"] == ["died"]
    assert made.meters.value("handler.restarts", "died") == 1


@pytest.mark.parametrize(
    ("mode", "limits", "reason", "said"),
    [
        ("hanging", {"timeout_ms": 30_000}, "timeout", "a handler is at one frame for more than 30s"),
        ("silent", {}, "heartbeat", "its heartbeat stands for 0.1 s"),
        ("hungry", {"memory": 64 * MIB}, "memory", "of memory, more than 64MiB"),
    ],
)
def test_one_that_hangs_or_grows_is_killed(monkeypatch: pytest.MonkeyPatch, mode: str, limits: dict[str, int], reason: str, said: str) -> None:
    if mode == "silent":
        monkeypatch.setattr(process_slot, "HEARTBEAT_LIMIT_S", 0.1)

    async def scenario(made: Fleet, handlers: Handlers) -> None:
        await until(lambda: made.log.events("handler_died"))
        assert {row["reason"] for row in made.log.events("handler_died")} == {reason}
        assert said in made.log.events("handler_killed")[0]["reason"]
        await until(lambda: made.meters.value("handler.restarts", reason) >= 1)
        assert status(handlers).last_reason == reason

    run(scenario, mode, **limits)


@pytest.mark.parametrize(
    ("mode", "limits"), [("hanging", {"timeout_ms": 0}), ("hungry", {"memory": 0}), ("", {"memory": 512 * MIB, "timeout_ms": 1})]
)
def test_without_a_limit_or_below_it_nothing_is_killed(mode: str, limits: dict[str, int]) -> None:
    async def scenario(made: Fleet, handlers: Handlers) -> None:
        looks = handlers._looks
        await until(lambda: process(handlers).last_sample is not None and handlers._looks > looks + 2 * module._LOOK_AT_MEMORY)
        assert (status(handlers).restarts, status(handlers).state) == (0, "running")
        assert status(handlers).oldest_ms == (3_600_000 if mode == "hanging" else 0)

    run(scenario, mode, **limits)


@pytest.mark.slow
@pytest.mark.parametrize("who", ["control", "all"])
@patch.object(process_slot, "HEARTBEAT_LIMIT_S", 1.0)
@patch.object(Supervisor, "watch_interval_s", 0.02)
@run_by(run)
async def test_time_in_which_control_did_not_run_kills_no_process(made: Fleet, handlers: Handlers, *, who: str) -> None:
    """``all``: as when a virtual machine, or a container, is paused."""

    pids = [process(handlers).pid, made.supervisor.running[0].pid]
    await until(lambda: process(handlers).last_sample is not None)
    for pid in pids if who == "all" else []:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(1.2)
    await asyncio.sleep(0.1)  # control looks first
    for pid in pids if who == "all" else []:
        os.kill(pid, signal.SIGCONT)
    looks = handlers._looks
    await until(lambda: handlers._looks > looks + 60)
    assert [process(handlers).pid, made.supervisor.running[0].pid] == pids
    assert made.log.events("handler_killed") + made.log.events("processor_killed") == []


def test_a_first_start_that_fails_is_raised_with_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    for mode, said in (
        ("fail", "handler process 0 could not start: listener a, handler framegate.proxy.handler.echo:echo: the fake has no such handler"),
        ("exits", "handler process 0 ended with code 3 before it was ready"),
        ("newer", "handler process 0 could not start: it speaks version .* of the link"),
        ("unversioned", "handler process 0 could not start: it speaks no version"),
    ):

        async def scenario(made: Fleet, handlers: Handlers, said: str = said) -> None:
            with pytest.raises(StartError, match=said) as caught:
                await handlers.start()
            assert caught.value.reason == "HANDLER_START_FAILED"
            assert handlers.status() == []
            assert not made.steering.state.health().ready

        run(scenario, mode, start=False)


@run_by(run, "+fail")
async def test_a_later_start_that_fails_is_a_row_and_tried_again_and_meanwhile_the_pod_is_not_ready(made: Fleet, handlers: Handlers) -> None:
    assert made.steering.state.health().ready
    process(handlers).kill("died")
    await until(lambda: len(made.log.events("handler_start_failed")) >= 3)
    assert "the fake has no such handler" in made.log.events("handler_start_failed")[0]["error"]
    assert not made.steering.state.health().ready
    assert handlers.slots[0].backoff.next_s >= 0.04
    os.environ["FAKE_HANDLER"] = ""
    await until(lambda: made.steering.state.health().ready)


@run_by(run, "+fail@0", processes=2)
async def test_while_one_is_left_the_pod_is_ready(made: Fleet, handlers: Handlers) -> None:
    process(handlers).kill("died")
    await until(lambda: made.log.events("handler_start_failed"))
    assert made.steering.state.health().ready
    assert len(handlers.running) == 1


@run_by(run, "raising")
async def test_what_a_handler_raised_is_a_row_and_an_event(made: Fleet, handlers: Handlers) -> None:
    await until(lambda: made.log.events("handler_raised"))
    row = made.log.events("handler_raised")[0]
    assert (row["slot"], row["listener"], row["handler"], row["suppressed"], row["level"]) == (0, "a", ECHO, 2, "error")
    assert (row["error"], row["traceback"], row["connection"]) == ("ValueError: no", "line 1", "0-1-1")
    await until(lambda: any(event["event"] == "handler_raised" for event in made.events))


@run_by(run, "babbling")
async def test_a_handlers_notice_that_cannot_be_read_is_reported(made: Fleet, handlers: Handlers) -> None:
    await until(lambda: made.log.events("task_failed"))
    assert "no event dance" in made.log.events("task_failed")[0]["error"]
    assert [(row["handler"], row["type"]) for row in made.log.events("link_unknown")] == [(0, "dance")]
    await until(lambda: process(handlers).last_sample is not None)


@run_by(run, "parent")
async def test_what_a_handler_started_goes_with_its_process(made: Fleet, handlers: Handlers) -> None:
    await until(lambda: made.log.events("handler_output"))
    row = made.log.events("handler_output")[0]
    assert row["level"] == "info", "what a handler prints is no error of ours"
    child = int(row["line"].removeprefix("child "))
    os.kill(child, 0)
    process(handlers).kill("died")
    await until(lambda: not alive(child))


def test_stop_ends_all_and_a_process_that_does_not_react_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(made: Fleet, handlers: Handlers) -> None:
        pid = status(handlers).pid
        await handlers.stop()
        assert (status(handlers).state, status(handlers).pid, alive(pid)) == ("stopped", 0, False)
        with pytest.raises(StartError, match="the proxy ends"):
            await handlers.start()

    async def deaf(made: Fleet, handlers: Handlers) -> None:
        await handlers.stop()
        (row,) = made.log.events("handler_killed")
        assert row["reason"] == "did not stop within 0.05 s"
        assert made.log.events("handler_stopped")[0]["forced"]

    run(scenario)
    monkeypatch.setattr(process_slot, "_STOP_TIMEOUT_S", 0.05)
    run(deaf, "deaf")
