"""Names, addresses, upstreams, certificates and telemetry: what must hold between keys."""

import os
import pathlib
from typing import Any

import pytest

from tests.fakes.configuration import faults, put, warnings


def test_a_whole_configuration_has_no_fault(data: dict[str, Any]) -> None:
    assert faults(data) == []


@pytest.mark.parametrize(
    ("path", "value", "key", "part"),
    [
        ("node", "edge/1", "node", "letters, digits"),
        ("listeners.1.name", "kafka", "listeners[1].name", "already used by listeners[0].name"),
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
        ("listeners.1.timeouts", {"failed_authentication": "11s"}, "listeners[1].timeouts.failed_authentication", "is longer than handshake, 10s"),
        ("listeners.1.timeouts", {"failed_authentication": "11m"}, "listeners[1].timeouts.failed_authentication", "must be from 0"),
        ("listeners.0.tls.client_ca", ..., "listeners[0].tls.client_auth", "needs client_ca"),
        ("listeners.0.tls.client_ca", "/none", "listeners[0].tls.client_ca", "cannot be read"),
        ("listeners.0.tls.certificate", "/none", "listeners[0].tls.certificate", "cannot be read"),
        ("listeners.0.tls.certificate", "/etc/hostname", "listeners[0].tls.certificate", "no certificate"),
        ("upstreams.0.tls.key", ..., "upstreams[0].tls.certificate", "needs key"),
        ("upstreams.0.tls.certificate", ..., "upstreams[0].tls.key", "needs certificate"),
        ("upstreams.0.tls.ca", "/etc/hostname", "upstreams[0].tls.ca", "no certificate"),
        ("tap.directory", "/etc/hostname/tap", "tap.directory", "is not a directory"),
        ("listeners.1.address", "unix:FOLDER/../FOLDER/admin.sock", "admin.address", "already used by listeners[1].address"),
        *(
            ("telemetry.otlp.endpoint", value, "telemetry.otlp.endpoint", "http://host:port")
            for value in (
                "127.0.0.1:4317",
                "http://",
                "http://host:0",
                "http://user@host:1",
                "http://host:1/a b",
                "http://host:1?a=b",
                "ftp://h:1",
            )
        ),
        ("telemetry.otlp", {"endpoint": "http://h:1/x", "protocol": "grpc"}, "telemetry.otlp.endpoint", "has a path"),
        ("telemetry.prometheus.address", "127.0.0.1:9901", "telemetry.prometheus.address", "already used by health.address"),
    ],
)
def test_a_broken_rule_is_named_at_its_key(data: dict[str, Any], path: str, value: object, key: str, part: str) -> None:
    folder = data["admin"]["address"].removeprefix("unix:").removesuffix("/admin.sock")
    if isinstance(value, str):
        value = value.replace("../FOLDER", f"../{os.path.basename(folder)}").replace("FOLDER", folder)
    found = faults(put(data, path, value))
    assert [item for item, reason in found if part in reason] == [key], found


@pytest.mark.parametrize(
    ("path", "value", "key", "part"),
    [
        ("upstreams.1", {"name": "spare", "endpoints": ["127.0.0.1:1"]}, "upstreams[1].name", "no listener names this upstream"),
        ("telemetry.otlp.signals", [], "telemetry.otlp.signals", "nothing is exported over OTLP"),
        ("telemetry.otlp.signals", ["metrics", "logs", "metrics"], "telemetry.otlp.signals", "names one twice"),
        ("listeners.0.tls.client_auth", "none", "listeners[0].tls.client_ca", "client_auth is none"),
        ("listeners.0.tls.client_auth", ..., "listeners[0].tls.client_ca", "client_auth is none"),
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


@pytest.mark.parametrize(
    ("every", "fault"),
    [
        ("0", ""),
        ("1ms", "must be at least 10s, or 0: never"),
        ("9999ms", "must be at least 10s, or 0: never"),
        ("10s", ""),
        ("10001ms", ""),
        ("1d", ""),
        ("86400001ms", "must be from 0 to 1d"),
    ],
)
def test_rows_of_connections_that_stay_open_come_each_ten_seconds_at_most_or_never(data: dict[str, Any], every: str, fault: str) -> None:
    assert faults({**data, "log": {"access": {"every": every}}}) == ([("log.access.every", fault)] if fault else [])


@pytest.mark.parametrize(("value", "good"), [(True, True), (False, True), (1, False), ("yes", False), ("true", False), (None, True)])
def test_a_switch_is_true_or_false(data: dict[str, Any], value: object, good: bool) -> None:
    assert faults({**data, "log": {"access": {"open": value}}}) == ([] if good else [("log.access.open", "must be true or false")])


def test_several_endpoints_behind_a_listener_for_kafka_are_a_warning(data: dict[str, Any], tmp_path: pathlib.Path) -> None:
    def warned(protocol: str, *endpoints: str) -> list[str]:
        changed = put(put(data, "listeners.0.protocol", protocol), "upstreams.0.endpoints", list(endpoints))
        return [key for key, reason in warnings(changed, tmp_path) if "brokers of one cluster" in reason]

    assert warned("kafka", "10.0.0.1:9092", "10.0.0.2:9092") == ["upstreams[0].endpoints"]
    assert warned("kafka", "10.0.0.1:9092") == []
    assert warned("framed", "10.0.0.1:9092", "10.0.0.2:9092") == []
