"""What requests name. ``tests/proxy/relay/test_kafka_rules.py`` compares every API and version with kio's reading of the same messages."""

import random

from framegate.proxy.kafka.schema import api, apis, understands
from framegate.proxy.kafka.subjects import (
    GROUP,
    TOPIC,
    TRANSACTIONAL_ID,
    Allowed,
    Patterns,
    greatest_named_version,
    kinds_of,
    result_list,
    set_sessionless,
    subjects_of,
)
from tests.fakes.kio_messages import request_body, sample, schema


def test_patterns_match_whole_names_as_in_a_shell_however_many_names_come() -> None:
    patterns = Patterns(("orders-*", "a?", "[xy]z", "exact"))
    names = {"orders-": True, "orders-1\n": True, "my-orders-1": False, "ab": True, "abc": False, "xz": True, "zz": False, "exact": True, "": False}
    for _ in range(2):
        assert {name: patterns.match(name) for name in names} == names
        assert not any(patterns.match(f"name-{number}") for number in range(5000))


def test_a_name_that_is_missing_and_kinds_without_patterns_are_allowed() -> None:
    allowed = Allowed({TOPIC: Patterns(("a",)), TRANSACTIONAL_ID: Patterns(("t",))})
    cases = {(TOPIC, "a"): True, (TOPIC, "b"): False, (TOPIC, None): True, (GROUP, "b"): True, (TRANSACTIONAL_ID, "b"): False}
    assert {case: allowed.allows(*case) for case in cases} == cases
    assert allowed.kinds == TOPIC | TRANSACTIONAL_ID


def test_the_greatest_versions_with_names() -> None:
    named = {each.name: greatest_named_version(each) for each in apis() if greatest_named_version(each) < each.most}
    assert named == {
        "Produce": 12,
        "Fetch": 12,
        "OffsetCommit": 9,
        "OffsetFetch": 9,
        "DeleteTopics": 5,
        "DescribeTopicPartitions": -1,
        "ShareFetch": -1,
        "ShareAcknowledge": -1,
        "InitializeShareGroupState": -1,
        "ReadShareGroupState": -1,
        "WriteShareGroupState": -1,
        "DeleteShareGroupState": -1,
        "ReadShareGroupStateSummary": -1,
    }


def test_apis_without_names_are_not_examined() -> None:
    none = {each.name for each in apis() if not kinds_of(each)}
    assert {"ApiVersions", "SaslHandshake", "DescribeCluster", "CreateAcls", "DescribeClientQuotas", "UpdateFeatures"} <= none
    assert {"Produce", "JoinGroup", "FindCoordinator", "AlterConfigs", "ListGroups", "ListTransactions"}.isdisjoint(none)


def test_each_element_of_these_lists_has_one_result() -> None:
    found = {each.name: (lists[0].name, lists[1].name) for each in apis() if (lists := result_list(each, each.most)) is not None}
    assert found["Fetch"] == ("Topics", "Responses")
    assert found["FindCoordinator"] == ("CoordinatorKeys", "Coordinators")
    assert found["DeleteGroups"] == ("GroupsNames", "Results")
    assert found["AlterConfigs"] == ("Resources", "Responses")
    assert not {"JoinGroup", "ListGroups", "ListPartitionReassignments", "ConsumerGroupHeartbeat"} & found.keys()


def test_a_fetch_outside_of_sessions_stays_and_one_that_continues_a_session_is_none() -> None:
    known = api(1)
    assert known is not None
    assert understands(1, 12)
    shape = subjects_of(known, 12)
    body = request_body(sample(schema(1, 12, False), random.Random(1)))
    at = shape.examine(body, Allowed({TOPIC: Patterns(("*",))})).session_at
    cases = {(0, -1): (0, -1), (0, 0): (0, -1), (7, 0): (0, -1), (7, -1): (0, -1), (7, 1): None, (7, 2147483647): None}
    for (session, epoch), wanted in cases.items():
        asked = body[:at] + session.to_bytes(4, "big", signed=True) + epoch.to_bytes(4, "big", signed=True) + body[at + 8 :]
        found = set_sessionless(asked, at)
        if wanted is None:
            assert found is None
        else:
            assert found == body[:at] + wanted[0].to_bytes(4, "big") + wanted[1].to_bytes(4, "big", signed=True) + body[at + 8 :]
