"""framegate.control.steering.drain: what is open ends, whoever waits for it."""

import asyncio
import dataclasses
from typing import Any
from unittest.mock import patch

import pytest

from framegate.control.errors import UnavailableError
from framegate.control.fleet.processor import Processor
from framegate.proxy.config.model import DrainConfig
from tests.fakes.cancelling import at_every_turn
from tests.fakes.cancelling import run as run_cancelling
from tests.fakes.fleet import Fleet, open_channels, run, until
from tests.fakes.scenario import run_by


@pytest.mark.parametrize("accept", ["until_stop", "refuse"])
@run_by(run)
async def test_the_gauges_say_draining_from_the_first_request_on(made: Fleet, *, accept: Any) -> None:
    def shown() -> dict[str, float]:
        values = made.steering.state.measurements()
        ready = {f"ready {dict(at)['framegate.probe']}": value for (name, at), value in values.items() if name == "framegate.ready"}
        return ready | {"draining": values["framegate.draining", ()], "time": values["framegate.drain.time", ()]}

    assert shown() == {"ready startup": 1, "ready readiness": 1, "ready liveness": 1, "draining": 0, "time": 0}
    await made.steering.drain.run(wait=False, accept=accept)
    first = shown()
    assert (first["ready readiness"], first["ready liveness"], first["draining"]) == (0, 1, 1)
    await asyncio.sleep(0.01)
    await made.steering.drain.run(wait=False, accept=accept)
    assert shown()["time"] >= first["time"] + 0.01  # a second request does not begin it anew


@run_by(run, 2, "deaf@1")
async def test_a_drain_waits_for_the_end_of_a_processor_that_dies_meanwhile(made: Fleet) -> None:
    await open_channels(made, 4)
    draining = asyncio.ensure_future(made.steering.drain.run(5000))
    await until(lambda: made.steering.pool.draining)
    made.supervisor.running[1].kill("died")
    assert (await draining).open == 0


@run_by(run, 2, runner=run_cancelling)
async def test_a_drain_that_is_cancelled_goes_on(made: Fleet) -> None:
    await open_channels(made, 3)
    ends: list[int] = []

    async def check() -> None:
        await until(lambda: not made.steering.transactions._running)
        ends.append(sum(item.connections for item in made.steering.listeners.statuses()))

    assert await at_every_turn(lambda: made.steering.drain.run(1000), check) >= 2
    assert ends[:2] == [3, 0]
    assert made.log.events("change_settled")[0]["change"] == "drain"
    assert [item.state for item in made.steering.state.processor_statuses()] == ["draining", "draining"]


@patch("framegate.control.fleet.supervisor.PATIENCE_S", 0.5)
@run_by(run, 2, "deaf@1")
async def test_a_drain_that_a_processor_does_not_answer_is_an_error(made: Fleet) -> None:
    with pytest.raises(UnavailableError, match="processor 1 has not said so") as caught:
        await made.steering.drain.run(1000)
    assert caught.value.metadata == {"processors": "1"}


@run_by(run)
async def test_until_the_stop_connections_go_on_and_are_taken_and_only_readiness_is_gone(made: Fleet) -> None:
    await open_channels(made, 2)
    result = await made.steering.drain.run(wait=False, by="framegate cli", reason="preStop")
    assert (result.closed, result.open) == (0, 2)
    health = made.steering.state.health()
    assert (health.ready, health.alive, health.draining) == (False, True, True)
    (listener,) = made.steering.listeners.statuses()
    assert listener.accepting
    assert await made._clients[0].echo(b"old") == b"old"
    assert await (await made.connect()).echo(b"new") == b"new"
    await made.steering.drain.run(wait=False, by="framegate cli")  # once is enough
    result = await made.steering.drain.run(1000, by="signal")
    assert (result.closed, result.open) == (3, 0)
    began = {"event": "drain_began", "level": "info"}
    assert [row for row in made.log.rows if row["event"].startswith("drain")] == [
        {**began, "accept": "until_stop", "by": "framegate cli", "reason": "preStop", "timeout_ms": 30000, "delay_ms": 5000, "connections": 2},
        {**began, "accept": "refuse", "by": "signal", "reason": None, "timeout_ms": 1000, "connections": 3},
        {"event": "drain_ended", "level": "info", "connections": 0},
    ]


@pytest.mark.parametrize(
    ("options", "configured", "ends"),
    [
        ({"wait": False}, "until_stop", False),
        ({"wait": False}, "refuse", True),
        ({"wait": True}, "until_stop", True),
        ({"wait": False, "timeout_ms": 0}, "until_stop", True),
        ({"wait": False, "accept": "refuse"}, "until_stop", True),
        ({"wait": False, "accept": "until_stop"}, "refuse", False),
    ],
)
@run_by(run, 1)
async def test_the_request_decides_over_the_configuration_whether_connections_end(made: Fleet, *, options: Any, configured: Any, ends: bool) -> None:
    desired = made.supervisor.desired
    desired.config = dataclasses.replace(desired.config, drain=DrainConfig(timeout_ms=1000, accept=configured))
    await open_channels(made, 1)
    await made.steering.drain.run(**options)
    (listener,) = made.steering.listeners.statuses()
    assert listener.accepting is not ends
    if ends:
        await until(lambda: made.log.events("drain_ended") != [])
    assert (made.steering.listeners.connections(), len(made.log.events("drain_ended"))) == ((0, 1) if ends else (1, 0))


@run_by(run, 2)
async def test_until_the_stop_each_processor_is_told_once_to_end_connections_of_other_pods(made: Fleet) -> None:
    desired = made.supervisor.desired
    desired.config = dataclasses.replace(desired.config, drain=DrainConfig(timeout_ms=1000, delay_ms=60_000))
    asked: list[tuple[int, Any]] = []
    original = Processor.request

    async def request(processor: Processor, wanted: Any, timeout_ms: int) -> Any:
        asked.append((processor.slot, wanted.message))
        return await original(processor, wanted, timeout_ms)

    with patch.object(Processor, "request", request):
        for _ in range(2):
            await made.steering.drain.run(wait=False)
    told = sorted((slot, message["type"], message["timeout_ms"]) for slot, message in asked)
    assert told == [(slot, "drain", 1000) for slot in (0, 1)]
    assert all(30_000 < message["delay_ms"] <= 60_000 for _, message in asked), "without the time that has passed"


@patch("framegate.control.fleet.supervisor.PATIENCE_S", 0.1)
@run_by(run, 2, "deaf@1")
async def test_until_the_stop_a_processor_that_does_not_answer_has_a_row(made: Fleet) -> None:
    await made.steering.drain.run(wait=False)
    assert [row["slot"] for row in made.log.events("drain_incomplete")] == [1]
