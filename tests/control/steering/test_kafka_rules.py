"""framegate.control.steering.kafka_rules: rules change everywhere or nowhere."""

import dataclasses
import functools
import json

import pytest

from framegate.control.errors import AbortedError, EtagError, FailedPreconditionError, InvalidArgumentError, NotFoundError
from framegate.control.steering.transactions import Changed, etag_of
from framegate.proxy.config.model import KafkaRule, KafkaRules
from tests.fakes.fleet import Fleet, facts, run
from tests.fakes.scenario import run_by

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
