"""Differences of two configurations: complete, with names for entries of lists and the effect of each key."""

import dataclasses
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from framegate.control.configuration.difference import differences
from framegate.control.configuration.manual import SOURCE, entries
from framegate.control.configuration.reading import read_document
from framegate.control.configuration.schema import build
from framegate.proxy.config.limits import LimitOverride
from framegate.proxy.config.model import EndpointConfig, KafkaRule, KafkaRules, ListenerConfig, MemoryPoolConfig, ProxyConfig, TapRule, UpstreamConfig
from tests.fakes.configurations import configurations

LISTENER = ListenerConfig(name="a", address="127.0.0.1:1", upstream="u")
CONFIG = ProxyConfig(
    node="edge",
    listeners=(LISTENER, dataclasses.replace(LISTENER, name="b", address="127.0.0.1:2")),
    upstreams=(UpstreamConfig(name="u", endpoints=("10.0.0.1:1", EndpointConfig(address="10.0.0.2:1"))),),
)


def told(before: ProxyConfig, after: ProxyConfig) -> list[tuple[str | None, ...]]:
    return [(item.path, *item.texts, item.effect) for item in differences(before, after)]


def changed(**values: Any) -> ProxyConfig:
    return dataclasses.replace(CONFIG, **values)


def listener(**values: Any) -> ProxyConfig:
    return changed(listeners=(dataclasses.replace(LISTENER, **values), CONFIG.listeners[1]))


def test_each_difference_has_the_path_both_values_and_the_effect_of_its_key() -> None:
    rules = (KafkaRule(deny=("DeleteTopics",)), KafkaRule())
    kafka = listener(kafka=KafkaRules(rules=rules))
    cases: list[tuple[ProxyConfig, ProxyConfig, list[tuple[str | None, ...]]]] = [
        (CONFIG, listener(max_receive_size=1024), [("listeners[a].max_receive_size", "100MiB", "1KiB", "now")]),
        (CONFIG, changed(node="m"), [("node", "edge", "m", "restart")]),
        (
            CONFIG,
            listener(timeouts=dataclasses.replace(LISTENER.timeouts, idle_ms=90_000)),
            [("listeners[a].timeouts.idle", "10m", "90s", "new connections")],
        ),
        (
            CONFIG,
            changed(listeners=CONFIG.listeners[1:]),
            [("listeners[a]", '{name: a, address: "127.0.0.1:1", upstream: u}', None, "new connections")],
        ),
        (CONFIG, changed(listeners=CONFIG.listeners[::-1]), [("listeners", "[a, b]", "[b, a]", "new connections")]),
        (CONFIG, kafka, [("listeners[a].kafka", None, "{rules: [{deny: [DeleteTopics]}, {}]}", "new connections")]),
        (kafka, listener(kafka=KafkaRules(rules=rules[:1])), [("listeners[a].kafka.rules[1]", "{}", None, "now")]),
        (CONFIG, changed(memory_pool=MemoryPoolConfig(shares={"a": 10})), [("memory_pool.shares[a]", None, "10", "now")]),
        (
            CONFIG,
            changed(upstreams=(UpstreamConfig(name="u", endpoints=("10.0.0.1:1", EndpointConfig(address="10.0.0.2:1", weight=2))),)),
            [("upstreams[u].endpoints[10.0.0.2:1].weight", "1", "2", "now")],
        ),
        (
            CONFIG,
            changed(limits=dataclasses.replace(CONFIG.limits, overrides=(LimitOverride(network="10.0.0.0/8", access="deny"),))),
            [("limits.overrides[10.0.0.0/8]", None, '{network: "10.0.0.0/8", access: deny}', "now")],
        ),
    ]
    assert [(found, wanted) for before, after, wanted in cases if (found := told(before, after)) != wanted] == []


def test_entries_with_one_name_are_one_difference_of_the_list() -> None:
    rules = (TapRule(name="x"), TapRule(name="x", capture="hash"))
    tap = build(read_document(SOURCE)).tap
    assert tap is not None
    before, after = (changed(tap=dataclasses.replace(tap, rules=item)) for item in (rules, rules[:1]))
    assert [item.path for item in differences(before, after)] == ["tap.rules"]


@pytest.mark.slow
@settings(max_examples=30, suppress_health_check=list(HealthCheck), deadline=None)
@given(configurations, configurations)
def test_there_is_no_difference_only_between_equal_configurations(one: ProxyConfig, other: ProxyConfig) -> None:
    assert differences(one, one) == ()
    assert bool(differences(one, other)) is (one != other)
    assert all(item.texts for item in differences(one, other))


def test_no_key_holds_a_secret() -> None:
    """Values are shown in differences, rows and the API; what is secret is in files, whose paths are the values."""
    secret = [name for name, item in entries().items() if any(word in name.rpartition(".")[2] for word in ("password", "secret", "token_", "key"))]
    assert [name for name in secret if entries()[name].type != "a path" and name != "listeners.socket.keep_alive" and "keep_alive" not in name] == []
