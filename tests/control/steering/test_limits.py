"""framegate.control.steering.limits: limits change everywhere or nowhere."""

import asyncio
import dataclasses
import functools
import json
from typing import Any
from unittest.mock import patch

import pytest

from framegate.control.errors import AbortedError, EtagError, FailedPreconditionError, InvalidArgumentError, NotFoundError
from framegate.control.steering.limits import Eviction, parts
from framegate.control.steering.transactions import Changed, etag_of
from framegate.proxy.config.limits import UNLIMITED_NODE, LimitOverride, LimitRule, LimitsConfig, ListenerLimits, RateLimits
from framegate.proxy.config.model import MIB, KafkaRule, KafkaRules
from tests.fakes.fleet import Fleet, facts, open_channels, run, until
from tests.fakes.processor import limits_of
from tests.fakes.scenario import run_by


@run_by(run)
async def test_a_limit_changes_everywhere_and_is_what_new_processors_get(made: Fleet) -> None:
    changed = await made.steering.limits.change("a", {"max_receive_size": 7})
    assert (changed.before.max_receive_size, changed.after.max_receive_size) == (MIB, 7)
    assert [item.max_receive_size for item in made.steering.limits.get()] == [7]
    assert made.steering.state.config.listeners[0].max_receive_size == 7
    assert {each["max_receive_size"]["a"] for each in await facts(made)} == {7}
    assert made.meters.value("config.changes", "") == 1


@run_by(run)
async def test_quotas_change_everywhere_and_in_the_acceptor(made: Fleet) -> None:
    """Number 192."""

    quotas = made.acceptor._admission._quotas
    steering = made.steering
    limit = (await steering.limits.change("a", {"connections": 2, "request_bytes_rate": 9})).after
    assert (limit.connections, limit.request_bytes_rate, limit.max_receive_size) == (2, 9, MIB)
    before, node = await steering.limits.change_node(
        {"connections": 5, "per_address": {"connections": 3}, "overrides": (LimitOverride(network="10.0.0.0/8"),)}
    )
    assert (before, node) == (UNLIMITED_NODE, steering.limits.get_node())
    await steering.limits.change_node({"per_address": {"connection_rate": 4}}, etag_of(node))
    expected = LimitsConfig(connections=5, per_address=RateLimits(connections=3, connection_rate=4), overrides=node.overrides)
    assert steering.state.config.limits == expected
    for each in await facts(made):
        assert each["limits"] == limits_of(steering.state.config)
        assert each["limits"]["listeners"]["a"]["request_bytes_rate"] == 9
        assert each["max_receive_size"]["a"] == MIB
    assert (quotas.limits.node, quotas.limits.listeners["a"].connections) == (expected, 2)
    assert quotas.limits.addresses.of("10.0.0.1").limits == RateLimits(connections=3, connection_rate=4)
    assert steering.listeners.statuses()[0].max_connections == 2
    clients = [await made.connect() for _ in range(3)]
    assert [await client.echo(b"x") for client in clients[:2]] == [b"x", b"x"]
    clients[2].writer.write(b"y")
    await steering.limits.change("a", {"connections": 0})
    assert await clients[2].reader.read(1) == b"y", "a limit that is raised wakes who waits"


@run_by(run)
async def test_limit_rules_change_everywhere_or_are_refused_with_their_path(made: Fleet) -> None:
    limits, rule = made.steering.limits, LimitRule(name="a", networks=("10.0.0.0/8",), max_receive_size=5)
    changed = await limits.change("a", {"rules": (rule,), "connections": 3})
    assert (changed.before.rules, changed.after.rules, limits.get("a")[0].rules) == ((), (rule,), (rule,))
    assert [each["limits"]["listeners"]["a"]["rules"][0]["max_receive_size"] for each in await facts(made)] == [5, 5]
    for rules, field in (
        ((rule, rule), "rules[1].name"),
        ((dataclasses.replace(rule, networks=("x",)),), "rules[0].networks[0]"),
        ((LimitRule(name="b", max_receive_size=0),), "rules[0].max_receive_size"),
    ):
        with pytest.raises(InvalidArgumentError) as refused:
            await limits.change("a", {"rules": rules})
        assert [item.field for item in refused.value.violations] == [field]
    with pytest.raises(FailedPreconditionError, match="less than the largest frame"):
        await limits.change("a", {"rules": (dataclasses.replace(rule, max_receive_size=1 << 30),)})
    await limits.change("a", {"max_receive_size": 7})
    assert limits.get("a")[0].rules == (rule,), "they stay when something else changes"
    assert (await limits.change("a", {"rules": ()})).after.connections == 3


@run_by(run, 1)
async def test_one_that_starts_later_has_the_quotas_in_force(made: Fleet) -> None:
    await made.steering.limits.change_node({"response_frames_rate": 6})
    made.supervisor.running[0].kill("died")
    await until(lambda: made.supervisor.status()[0].restarts == 1 and made.supervisor.status()[0].state == "running")
    assert [each["limits"]["node"]["response_frames_rate"] for each in await facts(made)] == [6]


BAD: list[dict[str, Any]] = [
    {"overrides": (LimitOverride(network="10.0.0.1/8"),)},
    {"overrides": (LimitOverride(network="10.0.0.0/8"),) * 2},
    {"overrides": (LimitOverride(network="10.0.0.0/8", connections=-1),)},
    {"overrides": tuple(LimitOverride(network=f"10.{number // 256}.{number % 256}.0/24") for number in range(1001))},
]


@run_by(run, 1)
async def test_invalid_quotas_are_refused_before_a_processor_is_asked(made: Fleet) -> None:
    limits = made.steering.limits
    before = (await facts(made))[0]["limits"]
    for call in (limits.change_node(changes) for changes in BAD):
        with pytest.raises(InvalidArgumentError):
            await call
    with pytest.raises(EtagError):
        await limits.change_node({"connections": 1}, "beef")
    assert made.steering.state.config.limits == UNLIMITED_NODE
    assert (await facts(made))[0]["limits"] == before


@run_by(run, 1, "refuse")
async def test_refused_limits_and_quotas_are_in_force_nowhere_not_even_in_the_acceptor(made: Fleet) -> None:
    limits = made.steering.limits
    for call in (limits.change("a", {"max_receive_size": 7}), limits.change("a", {"connections": 1}), limits.change_node({"connections": 1})):
        with pytest.raises(AbortedError):
            await call
    assert (limits.get("a")[0].max_receive_size, limits.get_node()) == (MIB, UNLIMITED_NODE)
    assert not made.acceptor._admission._quotas.limited("a")
    assert made.meters.value("config.changes", "refused") == 3


@run_by(run)
async def test_two_changes_at_once_both_hold(made: Fleet) -> None:
    """What is changed is what is in force when a change's turn comes, not what was when it was asked for."""

    steering = made.steering
    await asyncio.gather(
        steering.limits.change_node({"connections": 7}),
        steering.limits.change("a", {"connections": 8}),
        steering.limits.change_node({"per_address": {"connections": 9}}),
        steering.limits.change("a", {"max_receive_size": 5}),
    )
    assert (steering.state.config.limits, steering.state.config.listeners[0].limits) == (
        LimitsConfig(connections=7, per_address=RateLimits(connections=9)),
        ListenerLimits(connections=8),
    )
    for each in await facts(made):
        assert (each["limits"], each["max_receive_size"]) == (limits_of(steering.state.config), {"a": 5})


# Connections above the limit.


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
async def test_a_lower_limit_of_the_node_closes_the_idlest_and_one_of_a_listener_closes_none(made: Fleet) -> None:
    """Number 192."""

    ids = await open_channels(made, 5)
    await made.steering.limits.change("a", {"connections": 2})
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


@patch("framegate.control.steering.limits._PATIENCE_MS", 50)
@run_by(run, 1, "deaf")
async def test_a_processor_that_does_not_answer_is_asked_again(made: Fleet) -> None:
    await open_channels(made, 3)
    await made.steering.limits.change_node({"connections": 2})
    await until(lambda: len(made.log.events("eviction_failed")) >= 2)
    assert made.log.events("task_failed") == []


RULE = KafkaRule(deny=("DeleteTopics",))
ruled = functools.partial(run, protocol="kafka", kafka=KafkaRules())


@run_by(ruled)
async def test_rules_change_everywhere_and_are_what_new_processors_get(made: Fleet) -> None:
    rules = made.steering.kafka_rules
    first = rules.get("a")
    assert await rules.change("a", {"rules": (RULE,)}, etag_of(first), validate_only=True) == Changed(first, KafkaRules(rules=(RULE,)))
    assert rules.get("a") == first
    before, after = await rules.change("a", {"rules": (RULE,)}, etag_of(first))
    assert before == first
    assert rules.get("a") == after == KafkaRules(rules=(RULE,))
    assert (await rules.change("a", {"report_only": True})).after == KafkaRules(rules=(RULE,), report_only=True)
    wire = json.loads(json.dumps({"a": dataclasses.asdict(rules.get("a"))}))
    assert [each["kafka_rules"] for each in await facts(made)] == [wire] * 2


@run_by(ruled)
async def test_bad_changes_are_refused_without_asking_a_processor(made: Fleet) -> None:
    rules = made.steering.kafka_rules
    with pytest.raises(InvalidArgumentError, match="did you mean"):
        await rules.change("a", {"rules": (KafkaRule(deny=("Fech",)),)})
    with pytest.raises(EtagError):
        await rules.change("a", {"rules": ()}, "old")
    with pytest.raises(NotFoundError):
        await rules.change("nobody", {"rules": ()})
    assert rules.get("a") == KafkaRules()


@run_by(run)
async def test_a_listener_without_the_section_has_no_rules(made: Fleet) -> None:
    with pytest.raises(FailedPreconditionError) as caught:
        await made.steering.kafka_rules.change("a", {"rules": ()})
    assert caught.value.reason == "NO_KAFKA_RULES"


@run_by(functools.partial(ruled, mode="refuse@1"))
async def test_a_processor_that_refuses_keeps_all_from_the_change(made: Fleet) -> None:
    with pytest.raises(AbortedError):
        await made.steering.kafka_rules.change("a", {"rules": (RULE,)})
    assert made.steering.kafka_rules.get("a") == KafkaRules()
