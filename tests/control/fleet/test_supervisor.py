import asyncio
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

import pytest

from framegate.control.errors import StartError
from framegate.control.fleet.processor import Slot
from framegate.control.fleet.slot_cells import ProcessorTotals
from framegate.control.fleet.supervisor import Supervisor
from framegate.control.status import RETIRED, ProcessorStatus
from framegate.proxy.cells import CellLayout, CellReader
from framegate.proxy.server.rows import TapRuleOffRow
from tests.fakes.cancelling import at_every_turn
from tests.fakes.cancelling import run as run_cancelling
from tests.fakes.fleet import Fleet, fleet, run, until
from tests.fakes.rows import closed_row, line_of
from tests.fakes.scenario import run_by

UNKNOWN = {"request": None, "response": None}


def status(made: Fleet, slot: int) -> ProcessorStatus:
    return made.supervisor.status()[slot]


def booked(made: Fleet) -> list[int]:
    """Connections on the books of each processor."""
    made.supervisor.connections.count_handed()
    return [len(item.open) for item in made.supervisor.running]


@run_by(run)
async def test_every_slot_runs_and_echoes(made: Fleet) -> None:
    assert [item.state for item in made.supervisor.status()] == ["running", "running"]
    for _ in range(4):
        assert await (await made.connect()).echo(b"hello") == b"hello"
    # The acceptor's thread books a connection after it is handed over, so its echo may be back before.
    await until(lambda: booked(made) == [2, 2])
    assert 0 <= status(made, 0).heartbeat_age_ms < 5000
    assert status(made, 0).generation > 50_000_000


@patch("framegate.control.fleet.process_slot.HEARTBEAT_LIMIT_S", 0.05)
@patch.object(Supervisor, "watch_interval_s", 0.02)
@run_by(run, 1, "stuck")
async def test_a_processor_whose_heartbeat_stands_is_killed(made: Fleet) -> None:
    await until(lambda: made.log.events("processor_died"))
    assert made.log.events("processor_died")[0]["reason"] == "heartbeat"
    assert made.meters.value("worker.restarts", "heartbeat") >= 1


@pytest.mark.parametrize("mode", ["fail", "fail@1"])
def test_a_first_start_that_fails_is_raised_and_the_others_are_stopped(mode: str) -> None:
    async def scenario(made: Fleet) -> None:
        with pytest.raises(StartError, match="the fake was told to"):
            await made.supervisor.start_slots(range(2))
        assert made.supervisor.status() == []
        assert sorted(slot for slot, _ in made.ends) == [0, 1]

    run(scenario, 2, mode, start=False)


@run_by(run)
async def test_drained_slots_end_their_connections_and_take_no_more(made: Fleet) -> None:
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


@run_by(run, 1)
async def test_a_forced_stop_is_no_crash(made: Fleet) -> None:
    client = await made.connect()
    assert await client.echo(b"x") == b"x"
    generation = status(made, 0).generation
    made.supervisor.kill_all()
    await made.supervisor.stop()
    assert made.log.events("processor_died") == []
    (stopped,) = made.log.events("processor_stopped")
    assert (stopped["level"], stopped["forced"], stopped["connections"], stopped["exit_code"]) == ("warning", True, 1, -signal.SIGKILL)
    (closed,) = made.log.events("closed")
    assert (closed["id"], closed["cause"], closed["frames"]) == (f"0-{generation}-1", "drain_timeout", UNKNOWN)
    assert "stopped by force" in closed["detail"]
    reader = made.supervisor.slots[0].cells.reader
    assert reader.cell("framegate.connection.closed", "a", "drain_timeout", "internal") == 1
    assert made.meters.value("worker.restarts", "died") == 0


def total(made: Fleet, name: str, *values: str) -> int:
    return sum(reader.cell(name, *values) for _, reader in made.supervisor.cells)


@run_by(run)
async def test_a_slot_that_is_gone_leaves_the_lists_and_its_counts_stay(made: Fleet) -> None:
    clients = [await made.connect() for _ in range(4)]
    for client in clients:
        assert await client.echo(b"x") == b"x"
    generation = status(made, 1).generation
    for round_ in (1, 2):
        held = made.supervisor.cells
        await made.supervisor.remove_slots([1], 1000)
        assert [item.slot for item in made.supervisor.status()] == [0]
        assert [slot for slot, _ in made.supervisor.cells] == [RETIRED, 0]
        assert total(made, "framegate.connection.accepted", "a") == 4
        assert total(made, "framegate.connection.closed", "a", "drained", "internal") == 2
        assert total(made, "framegate.memory_pool.limit", "frames") == made.desired.shares[0]
        assert sum(reader.cell("framegate.connection.accepted", "a") for _, reader in held) == 4  # who reads still may
        await made.supervisor.start_slots([1])
        assert status(made, 1).generation >= generation + round_
        assert status(made, 1).restarts == 0
        assert [slot for slot, _ in made.supervisor.cells] == [RETIRED, 0, 1]
        assert total(made, "framegate.connection.accepted", "a") == 4


@run_by(run)
async def test_other_threads_see_every_slot_while_another_layout_begins(made: Fleet) -> None:
    await made.supervisor.remove_slots([1], 1000)
    copied, seen = CellReader._copied, []

    def noted(layout: CellLayout, cells: Sequence[int]) -> CellReader:
        seen.append([slot for slot, _ in made.supervisor.cells])
        return copied(layout, cells)

    layout = made.desired.layout.with_brokers("u", [1, 2])
    with patch.object(CellReader, "_copied", staticmethod(noted)):
        made.supervisor.make_room(layout)
        made.supervisor.follow_layout(layout)
    assert seen
    assert [slots for slots in seen if slots != [RETIRED, 0]] == []
    assert all(reader.layout is layout for _, reader in made.supervisor.cells)


@patch("framegate.control.fleet.process_slot._BACKOFF_FIRST_S", 0.01)
@run_by(run, 1)
async def test_a_failure_after_the_end_of_a_process_is_counted_and_the_next_starts(made: Fleet) -> None:
    failures = 2

    def ended(slot: Slot, life: ProcessorTotals) -> None:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise ValueError("a full disk")

    made.supervisor._on_end = ended
    for restarts in (1, 2):
        os.kill(made.supervisor.running[0].pid, signal.SIGKILL)
        await until(lambda expected=restarts: status(made, 0).restarts == expected and status(made, 0).state == "running")
    assert made.meters.value("task.failures", "slot") == 2
    assert await (await made.connect()).echo(b"x") == b"x"


@run_by(run, 1)
async def test_a_notice_that_cannot_be_read_is_reported_and_others_are_handled(made: Fleet) -> None:
    processor = made.supervisor.running[0]
    lines = [line_of(closed_row(id=1, listener="a"), 5), line_of(closed_row(id=2, listener="a"), 6).replace("frames", "framez")]
    made.supervisor._notice(processor, {"type": "closed", "rows": ["nonsense", *lines]})
    fields = TapRuleOffRow(rule="all", cause="cpu", percent=50, limit=30)
    for row in ({}, {**fields, "percent": "50"}, {**fields, "colour": "red"}):
        made.supervisor._notice(processor, {"type": "log", "level": "warning", "event": "tap_rule_off", "fields": row})
    made.supervisor._notice(processor, {"type": "log"})
    made.supervisor._notice(processor, {"type": "log", "level": "info", "event": "dance", "fields": {}})
    made.supervisor._notice(processor, {"type": "drained", "open": 0})
    made.supervisor._notice(processor, {"type": "dance"})
    assert [event["id"] for event in made.events] == [1]
    assert made.meters.value("task.failures", "slot") == 8
    told = [row["error"] for row in made.log.events("task_failed") if row["task"] == "slot"]  # the acceptor, too, knows no connection 1
    keys = ("closed row", "closed.frames is missing", "tap_rule_off.rule is missing", ".percent must be float", ".colour is not known")
    for key, text in zip((*keys, "log.level is missing", "no event dance", "drained.cut_off is missing"), told, strict=True):
        assert key in text
    assert [row["type"] for row in made.log.events("link_unknown")] == ["dance"]


def test_a_start_that_is_cancelled_leaves_no_process_and_no_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it is cancelled: the turns of the loop are counted."""
    monkeypatch.setattr(
        "framegate.control.steering.pool.BALANCE_INTERVAL_S", 3600.0
    )  # it would share among those that run, and a busy machine is slow

    async def main() -> None:
        async with fleet(1) as made:

            async def check() -> None:
                if len(made.supervisor.status()) == 2:
                    await made.supervisor.remove_slots([1], 100)
                assert [item.state for item in made.supervisor.status()] == ["running"]
                assert list(made.supervisor.connections._processors.values())[-1] is not None
                assert len(children() - others) == 1

            made.desired.shares = {0: 1 << 20, 1: 1 << 20}
            assert await at_every_turn(lambda: made.supervisor.start_slots([1]), check) > 3

    def children() -> set[str]:
        return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())

    others = children()  # of tests before this one; they may end meanwhile
    run_cancelling(main())


@run_by(run, 1)
async def test_a_stop_that_is_cut_off_after_a_kill_still_accounts_for_every_end(made: Fleet, *, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await made.connect()
    assert await client.echo(b"hello") == b"hello"
    processor = made.supervisor.running[0]
    os.kill(processor.pid, signal.SIGSTOP)
    kill, loop = processor.kill, asyncio.get_running_loop()
    monkeypatch.setattr(processor, "kill", lambda reason: loop.call_later(0.05, kill, reason))  # the kernel takes its time
    stopping = asyncio.create_task(made.supervisor.stop())
    await asyncio.sleep(0)
    made.supervisor.kill_all()
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert [slot for slot, _ in made.ends] == [0]
    assert [row["cause"] for row in made.log.events("closed")] == ["drain_timeout"]
