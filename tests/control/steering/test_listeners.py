"""framegate.control.steering.listeners: the status of listeners and upstreams, and new addresses of upstreams."""

from typing import Any

import pytest

from framegate.control.accept.resolver import Resolution
from framegate.control.errors import NotFoundError
from framegate.control.steering.listeners import KEPT, Listeners, find_listener
from tests.fakes.fleet import Fleet, facts, fleet_config, open_channels, run, until
from tests.fakes.rows import refused_frame_row
from tests.fakes.scenario import run_by


def test_a_listener_is_found_by_its_name_alone() -> None:
    config = fleet_config(1)
    assert find_listener(config, "a") is config.listeners[0]
    with pytest.raises(NotFoundError, match="none"):
        find_listener(config, "none")


@run_by(run)
async def test_connections_are_those_that_are_open_now(made: Fleet) -> None:
    listeners = Listeners(made.supervisor, made.acceptor)
    assert listeners.connections() == 0
    ids = await open_channels(made, 3)
    assert (listeners.connections(), [item.connections for item in listeners.statuses()]) == (3, [3])
    await made.steering.channels.act("close", ids[:2])
    await until(lambda: listeners.connections() == 1)


@run_by(run)
async def test_new_addresses_reach_every_processor(made: Fleet) -> None:
    fresh = [["127.0.0.1", 2, "127.0.0.9", 9], ["127.0.0.1", 2, "127.0.0.8", 9]]
    made.resolver.current = {"u": Resolution(fresh)}
    await made.steering.upstreams.set_endpoints()
    assert [each["endpoints"] for each in await facts(made)] == [{"u": fresh}] * 2
    assert made.desired.endpoints == {"u": fresh}
    revision = made.desired.revision
    made.resolver.current = {"u": Resolution(fresh[::-1])}
    await made.steering.upstreams.set_endpoints()
    assert (made.desired.revision, len(made.log.events("endpoints_changed"))) == (revision, 1)


@run_by(run, 1, "refuse")
async def test_addresses_that_a_processor_refused_are_offered_again(made: Fleet) -> None:
    made.resolver.current = {"u": Resolution([["127.0.0.1", 2, "127.0.0.9", 9]])}
    for count in (1, 2):
        await made.steering.upstreams.set_endpoints()
        assert len(made.log.events("endpoints_refused")) == count
    assert made.desired.endpoints == {"u": [["127.0.0.1", 2, "127.0.0.1", 1]]}


@run_by(run, 2, "down")
async def test_endpoints_that_processors_leave_out_are_listed_with_how_many_do(made: Fleet) -> None:
    (upstream,) = await made.steering.upstreams.statuses()
    expected = {"upstream": "u", "endpoint": "127.0.0.1:1", "state": "down", "reason": "refused", "detail": "says 0", "since_ns": 5, "weight": 1}
    assert upstream.states == ({**expected, "out": 2, "connections": 4, "zone": "", "latency_ns": 1},)


@run_by(run)
async def test_the_last_hundred_of_a_listener_are_kept_the_latest_first(made: Fleet) -> None:
    refused: Any = made.steering.refused_frames
    assert refused.latest("a") == []
    for size in range(KEPT + 1):
        made.supervisor.on_refused(refused_frame_row(listener="a", size=size))
        assert [row["size"] for row in refused.latest("a")] == list(range(size, max(size - KEPT, -1), -1))
    for name in ("gone", "gone too"):  # of connections that outlive their listener
        made.supervisor.on_refused(refused_frame_row(listener=name))
        assert list(refused._kept) == ["a", name]
        with pytest.raises(NotFoundError):
            refused.latest(name)
