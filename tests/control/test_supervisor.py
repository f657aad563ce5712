import asyncio
import dataclasses
import os
import signal
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from control import supervisor as module
from control.acceptor import Handed
from control.errors import AbortedError, StartError
from control.plane import ProcessorStatus
from control.supervisor import Facts
from proxy.server.link import Handover, encode_closed
from tests.fakes.fleet import Fleet, fleet, until

Scenario = Callable[[Fleet], Awaitable[None]]


def run(scenario: Scenario, processors: int = 2, mode: str = "", **options: Any) -> None:
    async def main() -> None:
        async with fleet(processors, mode, **options) as made:
            await scenario(made)

    asyncio.run(main())


def status(made: Fleet, slot: int) -> ProcessorStatus:
    return made.supervisor.status()[slot]


def test_every_slot_runs_and_echoes() -> None:
    async def scenario(made: Fleet) -> None:
        assert [item.state for item in made.supervisor.status()] == ["running", "running"]
        for _ in range(4):
            assert await (await made.connect()).echo(b"hello") == b"hello"
        made.supervisor.count_handed()
        assert [len(item.open) for item in made.supervisor.running] == [2, 2]
        assert 0 <= status(made, 0).heartbeat_age_ms < 5000
        assert status(made, 0).generation > 50_000_000

    run(scenario)


def test_closed_rows_are_logged_published_and_counted() -> None:
    async def scenario(made: Fleet) -> None:
        client = await made.connect()
        assert await client.echo(b"hello") == b"hello"
        await client.close()
        await until(lambda: made.events)
        (row,) = made.log.events("closed")
        assert (row["cause"], row["peer"]) == ("peer_closed", made.events[0]["peer"])
        assert row["id"].split("-")[2] == "1"
        assert isinstance(made.events[0]["id"], int)
        assert made.acceptor.listeners["a"].open == 0
        assert made.supervisor.running[0].open == {}

    run(scenario, 1)


def test_a_row_that_overtakes_the_booking_of_its_connection_leaves_nothing_open() -> None:
    async def scenario(made: Fleet) -> None:
        processor = made.supervisor.running[0]
        handover = Handover(5, socket.AF_INET, "a", "192.0.2.1:1")
        row = {"id": 1, "listener": "a", "peer": handover.peer, "cause": "peer_closed"}
        made.supervisor._notice(processor, {"type": "closed", "rows": [encode_closed(row, handover.accepted_ns)]})
        made.acceptor.handed.append(Handed(made.supervisor._token_of[processor], handover))
        made.supervisor.count_handed()
        assert processor.open == {}
        assert [event["id"] for event in made.events] == [1]

    run(scenario, 1)


def test_a_processor_that_dies_takes_only_its_own_connections_and_is_replaced() -> None:
    async def scenario(made: Fleet) -> None:
        victim, other = await made.connect(), await made.connect()
        assert await other.echo(b"hello") == b"hello"
        generation = status(made, 0).generation
        assert await victim.echo(b"die") == b""
        await until(lambda: status(made, 0).state == "running" and status(made, 0).restarts == 1)
        assert status(made, 0).generation > generation
        assert await other.echo(b"still here") == b"still here"
        (died,) = made.log.events("processor_died")
        assert (died["slot"], died["exit_code"], died["connections"], died["reason"]) == (0, 9, 1, "died")
        (closed,) = made.log.events("closed")
        assert (closed["cause"], closed["peer"]) == ("processor_died", victim.peer)
        assert made.meters.value("worker.restarts", "died") == 1
        assert made.acceptor.listeners["a"].open == 1
        assert [slot for slot, _ in made.ends] == [0]
        for _ in range(2):
            assert await (await made.connect()).echo(b"new") == b"new"

    run(scenario)


def test_restarts_back_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BACKOFF_FIRST_S", 0.01)

    async def scenario(made: Fleet) -> None:
        slot = made.supervisor.slots[0]
        for restarts in (1, 2, 3):
            assert slot.processor is not None
            slot.processor.kill("died")
            await until(lambda expected=restarts: slot.restarts == expected and slot.state == "running")
        assert slot.backoff_s == pytest.approx(0.08)

    run(scenario, 1)


def test_a_standing_heartbeat_is_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEARTBEAT_LIMIT_S", 0.05)
    monkeypatch.setattr(module, "_WATCH_INTERVAL_S", 0.02)

    async def scenario(made: Fleet) -> None:
        await until(lambda: made.log.events("processor_died"))
        assert made.log.events("processor_died")[0]["reason"] == "heartbeat"
        assert made.meters.value("worker.restarts", "heartbeat") >= 1

    run(scenario, 1, "stuck")


def test_a_first_start_that_fails_is_raised_and_the_others_are_stopped() -> None:
    async def scenario(made: Fleet) -> None:
        with pytest.raises(StartError, match="the fake was told to"):
            await made.supervisor.start_slots(range(2))
        assert [item.state for item in made.supervisor.status()] == ["stopped", "stopped"]

    run(scenario, 2, "fail", start=False)


def limit(size: int) -> tuple[Callable[[int], dict[str, Any]], Callable[[Facts], None], list[int]]:
    committed: list[int] = []
    return lambda slot: {"max_receive_size": {"a": size}}, lambda facts: committed.append(size), committed


async def limits_in_force(made: Fleet) -> list[int]:
    """What each processor holds, asked over one connection each."""
    found = []
    for processor in made.supervisor.running:
        answer = await processor.request({"type": "list", "after": 0, "limit": 1, "listener": None}, 1000)
        found.append(answer["rows"][0]["facts"]["max_receive_size"]["a"])
    return found


def test_a_change_is_in_force_everywhere_when_it_returns() -> None:
    async def scenario(made: Fleet) -> None:
        for _ in range(2):
            assert await (await made.connect()).echo(b"x") == b"x"
        build, commit, committed = limit(7)
        revision = made.facts.revision
        await made.supervisor.change(build, commit)
        assert await limits_in_force(made) == [7, 7]
        assert (committed, made.facts.revision) == ([7], revision + 1)

    run(scenario)


@pytest.mark.parametrize(("mode", "part"), [("refuse", "the fake was told to"), ("silent", "did not answer within 500 ms")])
def test_refused_or_not_answered_nobody_has_it(mode: str, part: str) -> None:
    async def scenario(made: Fleet) -> None:
        build, commit, committed = limit(7)
        with pytest.raises(AbortedError, match=part):
            await made.supervisor.change(build, commit)
        assert committed == []
        assert made.facts.revision == 1

    run(scenario, 1, mode)


def test_a_stopped_processor_aborts_the_change_for_the_others_too() -> None:
    async def scenario(made: Fleet) -> None:
        for _ in range(2):
            assert await (await made.connect()).echo(b"x") == b"x"
        stopped = made.supervisor.running[1].pid
        os.kill(stopped, signal.SIGSTOP)
        build, commit, committed = limit(7)
        with pytest.raises(AbortedError):
            await made.supervisor.change(build, commit)
        os.kill(stopped, signal.SIGCONT)
        assert await limits_in_force(made) == [1 << 20, 1 << 20]
        assert committed == []

    run(scenario)


def test_one_that_does_not_confirm_is_restarted_with_the_committed_state() -> None:
    async def scenario(made: Fleet) -> None:
        build, _, _ = limit(13)

        def commit(facts: Facts) -> None:
            facts.shares = {0: 99}

        await made.supervisor.change(build, commit)
        await until(lambda: status(made, 0).restarts == 1 and status(made, 0).state == "running")
        assert made.log.events("processor_died")[0]["reason"] == "commit"
        assert made.meters.value("worker.restarts", "commit") == 1
        assert await (await made.connect()).echo(b"x") == b"x"
        answer = await made.supervisor.running[0].request({"type": "list", "after": 0, "limit": 1, "listener": None}, 1000)
        assert answer["rows"][0]["facts"]["share"] == 99

    run(scenario, 1, "unconfirmed")


def test_a_check_that_fails_changes_nothing() -> None:
    async def scenario(made: Fleet) -> None:
        build, commit, committed = limit(7)

        def check() -> None:
            raise ValueError("no")

        with pytest.raises(ValueError, match="no"):
            await made.supervisor.change(build, commit, check)
        assert committed == []

    run(scenario, 1)


def test_a_processor_that_was_starting_during_a_change_has_it_before_it_takes_connections() -> None:
    async def scenario(made: Fleet) -> None:
        slot = made.supervisor.slots[0]
        assert slot.processor is not None
        slot.processor.kill("died")
        await until(lambda: slot.state == "restarting" and slot.processor is not None)
        build, commit, _ = limit(7)

        def commit_limit(facts: Facts) -> None:
            commit(facts)
            listeners = tuple(dataclasses.replace(item, max_receive_size=7) for item in facts.config.listeners)
            facts.config = dataclasses.replace(facts.config, listeners=listeners)

        await made.supervisor.change(build, commit_limit)
        assert slot.state == "restarting"
        await until(lambda: slot.state == "running")
        assert await (await made.connect()).echo(b"x") == b"x"
        assert await limits_in_force(made) == [7]

    run(scenario, 1, "slow_start")


def test_drained_slots_end_their_connections_and_take_no_more() -> None:
    async def scenario(made: Fleet) -> None:
        client = await made.connect()
        assert await client.echo(b"hello") == b"hello"
        await made.supervisor.drain_slots([0], 1000)
        assert await client.reader.read() == b""
        assert status(made, 0).state == "draining"
        await made.supervisor.stop_slots([0])
        assert status(made, 0).state == "stopped"
        for _ in range(3):
            assert await (await made.connect()).echo(b"other") == b"other"
        await made.supervisor.start_slots([0])
        assert status(made, 0).state == "running"

    run(scenario)
