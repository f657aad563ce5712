"""The processors and the pool follow the container: by two equal looks, whole or not at all, and never against an operator."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from framegate.control.configuration.capacity import CONTROL_BASE, PROCESSOR_BASE, READER, fitted
from framegate.control.configuration.cgroup import Container
from framegate.control.errors import AbortedError
from framegate.control.steering.sizing import RETRY_LOOKS, Chosen, Sizing
from framegate.proxy.config.limits import ListenerLimits
from framegate.proxy.config.model import KIB, MIB
from tests.fakes.fleet import Fleet, facts, open_channels, run, until
from tests.fakes.scenario import run_by

SMALL, LARGE = 256 * MIB, 512 * MIB
LIMITS = ListenerLimits(connections=1000)


class Following:
    """A ``Sizing`` over a fleet, that looks when it is told to."""

    def __init__(self, made: Fleet, seen: Container, *, processors: bool = True, pool: bool = True) -> None:
        self.made = made
        self.container = seen
        self.sizing = Sizing(
            made.steering.pool,
            lambda: made.supervisor.desired.config,
            Chosen(seen, processors, pool),
            made.supervisor._events,
            made.log,
            made.task_monitor,
            lambda: self.container,
        )

    async def look(self, *containers: Container) -> None:
        """One look at each; waits for what it began."""
        for self.container in containers:
            self.sizing.look()
            if self.sizing._change is not None:
                await asyncio.wait([self.sizing._change])
                await asyncio.sleep(0)

    def rows(self) -> list[Any]:
        return [row for row in self.made.events if row["event"] == "container_resized"]

    @property
    def now(self) -> tuple[int, int]:
        config = self.made.steering.state.config
        return config.processors, config.memory_pool.size // MIB


def follow(body: Callable[[Following], Awaitable[None]], seen: Container, count: int, **follows: bool) -> None:
    async def scenario(made: Fleet) -> None:
        following = Following(made, seen, **follows)
        try:
            await body(following)
        finally:
            following.sizing.close()

    run(scenario, count, limits=LIMITS)


def room(limit: int, processors: int) -> int:
    """MiB of a pool in a container of that size, by the sum of deploy/docs/limits.md."""
    usable = int(limit * 0.85) // MIB * MIB
    rest = CONTROL_BASE + READER + processors * PROCESSOR_BASE + int(processors * (MIB + 256 * KIB) * 1.25) + 1000 * 15 * KIB
    return int((usable - rest) / 1.25) // MIB


@run_by(follow, Container(1, SMALL, 2), 1)
async def test_both_follow_up_and_down_while_connections_go_on(at: Following) -> None:
    await open_channels(at.made, 1)
    client = at.made._clients[0]
    await at.look(*[Container(3, LARGE, 2)] * 2)
    assert at.now == (3, room(LARGE, 3))
    assert await client.echo(b"still here") == b"still here"
    assert [each["share"] for each in await facts(at.made)] == [share.share for share in (at.made.steering.pool.status()).shares]
    assert [item.state for item in at.made.steering.state.processor_statuses()] == ["running"] * 3
    await at.look(*[Container(1, SMALL, 2)] * 2)
    assert at.now == (1, room(SMALL, 1))
    assert await client.echo(b"still here") == b"still here"  # it was of the one that stays
    up, down = at.rows()
    assert up["cpus"] == {"before": 1, "after": 3}
    assert up["memory"] == {"before": SMALL, "after": LARGE}
    assert up["processors"] == {"before": 1, "after": 3, "set_by": "container"}
    assert up["memory_pool"] == {"before": 12 * MIB, "after": room(LARGE, 3) * MIB, "set_by": "container"}
    assert (up["refused"], up["warning"]) == (None, None)
    assert (down["processors"]["after"], down["memory_pool"]["after"]) == (1, room(SMALL, 1) * MIB)


@run_by(follow, Container(1, SMALL, 2), 1)
async def test_a_new_size_counts_when_two_looks_found_the_same(at: Following) -> None:
    start, other, third = Container(1, SMALL, 2), Container(1, LARGE, 2), Container(1, LARGE + MIB, 2)
    await at.look(other, start, other, third, other, start, start, start)
    assert (at.now, at.rows()) == ((1, 12), [])
    await at.look(other, other)
    assert len(at.rows()) == 1
    await at.look(other, other)
    assert len(at.rows()) == 1


@run_by(follow, Container(1, SMALL, 2), 1)
async def test_an_unreadable_size_is_not_followed_and_reported_once(at: Following) -> None:
    gone = Container(2, None, 0)
    await at.look(*[gone] * 5)
    assert (at.now, at.rows(), len(at.made.log.events("container_unreadable"))) == ((1, 12), [], 1)
    await at.look(*[Container(1, SMALL, 2)] * 3)
    assert at.rows() == []
    await at.look(gone, Container(1, LARGE, 2), gone, Container(1, LARGE, 2))
    assert (len(at.rows()), len(at.made.log.events("container_unreadable"))) == (1, 3)


@run_by(follow, Container(2, SMALL, 2), 2)
async def test_a_container_below_what_is_needed_is_a_warning_and_the_least_that_works(at: Following) -> None:
    await at.look(*[Container(2, 64 * MIB, 2)] * 2)
    assert at.now == (1, 1)
    (row,) = at.rows()
    assert (row["refused"], row["processors"]["after"]) == (None, 1)
    assert row["warning"].startswith("the memory pool of 1MiB does not fit into the container's 64MiB")
    assert await (await at.made.connect()).echo(b"x") == b"x"


@run_by(follow, Container(1, SMALL, 2), 1)
async def test_what_an_operator_set_wins_until_the_next_start(at: Following) -> None:
    status = at.made.steering.pool.status()
    assert (status.size_origin, status.processors_origin) == ("container", "container")
    _, status = await at.made.steering.pool.set_size(20 * MIB)
    assert (status.size_origin, status.processors_origin) == ("operator", "container")
    await at.look(*[Container(2, LARGE, 2)] * 2)
    assert at.now == (2, 20)
    _, status = await at.made.steering.pool.set_processors(2)  # as many as there are: it is decided all the same
    assert status.processors_origin == "operator"
    await at.look(*[Container(3, SMALL, 2)] * 2)
    assert at.now == (2, 20)
    assert at.rows()[-1]["processors"]["set_by"] == at.rows()[-1]["memory_pool"]["set_by"] == "operator"


@run_by(follow, Container(1, SMALL, 2), 1)
async def test_an_operators_change_in_between_wins(at: Following) -> None:
    pool = at.made.steering.pool
    async with pool.scaling:
        by_hand = asyncio.ensure_future(at.made.steering.pool.set_size(20 * MIB))
        await asyncio.sleep(0)
        at.container = Container(1, LARGE, 2)
        at.sizing.look()
        at.sizing.look()
        await asyncio.sleep(0.01)
    await by_hand
    await until(lambda: at.rows() != [])
    assert at.now == (1, 20)


@run_by(follow, Container(1, SMALL, 2), 1)
async def test_a_refusal_is_reported_once_and_tried_again_later(at: Following, *, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = at.made.steering.pool
    whole = pool.set_size
    tries: list[int] = []

    async def refused(size: int, origin: Any = "operator") -> Any:
        tries.append(size)
        raise AbortedError("a processor refused", reason="CHANGE_REFUSED")

    monkeypatch.setattr(pool, "set_size", refused)
    wanted = Container(1, LARGE, 2)
    await at.look(wanted, wanted)
    assert ([row["refused"] for row in at.rows()], at.now) == (["a processor refused"], (1, 12))
    await at.look(*[wanted] * (RETRY_LOOKS - 1))
    assert len(tries) == 1
    await at.look(wanted)
    assert (len(tries), len(at.rows())) == (2, 1)
    monkeypatch.setattr(pool, "set_size", whole)
    await at.look(*[wanted] * RETRY_LOOKS)
    assert (at.now, len(at.rows())) == ((1, room(LARGE, 1)), 2)


@run_by(follow, Container(1, SMALL, 2), 1)
async def test_nothing_follows_during_a_drain(at: Following) -> None:
    at.made.steering.pool.draining = True
    await at.look(*[Container(4, LARGE, 2)] * 3)
    assert (at.now, at.rows()) == ((1, 12), [])


@run_by(follow, Container(1, SMALL, 2), 1)
async def test_an_internal_error_is_reported_and_looks_go_on(at: Following, *, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = Container(1, LARGE, 2)
    monkeypatch.setattr("framegate.control.steering.sizing.fitted", lambda *arguments: 1 // 0)
    await at.look(wanted, wanted)
    monkeypatch.setattr("framegate.control.steering.sizing.fitted", fitted)
    assert [row["task"] for row in at.made.log.events("task_failed")] == ["sizing"]
    await at.look(*[wanted] * RETRY_LOOKS)
    assert at.now == (1, room(LARGE, 1))


@run_by(follow, Container(2, SMALL, 2), 2)
async def test_looks_go_on_while_processors_finish_their_connections(at: Following) -> None:
    release = asyncio.Event()
    pool = at.made.steering.pool

    async def slow(count: int, origin: Any = "operator") -> Any:
        await release.wait()

    pool.set_processors = slow  # type: ignore[method-assign]
    at.container = Container(1, LARGE, 2)
    at.sizing.look()
    at.sizing.look()
    await asyncio.sleep(0.01)
    first = at.sizing._change
    at.sizing.look()
    at.sizing.look()
    assert at.sizing._change is first
    release.set()
    assert first is not None
    await first
