"""framegate.control.steering.eviction: who makes room when the node has more connections than it may."""

from typing import Any
from unittest.mock import patch

import pytest

from framegate.control.steering.eviction import Eviction, parts
from framegate.proxy.config.limits import LimitsConfig
from tests.fakes.fleet import Fleet, open_channels, run, until
from tests.fakes.scenario import run_by


@pytest.mark.parametrize(
    ("excess", "counts", "expected"),
    [
        (0, [5, 5], [0, 0]),
        (-3, [5, 5], [0, 0]),
        (1, [5, 5], [1, 0]),
        (3, [5, 5], [2, 1]),
        (10, [5, 5], [5, 5]),
        (99, [5, 5], [5, 5]),
        (10, [0, 100, 1], [0, 10, 0]),
        (5, [], []),
        (5, [0, 0], [0, 0]),
    ],
)
def test_each_gives_its_part_and_all_together_no_more_than_asked_for(excess: int, counts: list[int], expected: list[int]) -> None:
    given: Any = dict(zip("abc", counts, strict=False))
    assert list(parts(excess, given).values()) == expected


def causes(made: Fleet) -> list[tuple[str, str]]:
    return [(row["listener"], row["cause"]) for row in made.events if row["event"] == "closed"]


@run_by(run, 2, others=["b"], node_limits=LimitsConfig(connections=6, protected_listener="b"))
async def test_a_storm_on_the_protected_listener_closes_the_idlest_of_the_other(made: Fleet) -> None:
    """Number 194."""

    first = [await made.connect("a") for _ in range(6)]
    for client in first:
        assert await client.echo(b"x") == b"x"
    for _ in range(4):
        assert await (await made.connect("b")).echo(b"x") == b"x"
    await until(lambda: len(causes(made)) == 4)
    assert causes(made) == [("a", "limit")] * 4
    await until(lambda: [item.open for item in made.acceptor.listeners.values()] == [2, 4])
    for _ in range(4):
        assert await (await made.connect("b")).echo(b"x") == b"x"
    await until(lambda: len(causes(made)) == 6)
    assert all(cause == ("a", "limit") for cause in causes(made))
    assert await (await made.connect("b")).echo(b"x") == b"x", "there is nobody left who could make room, and the protected one goes on"
    (row, *_) = made.log.events("evicted")
    assert (row["key"], row["spared"]) == ("limits.connections", "b")
    assert sum(row["count"] for row in made.log.events("evicted")) == 6, "nobody is closed twice, or without need"


@run_by(run, 1)
async def test_a_limit_of_the_node_that_is_lowered_closes_the_idlest_and_one_of_a_listener_nobody(made: Fleet) -> None:
    """Number 192."""

    ids = await open_channels(made, 5)
    await made.steering.limits.change("a", quotas={"connections": 2})
    await made.steering._eviction.look()
    assert made.acceptor.listeners["a"].open == 5
    await made.steering.limits.change_node({"connections": 3})
    await until(lambda: made.acceptor.listeners["a"].open == 3)
    assert [row["id"] for row in made.events if row["event"] == "closed"] == ids[:2], "the fake says that the oldest are the idlest"
    await made.steering._eviction.look()
    assert made.acceptor.listeners["a"].open == 3


@run_by(run, 1)
async def test_what_is_being_closed_counts_as_closed(made: Fleet) -> None:
    eviction = Eviction(made.supervisor, made.acceptor, made.log)
    await open_channels(made, 4)
    made.supervisor.connections.count_handed()
    processor = made.supervisor.running[0]
    numbers = [given.number for given in processor.open.values() if given is not None]
    eviction._ending.update(numbers[:1])
    asked: list[int] = []

    async def ask(processor: Any, count: int, spared: str | None) -> list[int]:
        asked.append(count)
        return numbers[1:2] if len(asked) == 1 else []

    eviction._ask = ask  # type: ignore[method-assign]
    await eviction._evict(2, None)
    await eviction._evict(2, None)
    assert asked == [1]


@patch("framegate.control.steering.eviction._PATIENCE_MS", 50)
@run_by(run, 1, "deaf")
async def test_a_processor_that_does_not_answer_is_asked_again(made: Fleet) -> None:
    await open_channels(made, 3)
    await made.steering.limits.change_node({"connections": 2})
    await until(lambda: len(made.log.events("eviction_failed")) >= 2)
    assert made.log.events("task_failed") == []
