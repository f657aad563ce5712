"""Over fake processors, which refuse what real ones refuse."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any
from unittest.mock import patch

import pytest

from framegate.control.errors import AbortedError, UnavailableError
from framegate.control.fleet import process_slot, two_phases
from framegate.control.fleet.supervisor import Supervisor
from framegate.proxy.config.model import MIB, difference_to_wire
from framegate.proxy.server.messages import Change
from framegate.proxy.server.protocol import prepare_request
from tests.fakes.cancelling import at_every_turn
from tests.fakes.cancelling import run as run_cancelling
from tests.fakes.changes import edited
from tests.fakes.fleet import Fleet, run, until
from tests.fakes.scenario import run_by


def change(made: Fleet, size: int, at_decision: Callable[[], None] = lambda: None) -> Awaitable[None]:
    """Set the limit of listener a."""

    return made.supervisor.change_config(lambda config: edited(config, sizes={"a": size}), decided=at_decision)


def in_force(made: Fleet) -> set[int]:
    """The limits that control and every processor hold."""
    cells = [slot.cells.reader.cell("framegate.frame.size.limit", "a") for slot in made.supervisor.slots.values()]
    return {*cells, made.desired.config.listeners[0].max_receive_size}


@run_by(run)
async def test_a_change_is_in_force_everywhere_when_it_returns(made: Fleet) -> None:
    assert in_force(made) == {MIB}
    revision = made.desired.revision
    await change(made, 7)
    assert in_force(made) == {7}
    assert made.desired.revision == revision + 1


@run_by(run, 2, "refuse@1")
async def test_a_change_that_one_processor_refuses_is_aborted_in_all(made: Fleet) -> None:
    with pytest.raises(AbortedError, match="processor 1: the fake was told to") as caught:
        await change(made, 7)
    assert caught.value.reason == "CHANGE_REFUSED"
    assert (in_force(made), made.desired.revision) == ({MIB}, 1)
    request = prepare_request(Change(config=difference_to_wire(made.desired.config, edited(made.desired.config, sizes={"a": 8}))))
    assert (await made.supervisor.running[0].request(request, 10_000))["type"] == "prepared"


@run_by(run, 1, "silent")
async def test_a_processor_that_runs_and_does_not_answer_aborts_the_change(made: Fleet, *, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(two_phases, "PATIENCE_S", 0.05)
    with pytest.raises(AbortedError, match=r"processor 0 did not answer within 0.05 s") as caught:
        await change(made, 7)
    assert caught.value.reason == "PROCESSOR_SILENT"
    assert (in_force(made), made.desired.revision) == ({MIB}, 1)
    assert made.log.events("processor_killed") == []


@run_by(run)
async def test_a_slow_processor_is_waited_for_in_both_phases(made: Fleet) -> None:
    """For longer than the 500 ms after which one was killed once."""

    slow = made.supervisor.running[1]
    os.kill(slow.pid, signal.SIGSTOP)
    changing = asyncio.ensure_future(change(made, 7, lambda: os.kill(slow.pid, signal.SIGSTOP)))
    for _ in ("prepare", "commit"):
        await asyncio.wait((changing,), timeout=0.6)
        assert not changing.done()
        assert len(made.supervisor.status()) == 2  # who only looks does not wait
        os.kill(slow.pid, signal.SIGCONT)
        if made.desired.revision == 1:
            await until(lambda: made.desired.revision == 2)
    await changing
    assert in_force(made) == {7}
    assert made.supervisor.running[1] is slow
    assert made.log.events("processor_killed") == []


@pytest.mark.parametrize("phase", ["prepare", "commit"])
@patch.object(process_slot, "HEARTBEAT_LIMIT_S", 0.3)
@patch.object(Supervisor, "watch_interval_s", 0.02)
@run_by(run)
async def test_a_heartbeat_that_stands_ends_the_wait_and_the_successor_has_the_change(made: Fleet, *, phase: str) -> None:
    standing = made.supervisor.running[1].pid

    def stand() -> None:
        os.kill(standing, signal.SIGSTOP)

    if phase == "prepare":
        stand()
    await change(made, 7, stand if phase == "commit" else lambda: None)
    assert made.desired.config.listeners[0].max_receive_size == 7
    assert made.log.events("change_unconfirmed")[0]["pid"] == standing
    await until(lambda: made.supervisor.slots[1].restarts == 1 and len(made.supervisor.running) == 2)
    assert in_force(made) == {7}
    assert made.log.events("processor_died")[0]["reason"] == "heartbeat"
    assert made.meters.value("worker.restarts", "commit") == 0


@run_by(run, 1, "unconfirmed")
async def test_a_processor_that_runs_and_does_not_confirm_is_reported_and_not_killed(made: Fleet, *, monkeypatch: pytest.MonkeyPatch) -> None:
    pids = [item.pid for item in made.supervisor.running]
    with pytest.raises(UnavailableError, match="processor 0 has not confirmed it") as caught:
        await change(made, 13, lambda: monkeypatch.setattr(two_phases, "PATIENCE_S", 0.05))
    assert (caught.value.reason, caught.value.metadata) == ("CHANGE_PENDING", {"processors": "0"})
    assert made.log.events("change_unconfirmed")[0]["slot"] == 0
    monkeypatch.undo()
    await change(made, 7)
    assert in_force(made) == {7}
    assert [item.pid for item in made.supervisor.running] == pids


@run_by(run, 2, "broken@1")
async def test_a_processor_that_refuses_a_decided_change_is_replaced_by_one_that_has_it(made: Fleet) -> None:
    await change(made, 7)
    await until(lambda: made.supervisor.slots[1].restarts == 1 and made.supervisor.slots[1].state == "running")
    assert in_force(made) == {7}
    assert made.log.events("processor_died")[0]["reason"] == "commit"
    assert made.meters.value("worker.restarts", "commit") == 1


@run_by(run, 1)
async def test_a_plan_that_fails_changes_nothing_and_the_next_change_works(made: Fleet) -> None:
    def check() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await made.supervisor.change(lambda slot: {}, lambda desired: None, check)
    await change(made, 7)
    assert in_force(made) == {7}


@run_by(run, 1, "slow_start")
async def test_a_processor_that_was_starting_during_a_change_has_it_before_it_takes_connections(made: Fleet) -> None:
    slot = made.supervisor.slots[0]
    assert slot.child is not None
    slot.child.kill("died")
    await until(lambda: slot.state == "restarting" and slot.child is not None)
    await change(made, 7)
    assert slot.state == "restarting"
    await until(lambda: slot.state == "running")
    assert in_force(made) == {7}


@run_by(run, 2, runner=run_cancelling)
async def test_a_change_that_is_cancelled_anywhere_is_had_by_all_or_none_and_the_next_can_be_made(made: Fleet) -> None:
    sizes = iter(range(100, 1000))
    ends: set[bool] = set()
    before, wanted = MIB, 0

    def call() -> Any:
        nonlocal wanted
        wanted = next(sizes)

        async def make() -> None:
            await change(made, wanted)

        return make()

    async def check() -> None:
        nonlocal before
        held = made.desired.config.listeners[0].max_receive_size
        assert held in (before, wanted)
        ends.add(held == wanted)
        before = next(sizes)
        await change(made, before)
        assert in_force(made) == {before}

    cancelled = await at_every_turn(call, check)
    assert cancelled >= 3
    assert ends == {True, False}


@run_by(run)
async def test_one_that_waits_for_its_turn_can_be_cancelled(made: Fleet) -> None:
    os.kill(made.supervisor.running[1].pid, signal.SIGSTOP)
    first = asyncio.ensure_future(change(made, 7))
    second = asyncio.ensure_future(change(made, 8))
    await asyncio.wait((first, second), timeout=0.05)
    second.cancel()
    await asyncio.wait((second,))
    os.kill(made.supervisor.running[1].pid, signal.SIGCONT)
    await first
    assert in_force(made) == {7}
