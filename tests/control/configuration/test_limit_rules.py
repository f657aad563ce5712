"""Quotas, and the memory pool: it holds frames that pass whole, and listeners' shares."""

import pathlib
from typing import Any

import pytest

from framegate.control.configuration.cgroup import Container
from framegate.control.configuration.document import ConfigurationError, document_of
from framegate.control.configuration.limit_rules import MOST_RULES, listener_limit_faults, read_limit_rules
from framegate.control.configuration.load import judge
from framegate.proxy.config.limits import UNLIMITED_NODE, LimitOverride, LimitRule, ListenerLimits, RateLimits
from framegate.proxy.config.model import ListenerConfig
from tests.fakes.configuration import faults, misnamed, put, validate, warnings

UPSTREAMS = [{"name": "u", "endpoints": ["127.0.0.1:1"]}]
LISTENERS = [{"name": name, "address": "127.0.0.1:0", "upstream": "u"} for name in ("a", "b")]


def quotas(limits: Any, listeners: Any = LISTENERS) -> dict[str, Any]:
    return {"node": "n", "listeners": listeners, "upstreams": UPSTREAMS, "limits": limits}


def quota_faults(limits: Any, listeners: Any = LISTENERS) -> list[tuple[str, str]]:
    with pytest.raises(ConfigurationError) as raised:
        validate(quotas(limits, listeners))
    return [(fault.key, fault.reason) for fault in raised.value.faults]


def test_quotas_are_read_with_their_units() -> None:
    limits = {
        "connections": 5,
        "request_bytes_rate": "1MiB",
        "protected_listener": "b",
        "per_address": {"response_bytes_rate": "2KiB"},
        "overrides": [{"network": "10.0.0.0/8", "request_bytes_rate": "3KiB", "connections": 0}, {"network": "::/0", "access": "deny"}],
    }
    config = validate(quotas(limits, [{**LISTENERS[0], "limits": {"connection_rate": 7}}, LISTENERS[1]]))
    assert (config.limits.connections, config.limits.request_bytes_rate, config.limits.protected_listener) == (5, 1024 * 1024, "b")
    assert config.limits.per_address == RateLimits(response_bytes_rate=2048)
    assert config.limits.overrides == (
        LimitOverride(network="10.0.0.0/8", request_bytes_rate=3072, connections=0),
        LimitOverride(network="::/0", access="deny"),
    )
    assert [listener.limits for listener in config.listeners] == [ListenerLimits(connection_rate=7), ListenerLimits()]


def test_without_quotas_nothing_is_limited() -> None:
    config = validate({"node": "n", "listeners": LISTENERS, "upstreams": UPSTREAMS})
    assert config.limits == UNLIMITED_NODE


def test_networks_that_cannot_be_used_are_all_named() -> None:
    overrides = [
        {"network": "10.0.0.1/8"},
        {"network": "2001:db8::/96"},
        {"network": "10.0.0.0/8"},
        {"network": "10.0.0.0/8", "access": "deny"},
        {"connections": 5},
        "10.0.0.0/9",
        {"network": "11.0.0.0/255.0.0.0"},
        {"network": "192.0.2.7"},
    ]
    found = dict(quota_faults({"overrides": overrides}))
    assert found == {
        "limits.overrides[0].network": "cannot be used: 10.0.0.1/8 has host bits set",
        "limits.overrides[1].network": "cannot be used: 2001:db8::/96 is part of a /64, and of IPv6 the whole of that counts as one address",
        "limits.overrides[3].network": "is already used by limits.overrides[2].network (line 0)",
        "limits.overrides[4].network": "is required",
        "limits.overrides[5]": "must be a mapping of keys to values",
        "limits.overrides[6].network": "cannot be used: 11.0.0.0/255.0.0.0 is written 11.0.0.0/8",
        "limits.overrides[7].network": "cannot be used: 192.0.2.7 is written 192.0.2.7/32",
    }


def test_the_protected_listener_is_one_of_several() -> None:
    assert quota_faults({"protected_listener": "c"}) == [("limits.protected_listener", "is not the name of a listener; there are: a, b")]
    ((key, reason),) = quota_faults({"protected_listener": "a"}, LISTENERS[:1])
    assert (key, "only listener" in reason) == ("limits.protected_listener", True)


def test_a_quota_out_of_range_is_named() -> None:
    cases = {
        "limits.connections": {"connections": -1},
        "limits.connection_rate": {"connection_rate": 1_000_001},
        "limits.request_bytes_rate": {"request_bytes_rate": "2TiB"},
        "limits.per_address.request_frames_rate": {"per_address": {"request_frames_rate": "x"}},
        "limits.overrides[0].connections": {"overrides": [{"network": "10.0.0.0/8", "connections": -1}]},
        "limits.overrides[0].access": {"overrides": [{"network": "10.0.0.0/8", "access": "none"}]},
        "limits.overrides": {"overrides": {"network": "10.0.0.0/8"}},
        "limits.per_address": {"per_address": 5},
    }
    assert {key: [name for name, _ in quota_faults(limits)] for key, limits in cases.items()} == {key: [key] for key in cases}


def test_a_listener_refuses_a_limit_below_zero() -> None:
    """Number 193: a limit that cannot be is refused (here 0 is unlimited, so it is one below)."""
    assert quota_faults({}, [{**LISTENERS[0], "limits": {"connections": -1}}]) == [("listeners[0].limits.connections", "must be from 0 to 10000000")]


def test_limit_rules_are_read_with_their_units_and_each_fault_is_named() -> None:
    def ruled(*rules: Any, **listener: Any) -> dict[str, Any]:
        return quotas({}, [{**LISTENERS[0], "limits": {"rules": rules}, "protocol": "kafka", "framing": "int32", **listener}])

    full = {"name": "etl", "principals": ["A*"], "client_ids": ["etl-*"], "networks": ["10.0.0.0/8"], "max_receive_size": "4KiB"}
    rates = {"request_bytes_rate": "1MiB", "response_bytes_rate": 7, "request_frames_rate": 8, "response_frames_rate": 9, "report_only": True}
    (listener,) = validate(ruled({**full, **rates}, {"name": "b"})).listeners
    pairs = {**full, **rates, "max_receive_size": 4096, "request_bytes_rate": 1 << 20, "principals": ("A*",)}
    assert listener.limits.rules == (LimitRule(**{**pairs, "client_ids": ("etl-*",), "networks": ("10.0.0.0/8",)}), LimitRule(name="b"))
    wrong = {}
    cases: list[tuple[dict[str, Any], list[str]]] = [
        (ruled({}), ["[0].name"]),
        (ruled({"name": "A"}, {"name": "b"}, {"name": "b"}), ["[0].name", "[2].name"]),
        (ruled({"name": "a", "principals": [""], "client_ids": ["x", ""]}), ["[0].principals[0]", "[0].client_ids[1]"]),
        (ruled({"name": "a", "networks": ["10.0.0.1/8", "host", "::/0"]}), ["[0].networks[0]", "[0].networks[1]"]),
        (ruled({"name": "a", "max_receive_size": 0}), ["[0].max_receive_size"]),
        (ruled({"name": "a", "max_receive_size": "2GiB"}), ["[0].max_receive_size"]),
        (ruled({"name": "a", "request_bytes_rate": "2TiB", "report_only": "yes"}), ["[0].request_bytes_rate", "[0].report_only"]),
        (ruled({"name": "a", "report_only": True}), ["[0].report_only"]),
        (ruled({"name": "a", "client_ids": ["x"]}, protocol="framed"), ["[0].client_ids"]),
        (ruled({"name": "a", "max_receive_size": 9, "report_only": True}, protocol="framed", framing="lines"), ["[0].report_only"]),
        (ruled({"name": "a", "connections": 9}), ["[0].connections"]),
        (ruled(*({"name": f"r{number}", "networks": ["::/0"]} for number in range(MOST_RULES + 1))), [""]),
        (ruled(*({"name": f"r{number}", "networks": ["::/0"]} for number in range(MOST_RULES))), []),
        (ruled("x"), ["[0]"]),
    ]
    for data, keys in cases:
        document = document_of(data)
        judge(document, machine=False)
        found = [fault.key for fault in document.faults if fault.key.startswith("listeners[0].limits.rules")]
        if found != [f"listeners[0].limits.rules{key}" for key in keys]:
            wrong[str(data["listeners"])[:200]] = found
    assert wrong == {}


def test_a_limit_rule_without_an_effect_is_a_warning() -> None:
    rules = [
        {"name": "a", "principals": ["CN=*"], "max_receive_size": "200MiB", "report_only": True},
        {"name": "b", "max_receive_size": 1},
        {"name": "c", "networks": ["::/0"]},
    ]
    document = document_of({**quotas({}, [{**LISTENERS[0], "limits": {"rules": rules}}]), "memory_pool": {"size": "1GiB"}, "processors": 1})
    judge(document, machine=False)
    assert [fault.key.removeprefix("listeners[0].limits.") for fault in document.warnings] == [
        "rules[0].principals",
        "rules[0].max_receive_size",
        "rules[1]",
        "rules[2]",
    ]


def test_the_size_of_a_limit_rule_fits_into_a_processors_part(data: dict[str, Any]) -> None:
    rule = {"name": "a", "max_receive_size": "4MiB"}
    assert faults(put(data, "listeners.1.limits", {"rules": [rule]})) == []
    ((key, reason),) = faults(put(data, "listeners.1.limits", {"rules": [{**rule, "max_receive_size": "4097KiB"}]}))
    assert (key, "listeners[1].limits.rules[0].max_receive_size is 4097KiB" in reason) == ("memory_pool.size", True)


def test_limit_rules_are_read_from_a_text_and_those_of_the_api_have_the_same_faults() -> None:
    assert read_limit_rules("rules:\n- {name: a, max_receive_size: 4KiB, networks: [10.0.0.0/8]}\n") == (
        LimitRule(name="a", max_receive_size=4096, networks=("10.0.0.0/8",)),
    )
    assert read_limit_rules("rules: []") == read_limit_rules("{}") == ()
    with pytest.raises(ConfigurationError) as raised:
        read_limit_rules("rules:\n- {nam: a}\nconnections: 5\n")
    assert [fault.key for fault in raised.value.faults] == ["connections", "rules[0].nam", "rules[0].name"]
    listener = ListenerConfig(
        name="l", address="127.0.0.1:0", limits=ListenerLimits(rules=(LimitRule(name="a", networks=("x",), request_frames_rate=-1),))
    )
    assert [key for key, _ in listener_limit_faults(listener)] == ["rules[0].request_frames_rate", "rules[0].networks[0]"]


def test_what_a_denied_network_is_given_besides_has_no_effect() -> None:
    document = document_of(quotas({"overrides": [{"network": "10.0.0.0/8", "access": "deny", "connections": 5, "request_bytes_rate": 1}]}))
    judge(document, machine=False)
    assert [(fault.key, fault.value) for fault in document.warnings] == [
        ("limits.overrides[0].connections", "5"),
        ("limits.overrides[0].request_bytes_rate", "1"),
    ]


def test_a_broken_rule_is_named_at_its_key(data: dict[str, Any]) -> None:
    cases = [
        ("memory_pool.size", "1MiB", "memory_pool.size", "at least 2MiB are needed"),
        ("memory_pool.shares", {"kafkaa": 5}, "memory_pool.shares.kafkaa", "is not the name of a listener; there are: kafka, plain"),
        ("memory_pool.shares", {"kafka": 60, "plain": 50}, "memory_pool.shares", "guarantees 110 percent, and there are 100"),
        ("memory_pool.shares", {"kafka": 100}, "memory_pool.shares", "leaves nothing to plain"),
        ("listeners.1.forwarding", {"responses": "whole"}, "listeners[1].forwarding.responses", "set upstreams[0].max_receive_size to at most 4MiB"),
        ("listeners.1.forwarding", {"requests": "splice"}, "listeners[1].forwarding.requests", "must be 'whole' or 'cut_through'"),
    ]
    assert misnamed(data, cases) == []


def test_answers_that_pass_whole_fit_into_a_processors_part(data: dict[str, Any]) -> None:
    data["listeners"][1]["forwarding"] = {"responses": "whole"}
    assert faults(put(data, "upstreams.0.max_receive_size", "4MiB")) == []
    ((key, reason),) = faults(put(data, "upstreams.0.max_receive_size", "4097KiB"))
    assert key == "listeners[1].forwarding.responses"
    assert reason == (
        "needs answers that a processor can hold: upstreams[0].max_receive_size is 4097KiB, and each of 2 processors has 4MiB of memory_pool.size; "
        "set upstreams[0].max_receive_size to at most 4MiB, or cut_through here"
    )
    assert faults(put(put(data, "upstreams.0.max_receive_size", "8MiB"), "processors", 1)) == []


def test_as_few_processors_are_started_as_hold_answers_that_pass_whole(data: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("framegate.control.configuration.limit_rules.container", lambda: Container(8, None, 1))
    data["listeners"][1]["forwarding"] = {"responses": "whole"}
    assert faults(put(put(data, "upstreams.0.max_receive_size", "3MiB"), "processors", 0)) == []


def test_requests_that_are_cut_through_may_be_larger_than_the_pool(data: dict[str, Any]) -> None:
    data["listeners"][0]["max_receive_size"] = "1GiB"
    assert [key for key, _ in faults(data)] == ["memory_pool.size"]
    data["listeners"][0]["forwarding"] = {"requests": "cut_through"}
    assert faults(data) == []


def test_a_share_of_a_pool_without_bounds_or_of_the_only_listener_has_no_effect(data: dict[str, Any], tmp_path: pathlib.Path) -> None:
    data["tap"]["budget"] = "128MiB"
    data["memory_pool"].update(shares={"kafka": 50}, kind="leak_finding")
    assert warnings(data, tmp_path) == []
    unbounded = put(data, "memory_pool.kind", "unbounded")
    assert warnings(unbounded, tmp_path) == [("memory_pool.shares", "has no effect: with kind unbounded nobody waits for memory")]
    ((key, reason),) = faults(put(data, "memory_pool.kind", "endless"))
    assert (key, "'bounded', 'unbounded' or 'leak_finding'" in reason) == ("memory_pool.kind", True), reason
    del data["listeners"][1]
    assert warnings(data, tmp_path) == [("memory_pool.shares", "has no effect: there is one listener, and the whole pool is its own")]
