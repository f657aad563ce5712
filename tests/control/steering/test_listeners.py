"""framegate.control.steering.listeners: one is found by its name, and the connections of all are counted."""

import pytest

from framegate.control.errors import NotFoundError
from framegate.control.steering.listeners import Listeners, find_listener
from tests.fakes.fleet import Fleet, fleet_config, open_channels, run, until


def test_a_listener_is_found_by_its_name_alone() -> None:
    config = fleet_config(1)
    assert find_listener(config, "a") is config.listeners[0]
    with pytest.raises(NotFoundError, match="none"):
        find_listener(config, "none")


def test_connections_are_those_that_are_open_now() -> None:
    async def scenario(made: Fleet) -> None:
        listeners = Listeners(made.supervisor, made.acceptor)
        assert listeners.connections() == 0
        ids = await open_channels(made, 3)
        assert (listeners.connections(), [item.connections for item in listeners.statuses()]) == (3, [3])
        await made.steering.channels.act("close", ids[:2], reason="test")
        await until(lambda: listeners.connections() == 1)

    run(scenario)
