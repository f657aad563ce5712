"""The shipper's process as control keeps it: what it is told, what its rows say, that it comes back, and that it ends."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from framegate.control.fleet.child import Reaper
from framegate.control.meters import Meters
from framegate.control.tap import shipping
from framegate.control.tap.shipping import Progress, ShippingProcess
from framegate.control.task_monitor import TaskMonitor
from framegate.proxy.config.model import ShipConfig
from tests.fakes.fleet import MemoryLog

CHILD = """
import json, os, socket, sys
connection = socket.socket(fileno=os.dup(0))
first = json.loads(connection.recv(100_000))
say = lambda text: connection.send(json.dumps({"error": text}).encode())
say(json.dumps([first, {name: value for name, value in os.environ.items() if "SECRET" in name}]))
while data := connection.recv(100_000):
    say(data.decode())
    if "die" in data.decode():
        sys.exit(3)
    if "hang" in data.decode():
        import time; time.sleep(60)
say("")
"""


def run(scenario: Callable[[ShippingProcess, MemoryLog, list[Progress]], Awaitable[None]], child: str = CHILD, *, close: bool = True) -> MemoryLog:
    """``close``: the reaper is closed before the end, as at control's end."""
    log, told = MemoryLog(), [Progress("n.0.a", True, 4)]

    async def main() -> None:
        reaper = Reaper()
        meters = Meters()
        monitor = TaskMonitor(log, meters)
        ship = ShipConfig(to="s3://bucket/p/", interval_ms=5000, bandwidth=7)
        made = ShippingProcess("/tap", "edge", ship, lambda: told, reaper, log, monitor, meters, (sys.executable, "-c", child))
        made.start()
        try:
            async with asyncio.timeout(20):
                await scenario(made, log, told)
                if close:
                    reaper.close()
                await made.stop()
        finally:
            reaper.close()

    asyncio.run(main())
    return log


async def rows(log: MemoryLog, event: str, count: int) -> list[Any]:
    while len(log.events(event)) < count:
        await asyncio.sleep(0.01)
    return log.events(event)


async def running(made: ShippingProcess) -> int:
    while made.pid is None:
        await asyncio.sleep(0.005)
    return made.pid


def test_it_is_told_what_it_needs_and_gets_the_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipping, "TELL_S", 0.02)
    for name in ("AWS_SECRET_ACCESS_KEY", "DATABASE_SECRET"):
        monkeypatch.setenv(name, "x")

    async def scenario(made: ShippingProcess, log: MemoryLog, told: list[Progress]) -> None:
        first, second = [row["error"] for row in (await rows(log, "tap_ship_failed", 2))[:2]]
        options, environment = json.loads(first)
        assert options == {"directory": "/tap", "url": "s3://bucket/p/edge", "interval_ms": 5000, "bandwidth": 7}
        assert environment == {"AWS_SECRET_ACCESS_KEY": "x"}
        message = json.loads(second)
        idle_ns, failed_ns = message["streams"]["n.0.a"]
        assert idle_ns == failed_ns == message["at_ns"], "nobody knows when its writes failed before it was looked at"
        told[:] = [Progress("n.0.a", False, 4)]
        before = len(log.rows)
        *_, later = await rows(log, "tap_ship_failed", before + 3)
        assert json.loads(later["error"])["streams"]["n.0.a"] == [0, failed_ns]
        told[:] = [Progress("n.0.a", False, 5)]
        before = len(log.rows)
        *_, later = await rows(log, "tap_ship_failed", before + 3)
        assert json.loads(later["error"])["streams"]["n.0.a"][1] > failed_ns

    run(scenario)


def test_it_is_started_again_later_and_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipping, "FIRST_DELAY_S", 0.01)
    monkeypatch.setattr(shipping, "LONGEST_DELAY_S", 0.03)

    async def scenario(made: ShippingProcess, log: MemoryLog, told: list[Progress]) -> None:
        for number in range(4):
            os.kill(await running(made), signal.SIGKILL)
            await rows(log, "tap_ship_died", number + 1)
        assert [row["delay_s"] for row in log.events("tap_ship_died")] == [0.01, 0.02, 0.03, 0.03]
        assert {row["code"] for row in log.events("tap_ship_died")} == {-signal.SIGKILL}
        assert made._failing
        monkeypatch.setattr(shipping, "STEADY_S", 0.0)
        os.kill(await running(made), signal.SIGKILL)
        assert (await rows(log, "tap_ship_died", 5))[-1]["delay_s"] == 0.01

    run(scenario)


def test_one_that_cannot_be_started_is_a_row() -> None:
    log, meters = MemoryLog(), Meters()

    async def main() -> None:
        reaper = Reaper()
        made = ShippingProcess("/tap", "e", ShipConfig(to="s3://b"), list, reaper, log, TaskMonitor(log, meters), meters, ("/nowhere/at/all",))
        made.start()
        assert meters.snapshot()["framegate.tap.ship.failing", ()] == 1
        await made.stop()
        reaper.close()

    asyncio.run(main())
    assert [row["error"] for row in log.rows] == ["no process: No such file or directory"]


@pytest.mark.parametrize("hangs", [False, True])
def test_the_end_waits_for_what_is_left_but_not_for_long(monkeypatch: pytest.MonkeyPatch, hangs: bool) -> None:
    monkeypatch.setattr(shipping, "END_S", 0.3 if hangs else 10.0)
    pids: list[int | None] = []

    async def scenario(made: ShippingProcess, log: MemoryLog, told: list[Progress]) -> None:
        await rows(log, "tap_ship_failed", 2)
        pids.append(made.pid)

    log = run(scenario, CHILD.replace('"hang"', '"at_ns"') if hangs else CHILD)
    assert not log.events("tap_ship_died")
    assert pids[0] is not None
    assert not os.path.exists(f"/proc/{pids[0]}")


def test_a_process_that_does_not_listen_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipping, "TELL_S", 0.0)
    monkeypatch.setattr(shipping, "END_S", 0.1)

    async def scenario(made: ShippingProcess, log: MemoryLog, told: list[Progress]) -> None:
        told[:] = [Progress("s" * 40, True, number) for number in range(400)]
        await asyncio.sleep(0.3)

    assert run(scenario, "import time; time.sleep(60)").rows == []


def test_a_fault_of_what_it_is_told_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(made: ShippingProcess, log: MemoryLog, told: list[Progress]) -> None:
        told[:] = [None]  # type: ignore[list-item]
        made._tell()

    assert [row["event"] for row in run(scenario).rows if row["event"] == "task_failed"] == ["task_failed"]


def test_a_store_that_refuses_is_a_gauge_until_it_takes_something(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipping, "TELL_S", 0.02)
    child = CHILD.replace('say("")', "").replace(
        "    say(data.decode())", '    say("refused" if "die" not in data.decode() and "open" not in data.decode() else "")'
    )

    async def scenario(made: ShippingProcess, log: MemoryLog, told: list[Progress]) -> None:
        await rows(log, "tap_ship_failed", 2)
        assert made._failing
        told[:] = [Progress("open", True, 4)]
        await rows(log, "tap_shipping", 1)
        assert not made._failing

    run(scenario, child)
