"""control.steering.events: a subscriber that fails harms nobody."""

from typing import Any

from tests.fakes.fleet import Fleet, run, until


def test_a_subscriber_that_fails_harms_nobody() -> None:
    async def scenario(made: Fleet) -> None:
        def fail(row: dict[str, Any]) -> None:
            raise ValueError("no")

        cancel = made.steering.subscribe(fail)
        seen: list[dict[str, Any]] = []
        made.steering.subscribe(seen.append)
        await (await made.connect()).close()
        await until(lambda: seen)
        assert len(made.log.events("subscriber_failed")) == 1
        cancel()
        cancel()
        await (await made.connect()).close()
        await until(lambda: len(seen) == 2)
        assert len(made.log.events("subscriber_failed")) == 1

    run(scenario, 1)
