"""Rules about Kafka: what they say about requests of every API and version, against kio's reading of the same messages."""

import dataclasses
import random
from collections.abc import Iterator
from typing import Any, Final

from kio.schema.types import GroupId, TopicName, TransactionalId
from kio.static.primitive import i16

from framegate.proxy.config.model import KafkaRule, KafkaRules
from framegate.proxy.kafka.schema import Api, api, api_key, apis
from framegate.proxy.relay.kafka_rules import KafkaJudge, KafkaRulesInForce, Refusal
from tests.fakes.kio_messages import answer_body, decoded, fields, request_body, sample, schema

NAMES: Final = ("mine-1", "mine-2", "other", "Straße")
KINDS: Final = {TopicName: "topic", GroupId: "group", TransactionalId: "transactional_id"}
RULES: Final = {"topic": "topics", "group": "groups", "transactional_id": "transactional_ids"}
NO_CODE: Final = 0


def judge_of(rules: KafkaRules, principal: str = "app") -> tuple[KafkaJudge, list[Refusal]]:
    in_force = KafkaRulesInForce(rules)
    refusals: list[Refusal] = []
    in_force.refused = refusals.append
    return KafkaJudge(in_force, principal), refusals


def renamed(entity: Any, rng: random.Random) -> Any:
    """The entity with names of ``NAMES`` in place of its own."""
    changes: dict[str, Any] = {}
    for name, primitive, kind, array, _, _ in fields(type(entity)):
        value = getattr(entity, name)
        if value is None:
            continue
        if primitive is None:
            changes[name] = tuple(renamed(item, rng) for item in value) if array else renamed(value, rng)
        elif kind in KINDS or name in ("group_id", "coordinator_keys", "resource_name") or (name == "key" and is_finding(entity)):
            changes[name] = tuple(kind(rng.choice(NAMES)) for _ in value) if array else kind(rng.choice(NAMES))
        elif name in ("resource_type", "key_type"):
            changes[name] = kind(rng.choice((0, 1, 2, 4, 32)))
    return dataclasses.replace(entity, **changes)


def is_finding(entity: Any) -> bool:
    return type(entity).__name__ == "FindCoordinatorRequest"


def names_in(entity: Any, without: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """The names in an entity, by kind. FindCoordinator and the configurations' APIs say elsewhere of what kind they are."""
    for name, primitive, kind, array, _, _ in fields(type(entity)):
        value = getattr(entity, name)
        if value is None or name in without:
            continue
        items = value if array else (value,)
        if primitive is None:
            for item in items:
                yield from names_in(item)
        elif kind in KINDS or name == "group_id":
            yield from ((KINDS.get(kind, "group"), item) for item in items)
        elif is_finding(entity) and name in ("key", "coordinator_keys"):
            found = {0: "group", 1: "transactional_id", 2: "group"}.get(getattr(entity, "key_type", 0))
            yield from ((found, item) for item in items if found)
        elif name == "resource_name" and hasattr(entity, "resource_pattern_type"):
            continue  # an entry for an ACL may name what nobody has
        elif name == "resource_name":
            found = {2: "topic", 32: "group"}.get(entity.resource_type)
            yield from ((found, item) for item in items if found)


def has_ids(kind: type) -> bool:
    return any(name == "topic_id" or (primitive is None and has_ids(inner)) for name, primitive, inner, *_ in fields(kind))


def denied(entity: Any, restricted: str) -> list[str]:
    """The names of a restricted kind in a request that do not match; a Fetch that forgets a topic does not ask for it."""
    return [name for kind, name in names_in(entity, ("forgotten_topics_data",)) if kind == restricted and not name.startswith("mine")]


def versions() -> Iterator[tuple[Api, int]]:
    return ((each, version) for each in apis() for version in range(each.least, each.most + 1))


def test_requests_of_every_api_pass_without_the_names_that_are_not_allowed():
    rng = random.Random(7)
    failures = []
    for restricted, key in RULES.items():
        judge, refusals = judge_of(KafkaRules(rules=(KafkaRule(**{key: ("mine-*",)}),)))
        for each, version in versions():
            for _ in range(6):
                asked = renamed(sample(schema(each.key, version, False), rng), rng)
                refusals.clear()
                fault = fault_of(judge, refusals, each, version, asked, restricted, rng)
                if fault:
                    failures.append(f"{restricted}: {each.name} {version}: {fault}")
    assert not failures, f"{len(failures)}: {failures[:5]}"


def fault_of(judge: KafkaJudge, refusals: list[Refusal], each: Api, version: int, asked: Any, restricted: str, rng: random.Random) -> str:
    """What is wrong with the judgement of a request; empty: nothing."""
    body = request_body(asked)
    wrong = denied(asked, restricted)
    table = judge.table[each.key]
    if table >> 16 <= version <= table & 0xFFFF:
        return "names pass without a look" if wrong else ""
    judge.judge(body)
    if judge.fault:
        return judge.fault
    if judge.answer:
        return fault_of_answer(judge, refusals, each, version, asked, restricted)
    passed = decoded(judge.request or body, each.key, version, answer=False)
    if denied(passed, restricted):
        return f"passes {denied(passed, restricted)}"
    if not wrong and judge.request and each.name != "Fetch":
        return "changed without a reason"
    if bool(wrong) != bool(refusals) or (refusals and refusals[0].name not in wrong):
        return f"{wrong} refused, and {refusals} counted"
    if judge.change is not None:
        return fault_of_change(judge, each, version, set(wrong), restricted, rng)
    return f"no results for {wrong}" if wrong else ""


def fault_of_answer(judge: KafkaJudge, refusals: list[Refusal], each: Api, version: int, asked: Any, restricted: str) -> str:
    if each.name != "Produce" or asked.acks != 0:  # which nobody answers
        decoded(judge.answer, each.key, version)
        if judge.answer[:4] != b"\0\0\0\7":
            return "another correlation id"
    by_id = restricted == "topic" and (each.name == "DescribeTopicPartitions" or has_ids(type(asked)))
    everything = "topics" if each.name in ("DescribeLogDirs", "ListPartitionReassignments") else "topic_partitions"
    is_all = each.name == "ListConfigResources" or (hasattr(asked, everything) and getattr(asked, everything) is None)
    in_session = getattr(asked, "session_epoch", 0) > 0
    if not (denied(asked, restricted) or by_id or is_all or in_session):
        return "refused without a reason"
    return "" if refusals or in_session else "not counted"


def fault_of_change(judge: KafkaJudge, each: Api, version: int, wrong: set[str], restricted: str, rng: random.Random) -> str:
    assert judge.change is not None
    broker = renamed(sample(schema(each.key, version, True), rng), rng)
    body = answer_body(broker)
    after = decoded(judge.change.apply(body, len(body)), each.key, version)
    if any(f"'{name}'" not in repr(after) for name in wrong):
        return f"no results for {wrong}: {after}"
    if judge.change.needs_whole and set(denied(after, restricted)) - wrong:
        return f"the answer lists {denied(after, restricted)}"
    return ""


def test_every_api_that_is_denied_is_answered_in_the_form_of_its_version():
    rng = random.Random(3)
    failures = []
    for each, version in versions():
        judge, refusals = judge_of(KafkaRules(rules=(KafkaRule(deny=(each.name,)),)))
        body = request_body(dataclasses.replace(sample(schema(each.key, version, False), rng), **({"acks": i16(-1)} if each.key == 0 else {})))
        table = judge.table[each.key]
        if each.key in (17, 18, 36):
            if not max(table >> 16, 0) <= version <= table & 0xFFFF and (each.key, version) != (17, 0):
                failures.append(f"{each.name} {version} is denied")
            continue
        judge.judge(body)
        if judge.fault or (refusals[0].key, refusals[0].kind) != (each.key, 0):
            failures.append(f"{each.name} {version}: {judge.fault}")
            continue
        if each.name == "CreateDelegationToken":
            continue  # kio reads no time before 1970, and Kafka's is -1
        answer = decoded(judge.answer, each.key, version)
        if "authorization_failed" not in repr(answer) and "error_code" in repr(answer):
            failures.append(f"{each.name} {version}: {answer}")
    assert not failures, f"{len(failures)}: {failures[:5]}"


def test_the_first_rule_that_matches_decides_and_without_one_all_is_allowed():
    rules = KafkaRules(
        rules=(
            KafkaRule(principals=("admin",)),
            KafkaRule(client_ids=("billing-*",), deny=("DeleteTopics",)),
            KafkaRule(principals=("app-*", "web"), allow=("Metadata", "Produce"), deny=("Produce",)),
        )
    )
    cases = {
        ("admin", "billing-1", "DeleteTopics"): True,
        ("app-1", "billing-1", "DeleteTopics"): False,
        ("app-1", "billing-1", "Fetch"): True,
        ("app-1", "x", "Metadata"): True,
        ("web", "x", "Produce"): False,
        ("web", "", "Fetch"): False,
        ("web", "", "ApiVersions"): True,
        ("webb", "", "Fetch"): True,
        ("App-1", "", "Fetch"): True,
    }
    failures = []
    for (principal, client, name), allowed in cases.items():
        judge, refusals = judge_of(rules, principal)
        key = api_key(name)
        known = api(key if key is not None else -1)
        assert known is not None
        body = request_body(sample(schema(known.key, known.most, False), random.Random(1)), client_id=client)
        judge.judge(body)
        if bool(judge.answer) == allowed or bool(refusals) == allowed or (refusals and refusals[0].client_id != client):
            failures.append((principal, client, name, judge.fault, refusals))
    assert not failures


def test_rules_that_only_report_refuse_nothing_and_count_the_same():
    rng = random.Random(11)
    rule = KafkaRule(topics=("mine-*",), groups=("mine-*",), deny=("DeleteTopics", "AlterConfigs"))
    judge, refusals = judge_of(KafkaRules(rules=(rule,)))
    reporter, reports = judge_of(KafkaRules(rules=(rule,), report_only=True))
    failures = []
    for each, version in versions():
        body = request_body(renamed(sample(schema(each.key, version, False), rng), rng))
        judge.judge(body)
        reporter.judge(body)
        if reporter.answer or reporter.request or reporter.change or reporter.fault or reporter.greatest:
            failures.append(f"{each.name} {version} is changed")
    assert not failures
    assert [dataclass_of(item) for item in reports] == [dataclass_of(item) for item in refusals]
    assert len(refusals) > 50


def dataclass_of(refusal: Refusal) -> tuple[object, ...]:
    return refusal.key, refusal.kind, refusal.name, refusal.principal, refusal.client_id


def test_what_cannot_be_examined_ends_the_connection():
    judge, _ = judge_of(KafkaRules(rules=(KafkaRule(topics=("mine-*",), allow=("Produce", "Fetch")),), unknown_versions="pass"))
    produce = request_body(sample(schema(0, 9, False), random.Random(1)))
    later = produce[:2] + b"\0\x63" + produce[4:]
    unknown = b"\x03\xe8" + produce[2:]
    for body, whole in ((produce[:-1], True), (later, True), (unknown, True), (produce, False), (produce[:8], True)):
        judge.judge(body, whole=whole)
        assert judge.fault
        assert not judge.answer
    judge.judge(produce)
    assert not judge.fault


def test_rules_that_are_replaced_apply_from_the_next_run_on():
    in_force = KafkaRulesInForce(KafkaRules())
    judge = KafkaJudge(in_force, "app")
    delete = request_body(sample(schema(20, 5, False), random.Random(1)))
    judge.judge(delete)
    assert not judge.answer
    in_force.put(KafkaRules(rules=(KafkaRule(deny=("DeleteTopics",)),)))
    judge.follow()
    judge.judge(delete)
    assert judge.answer
    in_force.put(KafkaRules(rules=(KafkaRule(deny=("DeleteTopics",)),), report_only=True))
    judge.follow()
    judge.judge(delete)
    assert not judge.answer
