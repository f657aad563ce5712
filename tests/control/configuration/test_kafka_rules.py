"""Rules about Kafka in a configuration, and over the API."""

from pathlib import Path
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


def test_rules_are_read_and_faults_named_at_their_key(data: dict[str, Any], tmp_path: Path) -> None:
    good = with_rules(data)
    assert faults(good) == []
    assert warnings(good, tmp_path) == []
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
        if not any(fault[0] == key and reason in fault[1] for fault in found):
            missed.append((path, found))
    assert not missed


def test_rules_without_effect_are_warned_about(data: dict[str, Any], tmp_path: Path) -> None:
    good = with_rules(data)
    listener = {key: value for key, value in good["listeners"][0].items() if key not in ("tls", "sasl", "principal", "allowed_principals")}
    cases = (
        ([{"deny": ["Fetch"]}, {"deny": ["Produce"]}], "the rules after it"),
        ([{"client_ids": ["a"]}], "has no effect"),
        ([{"principals": ["ANON*"], "deny": ["Fetch"]}, {"principals": ["a"], "deny": ["Fetch"]}], "match nobody: without sasl"),
    )
    for rules, reason in cases:
        assert [reason in found for _, found in warnings(put(good, "listeners.0", {**listener, "kafka": {"rules": rules}}), tmp_path)] == [True], (
            rules
        )


def test_faults_over_the_api_have_the_fields_of_the_message() -> None:
    rules = KafkaRules(rules=(KafkaRule(), KafkaRule(deny=("Fetch", "Fech"), topics=("",))))
    assert [(field, reason.split(";")[0]) for field, reason in kafka_rule_faults(rules)] == [
        ("rules[1].deny[1]", "is no API of Kafka that clients use"),
        ("rules[1].topics[0]", "is empty, and matches no name"),
    ]
