"""control.steering.steering: what there is, and the pool, as the plane shows and changes them."""

import pytest

from control.errors import FailedPreconditionError, InvalidArgumentError, UnavailableError
from proxy.config.model import MIB
from tests.fakes.fleet import Fleet, facts, open_channels, run, until


def test_the_pool_is_resized_and_divided() -> None:
    async def scenario(made: Fleet) -> None:
        await open_channels(made, 2)
        pool = await made.steering.set_pool_size(5 * MIB + 1)
        assert [item.share for item in pool.shares] == [5 * MIB // 2 + 1, 5 * MIB // 2]
        assert (pool.size, pool.processors) == (5 * MIB + 1, 2)
        assert [each["share"] for each in await facts(made)] == [item.share for item in pool.shares]
        with pytest.raises(FailedPreconditionError):
            await made.steering.set_pool_size(2 * MIB - 1)
        with pytest.raises(InvalidArgumentError):
            await made.steering.set_pool_size(0)

    run(scenario)


def test_processors_are_added_and_removed_and_the_pool_follows() -> None:
    async def scenario(made: Fleet) -> None:
        await open_channels(made, 2)
        pool = await made.steering.set_processors(3)
        assert [item.share for item in pool.shares] == [4 * MIB] * 3
        assert [item.state for item in await made.steering.status()] == ["running"] * 3
        assert made.steering.config.processors == 3
        await open_channels(made, 3)
        pool = await made.steering.set_processors(1)
        assert [(item.slot, item.share) for item in pool.shares] == [(0, 12 * MIB)]
        assert [item.state for item in await made.steering.status()] == ["running"]
        assert {row["cause"] for row in made.events} == {"drained"}
        assert {each["share"] for each in await facts(made)} == {12 * MIB}
        for nonsense in (0, 65):
            with pytest.raises(InvalidArgumentError):
                await made.steering.set_processors(nonsense)
        with pytest.raises(FailedPreconditionError):
            await made.steering.set_processors(13)

    run(scenario)


def test_processors_that_cannot_start_leave_everything_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(made: Fleet) -> None:
        monkeypatch.setenv("FAKE_PROCESSOR", "fail")
        with pytest.raises(UnavailableError, match="no processor was added"):
            await made.steering.set_processors(2)
        pool = await made.steering.get_pool()
        assert [(item.slot, item.share) for item in pool.shares] == [(0, 12 * MIB)]
        assert made.steering.config.processors == 1

    run(scenario, 1)


def test_what_there_is_can_be_seen() -> None:
    async def scenario(made: Fleet) -> None:
        await open_channels(made, 2)
        (listener,) = await made.steering.list_listeners()
        assert (listener.name, listener.connections, listener.accepting, listener.tls) == ("a", 2, True, False)
        assert listener.address == made.acceptor.listeners["a"].address
        (upstream,) = await made.steering.list_upstreams()
        assert (upstream.name, upstream.addresses, upstream.error, upstream.down) == ("u", ("127.0.0.1:1",), "", ())
        assert not made.steering.build.compiled
        assert [slot for slot, _ in made.steering.cells] == [0, 1]
        assert ("framegate.config.revision", ()) in made.steering.measurements()
        assert made.steering.started_ns > 0
        made.steering.reserve_audit()
        made.steering.audit({"who": "root"})
        assert made.log.events("audit")[0]["who"] == "root"
        made.log.room = False
        with pytest.raises(UnavailableError, match="cannot be audited"):
            made.steering.reserve_audit()

    run(scenario)


def test_the_balancer_reads_the_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("control.steering.pool.BALANCE_INTERVAL_S", 0.01)
    samples = iter([{0}, set()])
    monkeypatch.setattr("control.steering.balance.Need.update", lambda self, now: next(samples, set()))

    async def scenario(made: Fleet) -> None:
        await until(lambda: made.log.events("pool_moved"))
        assert made.log.events("pool_moved")[0]["needy"] == [0]

    run(scenario)


def test_liveness_is_gone_when_a_job_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(made: Fleet) -> None:
        job = made.guard.job("heartbeats", 0.0)
        await until(lambda: job.standing)
        health = made.steering.health()
        assert (health.started, health.alive, health.ready) == (True, False, True)
        job.end()
        assert made.steering.health().alive

    run(scenario, 1)


def test_health_says_in_words_what_is_missing() -> None:
    async def scenario(made: Fleet) -> None:
        made.steering._serving = False
        assert made.steering.health().problems == ("framegate is starting",)
        made.steering.set_serving()
        health = made.steering.health()
        assert (health.started, health.alive, health.ready, health.draining, health.problems) == (True, True, True, False, ())
        made.steering.pool.draining = True
        health = made.steering.health()
        assert (health.alive, health.ready, health.draining, health.problems) == (True, False, True, ("framegate drains",))
        made.guard.job("loop", -1.0)  # one that stands from the first moment on
        health = made.steering.health()
        assert (health.alive, health.problems[0]) == (False, "control's part 'loop' stands still")

    run(scenario, 1)
