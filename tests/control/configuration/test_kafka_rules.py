"""Rules about Kafka in a configuration, and over the API."""

from typing import Any

from framegate.control.configuration.kafka_rules import MOST_RULES, kafka_rule_faults
from framegate.proxy.config.model import KafkaRule, KafkaRules
from tests.fakes.configuration import faults, put, warnings

RULES: dict[str, Any] = {
    "report_only": True,
    "rules": [{"principals": ["a*"], "deny": ["DeleteTopics"]}, {"client_ids": ["b"], "allow": ["Fetch"], "topics": ["t-*"], "groups": ["g"]}],
}


def with_rules(data: dict[str, Any]) -> dict[str, Any]:
    data["listeners"][0].update(protocol="kafka", kafka=RULES)
    return data


def test_rules_are_read_and_faults_named_at_their_key(data: dict[str, Any]) -> None:
    good = with_rules(data)
    assert faults(good) == []
    assert warnings(good) == []
    at, where = "listeners.0", "listeners[0]"
    cases = [
        (f"{at}.protocol", "framed", f"{where}.protocol", "must be kafka"),
        (f"{at}.forwarding", {"requests": "cut_through"}, f"{where}.forwarding.requests", "must be whole"),
        (f"{at}.handler", "framegate.proxy.handler.echo:echo", f"{where}.handler", "cannot be used with kafka"),
        (f"{at}.kafka.unknown_versions", "maybe", f"{where}.kafka.unknown_versions", "narrow"),
        (f"{at}.kafka.rules.0.deny", ["DeletTopics"], f"{where}.kafka.rules[0].deny[0]", "did you mean DeleteTopics?"),
        (f"{at}.kafka.rules.0.deny", ["ApiVersions"], f"{where}.kafka.rules[0].deny[0]", "cannot be denied"),
        (f"{at}.kafka.rules.0.topics", [""], f"{where}.kafka.rules[0].topics[0]", "is empty"),
        (f"{at}.kafka.rules", [{"deny": ["Fetch"]}] * (MOST_RULES + 1), f"{where}.kafka.rules", "more than 256"),
    ]
    missed = []
    for path, value, key, reason in cases:
        found = faults(put(good, path, value))
        if not any(fault.key == key and reason in fault.reason for fault in found):
            missed.append((path, found))
    assert not missed


def test_rules_without_effect_are_warned_about(data: dict[str, Any]) -> None:
    good = with_rules(data)
    for rules, reason in (([{"deny": ["Fetch"]}, {"deny": ["Produce"]}], "the rules after it"), ([{"principals": ["a"]}], "has no effect")):
        assert [reason in item.reason for item in warnings(put(good, "listeners.0.kafka.rules", rules))] == [True], rules


def test_faults_over_the_api_have_the_fields_of_the_message() -> None:
    rules = KafkaRules(rules=(KafkaRule(), KafkaRule(deny=("Fetch", "Fech"), topics=("",))))
    assert [(field, reason.split(";")[0]) for field, reason in kafka_rule_faults(rules)] == [
        ("rules[1].deny[1]", "is no API of Kafka that clients use"),
        ("rules[1].topics[0]", "is empty, and matches no name"),
    ]
