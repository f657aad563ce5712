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
        ("tap.rules.0.listeners", ["kafkaa"], "tap.rules[0].listeners[0]", "there are: kafka, plain"),
        ("tap.rules.0.networks", ["10.0.0.1/8"], "tap.rules[0].networks[0]", "is not a network"),
        ("tap.rules.0.directions", [], "tap.rules[0].directions", "request, response or both"),
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
    ],
)
def test_a_key_that_has_no_effect_is_a_warning(data: dict[str, Any], tmp_path: pathlib.Path, path: str, value: object, key: str, part: str) -> None:
    data["tap"]["budget"] = "128MiB"
    assert warnings(data, tmp_path) == []
    found = warnings(put(data, path, value), tmp_path)
    assert [item for item, reason in found if "has no effect" in reason and part in reason] == [key]
    assert len(found) == 1


def test_a_wildcard_of_one_family_leaves_the_other_alone(data: dict[str, Any]) -> None:
    data["listeners"][0]["address"] = "[::1]:9093"
    assert faults(put(data, "listeners.1.address", "0.0.0.0:9093")) == []


def test_an_upstream_that_is_our_own_wildcard_is_a_circle(data: dict[str, Any]) -> None:
    data["listeners"][0]["address"] = "0.0.0.0:9093"
    assert [key for key, _ in faults(put(data, "upstreams.0.endpoints", ["127.0.0.1:9093"]))] == ["upstreams[0].endpoints[0]"]


def test_a_value_that_is_already_faulty_breaks_no_second_rule(data: dict[str, Any]) -> None:
    assert [key for key, _ in faults(put(data, "memory_pool.size", "lots"))] == ["memory_pool.size"]
