import copy
import json
import pathlib
from typing import Any

import pytest

from control.configuration.fault import ConfigurationError
from control.configuration.load import examine, validate
from control.demo.certificates import Certificates, create


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return create(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def data(made: Certificates) -> dict[str, Any]:
    return {
        "node": "edge-1",
        "processors": 2,
        "admin": {"address": "unix:/tmp/admin.sock"},
        "health": {"address": "127.0.0.1:9901"},
        "memory_pool": {"size": "8MiB"},
        "listeners": [
            {
                "name": "kafka",
                "address": "127.0.0.1:9093",
                "upstream": "brokers",
                "max_receive_size": "1MiB",
                "tls": {
                    "certificate": str(made.server),
                    "key": str(made.server_key),
                    "client_auth": "required",
                    "client_ca": str(made.ca),
                },
            },
            {"name": "plain", "address": "127.0.0.1:0", "upstream": "brokers", "max_receive_size": "1MiB"},
        ],
        "upstreams": [
            {
                "name": "brokers",
                "endpoints": ["127.0.0.1:9092"],
                "tls": {"ca": str(made.ca), "certificate": str(made.client), "key": str(made.client_key)},
            }
        ],
        "tap": {"directory": "var/tap", "rules": [{"name": "all", "listeners": ["kafka"], "networks": ["10.0.0.0/8"]}]},
        "telemetry": {"otlp": {"endpoint": "http://127.0.0.1:4317"}, "prometheus": {"address": "127.0.0.1:9464"}},
    }


def faults(data: dict[str, Any]) -> list[tuple[str, str]]:
    try:
        validate(data, pathlib.Path("/tmp"))
    except ConfigurationError as error:
        return [(fault.key, fault.reason) for fault in error.faults]
    return []


def put(data: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    """A copy with one value changed; ``path`` as ``listeners.0.tls.key``; a value of ``...`` removes the key."""
    result = copy.deepcopy(data)
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    target: Any = result
    for part in parents:
        target = target[part]
    if value is ...:
        del target[last]
    elif isinstance(target, list) and last == len(target):
        target.append(value)
    else:
        target[last] = value
    return result


def test_a_whole_configuration_has_no_fault(data: dict[str, Any]) -> None:
    assert faults(data) == []


@pytest.mark.parametrize(
    ("path", "value", "key", "part"),
    [
        ("node", "edge/1", "node", "letters, digits"),
        ("listeners.1.name", "kafka", "listeners[1].name", "already the name of listeners[0]"),
        ("listeners.1.name", "Big", "listeners[1].name", "lower-case"),
        ("listeners.1.upstream", "brokerz", "listeners[1].upstream", "there are: brokers"),
        ("listeners.1.address", "127.0.0.1:9093", "listeners[1].address", "already used by listeners[0].address"),
        ("listeners.1.address", "0.0.0.0:9901", "health.address", "already used by listeners[1].address"),
        ("listeners.1.address", "nowhere", "listeners[1].address", "is not an address"),
        ("listeners", [], "listeners", "needs at least one"),
        ("upstreams.0.endpoints", [], "upstreams[0].endpoints", "needs at least one"),
        ("upstreams.0.endpoints", ["127.0.0.1:0"], "upstreams[0].endpoints[0]", "port 0"),
        ("upstreams.0.endpoints", ["127.0.0.1:9093"], "upstreams[0].endpoints[0]", "in a circle"),
        ("admin.address", "127.0.0.1:1", "admin.address", "must be unix:PATH"),
        ("admin.address", f"unix:/{'x' * 108}", "admin.address", "109 bytes"),
        ("health.address", "unix:/tmp/health", "health.address", "Unix socket cannot"),
        ("listeners.0.tls.client_ca", ..., "listeners[0].tls.client_auth", "needs client_ca"),
        ("listeners.0.tls.client_ca", "/none", "listeners[0].tls.client_ca", "cannot be read"),
        ("listeners.0.tls.certificate", "/none", "listeners[0].tls.certificate", "cannot be read"),
        ("listeners.0.tls.certificate", "/etc/hostname", "listeners[0].tls.certificate", "no certificate"),
        ("upstreams.0.tls.key", ..., "upstreams[0].tls.certificate", "needs key"),
        ("upstreams.0.tls.certificate", ..., "upstreams[0].tls.key", "needs certificate"),
        ("upstreams.0.tls.ca", "/etc/hostname", "upstreams[0].tls.ca", "no certificate"),
        ("memory_pool.size", "1MiB", "memory_pool.size", "at least 2MiB are needed"),
        ("memory_pool.shares", {"kafkaa": 5}, "memory_pool.shares.kafkaa", "is not the name of a listener; there are: kafka, plain"),
        ("memory_pool.shares", {"kafka": 60, "plain": 50}, "memory_pool.shares", "guarantees 110 percent, and there are 100"),
        ("memory_pool.shares", {"kafka": 100}, "memory_pool.shares", "leaves nothing to plain"),
        ("memory_pool.shares", {"kafka": 0}, "memory_pool.shares.kafka", "must be from 1 to 100"),
        ("memory_pool.shares", {"kafka": "half"}, "memory_pool.shares.kafka", "must be a whole number"),
        ("memory_pool.shares", {"kafka": "101"}, "memory_pool.shares.kafka", "must be from 1 to 100"),
        ("memory_pool.shares", [5], "memory_pool.shares", "must be a mapping of names to values"),
        ("listeners.1.forwarding", {"responses": "whole"}, "listeners[1].forwarding.responses", "set upstreams[0].max_receive_size to at most 4MiB"),
        ("listeners.1.forwarding", {"requests": "splice"}, "listeners[1].forwarding.requests", "must be 'whole' or 'cut_through'"),
        ("tap.rules.0.listeners", ["kafkaa"], "tap.rules[0].listeners[0]", "there are: kafka, plain"),
        ("tap.rules.0.networks", ["10.0.0.1/8"], "tap.rules[0].networks[0]", "is not a network"),
        ("tap.rules.0.directions", [], "tap.rules[0].directions", "request, response or both"),
        ("tap.rules.0.apis", ["Fetch", "Fetsch"], "tap.rules[0].apis[1]", "is not a Kafka API"),
        ("tap.rules.0.blank", ["0-15", "9-8"], "tap.rules[0].blank[1]", "is not a range of bytes"),
        ("tap.rules.0.hash", ["15-20", "0-15"], "tap.rules[0].hash", "in two ranges"),
        ("tap.rules.0", {"name": "a", "min_size": "2KiB", "max_size": "1KiB"}, "tap.rules[0].min_size", "is above max_size (1KiB)"),
        ("tap.rules.0.sample_frames", 1.5, "tap.rules[0].sample_frames", "must be from 0.0 to 1.0"),
        ("tap.rules.0.max_cpu_percent", 101, "tap.rules[0].max_cpu_percent", "must be from 0.0 to 100.0"),
        ("tap.rules.0.expires", "later", "tap.rules[0].expires", "is not an instant"),
        ("tap.directory", "/etc/hostname/tap", "tap.directory", "is not a directory"),
        ("listeners.1.address", "unix:/tmp/../tmp/admin.sock", "admin.address", "already used by listeners[1].address"),
        ("tap.flush_size", "16MiB", "tap.flush_size", "must not be larger than queue_size"),
        ("tap.budget", "64MiB", "tap.budget", "must not be larger than budget"),
        *(
            ("telemetry.otlp.endpoint", value, "telemetry.otlp.endpoint", "http://host:port")
            for value in (
                "127.0.0.1:4317",
                "http://host",
                "http://host:0",
                "http://host:1/v1/metrics",
                "http://user@host:1",
                "http://host:1?a=b",
                "ftp://h:1",
            )
        ),
        ("telemetry.prometheus.address", "127.0.0.1:9901", "telemetry.prometheus.address", "already used by health.address"),
    ],
)
def test_a_broken_rule_is_named_at_its_key(data: dict[str, Any], path: str, value: object, key: str, part: str) -> None:
    found = faults(put(data, path, value))
    assert [item for item, reason in found if part in reason] == [key], found


@pytest.mark.parametrize("shares", [{}, {"kafka": 60}, {"kafka": 60, "plain": 40}, {"kafka": 99}, {"kafka": None}])
def test_shares_that_can_be_kept_are_taken(data: dict[str, Any], shares: dict[str, int | None]) -> None:
    assert faults(put(data, "memory_pool.shares", shares)) == []


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
    monkeypatch.setattr("control.configuration.rules.cpu_limit", lambda: 8)
    data["listeners"][1]["forwarding"] = {"responses": "whole"}
    assert faults(put(put(data, "upstreams.0.max_receive_size", "3MiB"), "processors", 0)) == []


def test_requests_that_are_cut_through_may_be_larger_than_the_pool(data: dict[str, Any]) -> None:
    data["listeners"][0]["max_receive_size"] = "1GiB"
    assert [key for key, _ in faults(data)] == ["memory_pool.size"]
    data["listeners"][0]["forwarding"] = {"requests": "cut_through"}
    assert faults(data) == []


def test_a_wrong_way_of_forwarding_hides_no_other_fault(data: dict[str, Any]) -> None:
    data["listeners"][0]["forwarding"] = {"requests": "splice", "responses": 5}
    found = sorted(key for key, _ in faults(put(data, "memory_pool.size", "1MiB")))
    assert found == ["listeners[0].forwarding.requests", "listeners[0].forwarding.responses", "memory_pool.size"]


def test_the_key_of_another_certificate_is_named(data: dict[str, Any], made: Certificates) -> None:
    found = faults(put(data, "listeners.0.tls.key", str(made.client_key)))
    assert found == [("listeners[0].tls.key", "is not the key of the certificate server.crt")]


def test_rules_of_the_same_name_are_named(data: dict[str, Any]) -> None:
    found = faults(put(data, "tap.rules", [{"name": "a"}, {"name": "a"}]))
    assert [key for key, _ in found] == ["tap.rules[1].name"]


def test_zero_processors_never_make_the_default_pool_too_small(data: dict[str, Any]) -> None:
    assert faults(put(data, "processors", 0)) == []


def warnings(data: dict[str, Any], folder: pathlib.Path) -> list[tuple[str, str]]:
    (folder / "framegate.yaml").write_text(json.dumps(data))
    found = examine(folder / "framegate.yaml")
    assert found.faults == []
    return [(item.key, item.reason) for item in found.warnings]


@pytest.mark.parametrize(
    ("path", "value", "key", "part"),
    [
        ("upstreams.1", {"name": "spare", "endpoints": ["127.0.0.1:1"]}, "upstreams[1].name", "no listener names this upstream"),
        ("listeners.0.tls.client_auth", "none", "listeners[0].tls.client_ca", "client_auth is none"),
        ("listeners.0.tls.client_auth", ..., "listeners[0].tls.client_ca", "client_auth is none"),
        ("tap.rules.0", {"name": "a", "capture": "hash", "max_frame_bytes": 5}, "tap.rules[0].max_frame_bytes", "capture is hash"),
        ("tap.rules.0", {"name": "a", "capture": "lengths", "blank": ["0-"]}, "tap.rules[0].blank", "capture is lengths"),
        ("tap.rules.0", {"name": "a", "on_full": "mute", "max_loss_percent": 5}, "tap.rules[0].max_loss_percent", "loses nothing"),
    ],
)
def test_a_key_that_has_no_effect_is_a_warning(data: dict[str, Any], tmp_path: pathlib.Path, path: str, value: object, key: str, part: str) -> None:
    data["tap"]["budget"] = "128MiB"
    assert warnings(data, tmp_path) == []
    found = warnings(put(data, path, value), tmp_path)
    assert [item for item, reason in found if "has no effect" in reason and part in reason] == [key]
    assert len(found) == 1


@pytest.mark.parametrize(
    ("rule", "key", "part"),
    [
        ({"apis": ["Fetch"]}, "apis", "no listener of the rule has protocol kafka"),
        ({"clients": ["a*"], "listeners": ["plain"]}, "clients", "no listener of the rule has protocol kafka"),
        ({"expires": "2001-01-01T00:00:00Z"}, "expires", "has passed"),
    ],
)
def test_a_rule_that_matches_nothing_is_a_warning(data: dict[str, Any], tmp_path: pathlib.Path, rule: dict[str, Any], key: str, part: str) -> None:
    data["tap"]["budget"] = "128MiB"
    ((found, reason),) = warnings(put(data, "tap.rules.0", {"name": "a", **rule}), tmp_path)
    assert (found, part in reason) == (f"tap.rules[0].{key}", True), reason
    data["listeners"][1]["protocol"] = "kafka"
    rule["expires"] = "1h"
    assert warnings(put(data, "tap.rules.0", {"name": "a", **rule}), tmp_path) == []


def test_a_share_of_the_only_listener_has_no_effect(data: dict[str, Any], tmp_path: pathlib.Path) -> None:
    data["tap"]["budget"] = "128MiB"
    data["memory_pool"]["shares"] = {"kafka": 50}
    assert warnings(data, tmp_path) == []
    del data["listeners"][1]
    assert warnings(data, tmp_path) == [("memory_pool.shares", "has no effect: there is one listener, and the whole pool is its own")]


def test_a_wildcard_of_one_family_leaves_the_other_alone(data: dict[str, Any]) -> None:
    data["listeners"][0]["address"] = "[::1]:9093"
    assert faults(put(data, "listeners.1.address", "0.0.0.0:9093")) == []


def test_an_upstream_that_is_our_own_wildcard_is_a_circle(data: dict[str, Any]) -> None:
    data["listeners"][0]["address"] = "0.0.0.0:9093"
    assert [key for key, _ in faults(put(data, "upstreams.0.endpoints", ["127.0.0.1:9093"]))] == ["upstreams[0].endpoints[0]"]


def test_a_value_that_is_already_faulty_breaks_no_second_rule(data: dict[str, Any]) -> None:
    assert [key for key, _ in faults(put(data, "memory_pool.size", "lots"))] == ["memory_pool.size"]
