"""Rules about Kafka: what they say about requests of every API and version, against kio's reading of the same messages."""

import contextlib
import dataclasses
import random
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from kio.schema.types import GroupId, TopicName, TransactionalId
from kio.static.primitive import i16, i32

from framegate.proxy.config.model import KafkaRule, KafkaRules
from framegate.proxy.kafka.schema import Api, api, api_key, apis
from framegate.proxy.relay.kafka_rules import KafkaJudge, KafkaRulesInForce, Refusal
from tests.fakes import cluster
from tests.fakes.kio_messages import answer_body, decoded, fields, request_body, sample, schema
from tests.fakes.tap_read import read_frames
from tests.fakes.world import World, frame
from tests.proxy.relay.conftest import assert_nothing_to_read, finish, passes, tapping

NAMES: Final = ("mine-1", "mine-2", "other", "Straße")
KINDS: Final = {TopicName: "topic", GroupId: "group", TransactionalId: "transactional_id"}
RULES: Final = {"topic": "topics", "group": "groups", "transactional_id": "transactional_ids"}


def judge_of(rules: KafkaRules, principal: str = "app") -> tuple[KafkaJudge, list[Refusal]]:
    in_force = KafkaRulesInForce(rules)
    refusals: list[Refusal] = []
    in_force.refused = refusals.append
    return KafkaJudge(in_force, principal), refusals


def renamed(entity: Any, rng: random.Random) -> Any:
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
    if each.name not in ("OffsetFetch", "DescribeShareGroupOffsets") and any(
        f"'{name}'" not in repr(after) for name in wrong
    ):  # of which a whole group is refused
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


# On connections.

RULE: Final = KafkaRule(deny=("DeleteTopics",), topics=("mine-*",), groups=("mine-*",))
PRODUCE: Final = 0
FETCH: Final = 1
METADATA: Final = 3
HEARTBEAT: Final = 12
DELETE_TOPICS: Final = 20
ADD_PARTITIONS: Final = 24


def in_force(rule: KafkaRule = RULE, **more: Any) -> KafkaRulesInForce:
    return KafkaRulesInForce(KafkaRules(rules=(rule,), **more))


def asking(key: int, version: int, correlation: int, *topics: str, **values: Any) -> bytes:
    """The frame of a request with these topics, if it has any."""
    made = renamed(sample(schema(key, version, False), random.Random(5), 1, 1), random.Random(6))
    for name, primitive, kind, array, _, _ in fields(type(made)):
        if name in ("topics", "topic_data", "topic_names") and array:
            one = sample(kind, random.Random(7), 1, 1) if primitive is None else None
            field = next((inner for inner in ("name", "topic") if one is not None and hasattr(one, inner)), "")
            values[name] = tuple(topics if one is None else (dataclasses.replace(one, **{field: topic}) for topic in topics))
        elif name == "group_id":
            values[name] = values.get(name, "mine-1")
        elif name == "transactional_id":
            values[name] = None
    return frame(request_body(dataclasses.replace(made, **values), correlation))


def produce(correlation: int, *topics: str, acks: int = -1) -> bytes:
    return asking(PRODUCE, 9, correlation, *topics, acks=i16(acks))


def answering(key: int, version: int, correlation: int, *topics: str) -> bytes:
    """The frame of an answer about these topics."""
    made = sample(schema(key, version, True), random.Random(8), 1, 1)
    for name, primitive, kind, array, _, _ in fields(type(made)):
        if name in ("topics", "responses") and array and primitive is None:
            one = sample(kind, random.Random(9), 1, 1)
            field = "name" if hasattr(one, "name") else "topic"
            made = dataclasses.replace(made, **{name: tuple(dataclasses.replace(one, **{field: topic}) for topic in topics)})
    return frame(answer_body(made, correlation))


def sent_to(world: World, upstream: socket.socket, count: int) -> list[bytes]:
    """The bodies of so many requests as the broker gets them."""
    found = []
    for _ in range(count):
        head = world.read(upstream, 4)
        found.append(world.read(upstream, int.from_bytes(head, "big")))
    return found


def cuts(data: bytes, rng: random.Random) -> Iterator[bytes]:
    while data:
        size = rng.randint(1, len(data))
        yield data[:size]
        data = data[size:]


@pytest.mark.parametrize("way", ["at once", "in pieces", "byte by byte"])
def test_refused_requests_are_answered_in_the_order_of_all_others(make: Any, way: str) -> None:
    world = make("kafka", kafka_rules=in_force())
    client, upstream, _ = world.pair()
    asked = [
        asking(HEARTBEAT, 2, 1),
        asking(DELETE_TOPICS, 5, 2, "mine-1"),
        produce(3, "mine-1", "other", "mine-2"),
        produce(4, "other"),
        produce(5, "other", acks=0),
        asking(HEARTBEAT, 2, 6),
        asking(HEARTBEAT, 2, 7, group_id="other"),
        produce(8, "mine-1"),
    ]
    data = b"".join(asked)
    rng = random.Random(4)
    for piece in [data] if way == "at once" else cuts(data, rng) if way == "in pieces" else [data[index : index + 1] for index in range(len(data))]:
        client.sendall(piece)
        world.selector.poll(0)
    seen = sent_to(world, upstream, 7)
    assert_nothing_to_read(upstream)
    assert [int.from_bytes(body[4:8], "big") for body in seen] == [1, 2, 3, 4, 6, 7, 8]
    assert [seen[0], seen[4], seen[6]] == [asked[0][4:], asked[5][4:], asked[7][4:]]
    assert [int.from_bytes(seen[index][:4], "big") for index in (1, 3, 5)] == [18 << 16] * 3
    assert [item.name for item in decoded(seen[2], PRODUCE, 9, answer=False).topic_data] == ["mine-1", "mine-2"]
    probes = [frame(number.to_bytes(4, "big") + bytes(6)) for number in (2, 4, 7)]
    answers = [
        answering(HEARTBEAT, 2, 1), probes[0], answering(PRODUCE, 9, 3, "mine-1", "mine-2"), probes[1], answering(HEARTBEAT, 2, 6), probes[2],
        answering(PRODUCE, 9, 8, "mine-1"),
    ]  # fmt: skip
    data = b"".join(answers)
    for piece in [data] if way == "at once" else cuts(data, rng) if way == "in pieces" else [data[index : index + 1] for index in range(len(data))]:
        upstream.sendall(piece)
        world.selector.poll(0)
    got = sent_to(world, client, 7)
    assert [int.from_bytes(body[:4], "big") for body in got] == [1, 2, 3, 4, 6, 7, 8]
    assert [frame(got[index]) for index in (0, 4, 6)] == [answers[0], answers[4], answers[6]]
    merged = decoded(got[2], PRODUCE, 9)
    assert [item.name for item in merged.responses] == ["other", "mine-1", "mine-2"]
    assert merged.responses[1:] == decoded(answers[2][4:], PRODUCE, 9).responses
    assert {part.error_code.name for part in merged.responses[0].partition_responses} == {"topic_authorization_failed"}
    assert decoded(got[5], HEARTBEAT, 2).error_code.name == "group_authorization_failed"
    finish(world, client, upstream)


def test_rules_that_only_report_change_no_byte(make: Any) -> None:
    refusals: list[Refusal] = []
    rules = in_force(report_only=True)
    rules.refused = refusals.append
    world = make("kafka", kafka_rules=rules)
    client, upstream, _ = world.pair()
    asked = produce(1, "other", "mine-1") + asking(DELETE_TOPICS, 5, 2, "other") + asking(METADATA, 9, 3, "other") + asking(FETCH, 13, 4)
    passes(world, client, upstream, asked)
    answers = answering(PRODUCE, 9, 1, "other") + answering(DELETE_TOPICS, 5, 2, "other") + answering(METADATA, 9, 3, "other")
    passes(world, upstream, client, answers + frame(struct.pack(">i", 4)))
    assert [(item.key, item.kind, item.name) for item in refusals] == [(0, 1, "other"), (20, 0, ""), (3, 1, "other"), (1, 1, "*")]
    finish(world, client, upstream)


def test_new_rules_apply_to_the_next_requests_of_open_connections(make: Any) -> None:
    rules = KafkaRulesInForce(KafkaRules())
    world = make("kafka", kafka_rules=rules)
    client, upstream, _ = world.pair()
    passes(world, client, upstream, produce(1, "other"))
    rules.put(KafkaRules(rules=(RULE,)))
    passes(world, upstream, client, answering(PRODUCE, 9, 1, "other"))
    client.sendall(produce(2, "other"))
    (probe,) = sent_to(world, upstream, 1)
    assert probe[:4] == b"\0\x12\0\0"
    rules.put(KafkaRules(rules=(RULE,), report_only=True))
    upstream.sendall(frame(probe[4:8] + bytes(6)))
    (refused,) = sent_to(world, client, 1)
    assert "topic_authorization_failed" in repr(decoded(refused, PRODUCE, 9))
    passes(world, client, upstream, produce(3, "other"))
    finish(world, client, upstream)


def test_a_client_that_was_offered_topic_ids_before_they_were_restricted_connects_again(make: Any) -> None:
    """Whoever is refused by id, although the topic is allowed, gives up for good."""
    for key, version, before in ((PRODUCE, 13, KafkaRules()), (FETCH, 17, KafkaRules(rules=(RULE,), report_only=True)), (PRODUCE, 13, None)):
        rules = KafkaRulesInForce(before or KafkaRules(rules=(RULE,)))
        world = make("kafka", kafka_rules=rules)
        client, upstream, _ = world.pair()
        passes(world, client, upstream, asking(HEARTBEAT, 2, 1) if before is None else asking(key, version, 1))
        rules.put(KafkaRules(rules=(RULE,)))
        client.sendall(asking(key, version, 2))
        if before is None:
            assert sent_to(world, upstream, 1)[0][:4] == b"\0\x12\0\0", "it should not have used ids: it is refused"
            finish(world, client, upstream)
        else:
            assert world.ended(client) == b""
            finish(world, client, upstream)
            assert "to connect again helps" in world.row["detail"], world.row


def test_a_part_of_a_transactions_partitions_is_not_added_if_another_is_refused(make: Any) -> None:
    """As Kafka answers: neither is."""
    for version in range(4):
        world = make("kafka", kafka_rules=in_force())
        client, upstream, _ = world.pair()
        client.sendall(transaction(version, 1, "mine-1", "other", "mine-2"))
        (probe,) = sent_to(world, upstream, 1)
        assert probe[:4] == b"\0\x12\0\0", version
        upstream.sendall(frame(probe[4:8] + bytes(6)))
        (body,) = sent_to(world, client, 1)
        rows = decoded(body, ADD_PARTITIONS, version).results_by_topic_v3_and_below
        codes = {row.name: {item.partition_error_code.name for item in row.results_by_partition} for row in rows}
        assert codes == {"other": {"topic_authorization_failed"}, "mine-1": {"operation_not_attempted"}, "mine-2": {"operation_not_attempted"}}
        passes(world, client, upstream, transaction(version, 2, "mine-1", "mine-2"))
        finish(world, client, upstream)


def transaction(version: int, correlation: int, *topics: str) -> bytes:
    """The frame of an AddPartitionsToTxn request."""
    made = sample(schema(ADD_PARTITIONS, version, False), random.Random(5), 1, 1)
    rows = tuple(dataclasses.replace(made.v3_and_below_topics[0], name=TopicName(topic)) for topic in topics)
    return frame(request_body(dataclasses.replace(made, v3_and_below_topics=rows), correlation))


def test_a_fetch_is_sent_outside_of_sessions(make: Any) -> None:
    world = make("kafka", kafka_rules=in_force())
    client, upstream, _ = world.pair()
    begins = {"session_id": i32(0), "session_epoch": i32(0), "forgotten_topics_data": ()}
    client.sendall(asking(FETCH, 12, 1, "mine-1", "other", **begins))
    (seen,) = sent_to(world, upstream, 1)
    fetch = decoded(seen, FETCH, 12, answer=False)
    assert (fetch.session_id, fetch.session_epoch, [item.topic for item in fetch.topics]) == (0, -1, ["mine-1"])
    client.sendall(asking(FETCH, 12, 2, **{**begins, "session_id": i32(9), "session_epoch": i32(1)}))
    (probe,) = sent_to(world, upstream, 1)
    upstream.sendall(answering(FETCH, 12, 1, "mine-1") + frame(probe[4:8] + bytes(6)))
    first, second = sent_to(world, client, 2)
    assert [item.topic for item in decoded(first, FETCH, 12).responses] == ["other", "mine-1"]
    assert decoded(second, FETCH, 12).error_code.name == "fetch_session_id_not_found"
    finish(world, client, upstream)


def versions_answer(correlation: int) -> bytes:
    """The body of an answer to ApiVersions 0 of a broker that has every API in every version."""
    ranges = [struct.pack(">hhh", key, 0, 99) for key in range(100)]
    return struct.pack(">ihi", correlation, 0, len(ranges)) + b"".join(ranges)


@pytest.mark.parametrize("clustered", [False, True])
def test_lists_of_topics_lose_the_others_and_versions_with_ids_are_not_offered(make: Any, clustered: bool) -> None:
    world = make("kafka", kafka_rules=in_force(), **({"brokers": cluster.brokers()} if clustered else {}))
    client, upstream, _ = world.pair()
    passes(world, client, upstream, asking(METADATA, 12, 1, topics=None) + frame(request_body(sample(schema(18, 0, False), random.Random(1)), 2)))
    upstream.sendall(answering(METADATA, 12, 1, "mine-1", "other", "mine-2") + frame(versions_answer(2)))
    metadata, versions = sent_to(world, client, 2)
    found = decoded(metadata, METADATA, 12)
    assert [item.name for item in found.topics] == ["mine-1", "mine-2"]
    assert (cluster.SECRET in metadata) != clustered or not found.brokers
    offered = {item.api_key: item.max_version for item in decoded(versions, 18, 0).api_keys}
    assert (offered[PRODUCE], offered[FETCH], offered[DELETE_TOPICS]) == (12, 12, 5)
    assert not {75, 78, 79} & offered.keys()
    finish(world, client, upstream)


def test_large_answers_in_pieces_get_results_but_their_lists_must_be_whole(make: Any) -> None:
    for key, version, ends in ((FETCH, 12, False), (METADATA, 12, True)):
        world = make("kafka", kafka_rules=in_force(), cut_answers=True, answer_limit=1 << 22)
        client, upstream, pair = world.pair()
        values = {"session_id": i32(0), "session_epoch": i32(-1)} if key == FETCH else {}
        client.sendall(asking(key, version, 1, "mine-1", "other", **values))
        sent_to(world, upstream, 1)
        answer = answering(key, version, 1, *["mine-1"] * 6000)
        assert len(answer) > 1 << 18
        upstream.setblocking(False)
        left = answer
        got = b""
        client.setblocking(False)
        for _ in range(2000):
            with contextlib.suppress(OSError):
                left = left[upstream.send(left) :]
            world.poll(1)
            with contextlib.suppress(OSError):
                got += client.recv(1 << 20)
            if pair.state.value != "open" or (len(got) >= 4 and len(got) == 4 + int.from_bytes(got[:4], "big")):
                break
        if ends:
            assert not got
        else:
            topics = [item.topic for item in decoded(got[4:], key, version).responses]
            assert topics == ["other", *["mine-1"] * 6000]
        finish(world, client, upstream)
        assert ("must be whole" in world.row["detail"]) == ends


def test_the_tap_has_what_was_received(make: Any, tmp_path: Path) -> None:
    options = tapping(tmp_path)
    world = make("kafka", kafka_rules=in_force(), **options)
    client, upstream, _ = world.pair()
    asked = produce(1, "other", "mine-1")
    client.sendall(asked)
    sent_to(world, upstream, 1)
    upstream.sendall(answering(PRODUCE, 9, 1, "mine-1"))
    sent_to(world, client, 1)
    finish(world, client, upstream)
    options["writer"].flush_and_close(1000)
    assert [item.body for item in read_frames(str(tmp_path))] == [asked[4:], answering(PRODUCE, 9, 1, "mine-1")[4:]]
