"""control.steering.limits: limits change everywhere or nowhere."""

import pytest

from control.errors import AbortedError, FailedPreconditionError, InvalidArgumentError, NotFoundError
from proxy.config.model import MIB
from tests.fakes.fleet import Fleet, facts, run


def test_a_limit_changes_everywhere_and_is_what_new_processors_get() -> None:
    async def scenario(made: Fleet) -> None:
        assert (await made.steering.set_limit("a", 7)).max_receive_size == 7
        assert [item.max_receive_size for item in await made.steering.get_limits()] == [7]
        assert made.steering.config.listeners[0].max_receive_size == 7
        assert {each["max_receive_size"]["a"] for each in await facts(made)} == {7}
        assert made.meters.value("config.changes", "") == 1

    run(scenario)


def test_limits_out_of_range_are_refused_before_anybody_is_asked() -> None:
    async def scenario(made: Fleet) -> None:
        with pytest.raises(NotFoundError):
            await made.steering.set_limit("none", 7)
        with pytest.raises(NotFoundError):
            await made.steering.get_limits("none")
        for size in (0, 2**31):
            with pytest.raises(InvalidArgumentError):
                await made.steering.set_limit("a", size)
        with pytest.raises(FailedPreconditionError) as caught:
            await made.steering.set_limit("a", 6 * MIB + 1)
        assert caught.value.reason == "POOL_BELOW_MAX_RECEIVE_SIZE"
        assert (await made.steering.set_limit("a", 6 * MIB)).max_receive_size == 6 * MIB
        assert made.meters.value("config.changes", "invalid") == 2
        assert made.meters.value("config.changes", "refused") == 2

    run(scenario)


def test_a_refused_limit_is_in_force_nowhere() -> None:
    async def scenario(made: Fleet) -> None:
        with pytest.raises(AbortedError):
            await made.steering.set_limit("a", 7)
        assert (await made.steering.get_limits("a"))[0].max_receive_size == MIB
        assert made.meters.value("config.changes", "refused") == 1

    run(scenario, 1, "refuse")
