"""framegate.control.steering.steering: the parts work together: the pool and the processors."""

import pytest

from framegate.control.errors import FailedPreconditionError, InvalidArgumentError, UnavailableError
from framegate.proxy.config.model import MIB
from tests.fakes.fleet import Fleet, facts, open_channels, run, until


def test_the_pool_is_resized_and_divided() -> None:
    async def scenario(made: Fleet) -> None:
        await open_channels(made, 2)
        pool = await made.steering.pool.set_size(5 * MIB + 1)
        assert [item.share for item in pool.shares] == [5 * MIB // 2 + 1, 5 * MIB // 2]
        assert (pool.size, pool.processors) == (5 * MIB + 1, 2)
        assert [each["share"] for each in await facts(made)] == [item.share for item in pool.shares]
        with pytest.raises(FailedPreconditionError):
            await made.steering.pool.set_size(2 * MIB - 1)
        with pytest.raises(InvalidArgumentError):
            await made.steering.pool.set_size(0)
        assert made.steering.pool.status() == pool

    run(scenario)


def test_processors_are_added_and_removed_and_the_pool_follows() -> None:
    async def scenario(made: Fleet) -> None:
        await open_channels(made, 2)
        pool = await made.steering.pool.set_processors(3)
        assert [item.share for item in pool.shares] == [4 * MIB] * 3
        assert [item.state for item in made.steering.state.processor_statuses()] == ["running"] * 3
        assert made.steering.state.config.processors == 3
        await open_channels(made, 3)
        pool = await made.steering.pool.set_processors(1)
        assert [(item.slot, item.share) for item in pool.shares] == [(0, 12 * MIB)]
        assert [item.state for item in made.steering.state.processor_statuses()] == ["running"]
        assert {row["cause"] for row in made.events} == {"drained"}
        assert {each["share"] for each in await facts(made)} == {12 * MIB}
        for nonsense in (0, 65):
            with pytest.raises(InvalidArgumentError):
                await made.steering.pool.set_processors(nonsense)
        with pytest.raises(FailedPreconditionError):
            await made.steering.pool.set_processors(13)

    run(scenario)


def test_processors_that_cannot_start_leave_everything_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(made: Fleet) -> None:
        monkeypatch.setenv("FAKE_PROCESSOR", "fail")
        with pytest.raises(UnavailableError, match="no processor was added"):
            await made.steering.pool.set_processors(2)
        pool = made.steering.pool.status()
        assert [(item.slot, item.share) for item in pool.shares] == [(0, 12 * MIB)]
        assert made.steering.state.config.processors == 1

    run(scenario, 1)


def test_the_balancer_reads_the_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("framegate.control.steering.pool.BALANCE_INTERVAL_S", 0.01)
    samples = iter([{0}, set()])
    monkeypatch.setattr("framegate.control.steering.balance.Need.update", lambda self, now: next(samples, set()))

    async def scenario(made: Fleet) -> None:
        await until(lambda: made.log.events("pool_moved"))
        assert made.log.events("pool_moved")[0]["needy"] == [0]

    run(scenario)
