"""Clusters: how a listener tells clients where each broker is, and what must fit together for that."""

import pathlib
from typing import Any

import pytest

from framegate.control.configuration.broker_rules import advertised_host, broker_host, port_range, port_ranges
from framegate.proxy.config.model import BrokersConfig, ListenerConfig
from tests.fakes.configuration import faults, misnamed, put, warnings

PORTS = {"ports": "9100-9102"}
HOSTS = {"hosts": "broker-{id}.localhost", "advertise": "localhost"}


@pytest.fixture
def clustered(data: dict[str, Any]) -> dict[str, Any]:
    """``plain`` is in front of a cluster with ports, ``kafka`` with hosts."""
    data["upstreams"].append({"name": "cluster", "kafka": {"bootstrap": ["127.0.0.1:19092", "kafka-2.internal:19092"]}})
    data["listeners"][0].update(upstream="cluster", protocol="kafka", brokers=dict(HOSTS))
    data["listeners"][1].update(upstream="cluster", protocol="kafka", address="127.0.0.1:9099", brokers=dict(PORTS))
    data["listeners"].append({"name": "third", "address": "127.0.0.1:0", "upstream": "brokers", "max_receive_size": "1MiB"})
    return data


def test_both_ways_to_the_brokers_of_a_cluster_are_good(clustered: dict[str, Any]) -> None:
    assert faults(clustered) == []
    for changed in ({"ports": "9100", "by": "order"}, {**PORTS, "advertise": "kafka.example.org"}, {**PORTS, "advertise": "::1"}):
        assert faults(put(clustered, "listeners.1.brokers", changed)) == [], changed
    named = put(put(clustered, "listeners.1.address", "localhost:9099"), "listeners.0.brokers.advertise_port", 443)
    assert faults(named) == [], "a name is advertised as it is written"


def test_a_broken_rule_of_a_cluster_is_named_at_its_key(clustered: dict[str, Any]) -> None:
    ports, hosts, upstream = "listeners.1.brokers", "listeners.0.brokers", "upstreams.1"
    at, where = "listeners[1].brokers", "listeners[0].brokers"
    other = {**clustered["listeners"][1], "name": "x", "address": "0.0.0.0:9098", "brokers": {"ports": "9102-9103", "advertise": "h"}}
    cases = [
        (f"{upstream}.endpoints", ["10.0.0.1:9092"], "upstreams[1].kafka", "excludes endpoints"),
        (f"{upstream}.kafka.bootstrap", [], "upstreams[1].kafka.bootstrap", "needs at least one"),
        (f"{upstream}.kafka.bootstrap.0", "unix:/run/kafka", "upstreams[1].kafka.bootstrap[0]", "Unix socket cannot"),
        (f"{upstream}.kafka.bootstrap.0", "127.0.0.1:0", "upstreams[1].kafka.bootstrap[0]", "port 0"),
        (f"{upstream}.kafka.bootstrap.0", "127.0.0.1:9093", "upstreams[1].kafka.bootstrap[0]", "in a circle"),
        (f"{upstream}.kafka.bootstrap.0", "127.0.0.1:9102", "upstreams[1].kafka.bootstrap[0]", "in a circle"),
        (f"{upstream}.send_proxy_protocol", "v2", "upstreams[1].send_proxy_protocol", "brokers take no such header"),
        (f"{upstream}.kafka", {}, "upstreams[1].kafka.bootstrap", "is required"),
        (f"{upstream}.kafka", 5, "upstreams[1].kafka", "must be a mapping"),
        (ports, ..., at, "is required: cluster is a cluster"),
        ("listeners.2.brokers", PORTS, "listeners[2].brokers", "needs an upstream that is a cluster, and brokers has no"),
        ("listeners.1.protocol", ..., "listeners[1].protocol", "must be kafka: with brokers"),
        ("listeners.1.handler", "framegate.proxy.handler.echo:echo", "listeners[1].handler", "cannot be used with brokers"),
        (ports, {}, at, "needs ports, one for each broker, or hosts"),
        (ports, {**PORTS, **HOSTS}, at, "and not both"),
        ("listeners.1.address", "unix:/tmp/cluster.sock", at, "needs a TCP address"),
        ("listeners.1.address", "127.0.0.1:0", "listeners[1].address", "needs a port of its own, not 0"),
        *((f"{ports}.ports", text, f"{at}.ports", "write FIRST-LAST") for text in ("9100-", "-9100", "a-b", "9100,9101", "9100 - 9101", "٣-٤")),
        (f"{ports}.ports", "9102-9100", f"{at}.ports", "ends before it begins"),
        *((f"{ports}.ports", text, f"{at}.ports", "from 1 to 65535") for text in ("0-9", "0", "65500-65536")),
        (f"{ports}.ports", "9090-9093", f"{at}.ports", "has the port 9093, which is already used by listeners[0].address"),
        (f"{ports}.ports", "9099-9100", f"{at}.ports", "has the port 9099, which is already used by listeners[1].address"),
        (f"{ports}.ports", "9900-9902", f"{at}.ports", "has the port 9901, which is already used by health.address"),
        ("listeners.2", other, "listeners[2].brokers.ports", "has the port 9102, which is already used by listeners[1].brokers"),
        ("listeners.1.address", "10.0.0.1:9099", f"{at}.advertise", "is required: clients may not reach 10.0.0.1:9099"),
        ("listeners.1.address", "0.0.0.0:9099", f"{at}.advertise", "is required"),
        *((f"{ports}.advertise", text, f"{at}.advertise", "is a wildcard") for text in ("0.0.0.0", "::")),
        *((f"{ports}.advertise", text, f"{at}.advertise", "is no host") for text in ("h:9092", "a b", "http://h", "[::1]", "-")),
        (f"{hosts}.advertise", ..., f"{where}.advertise", "is required with hosts"),
        (f"{hosts}.advertise", "10.0.0.1", f"{where}.advertise", "must be a name"),
        *((f"{hosts}.advertise", text, f"{where}.advertise", "also the name of a broker") for text in ("broker-7.localhost", "BROKER-0.localhost.")),
        *((f"{hosts}.hosts", text, f"{where}.hosts", "needs {id} once") for text in ("broker.localhost", "{id}.{id}.localhost")),
        *((f"{hosts}.hosts", text, f"{where}.hosts", "is no host name") for text in ("b {id}.x", "*.{id}.x", f"{'a' * 60}{{id}}.x", "a.{id}")),
        ("listeners.0.tls", ..., f"{where}.hosts", "needs tls"),
        (f"{hosts}.by", "name", f"{where}.by", "must be 'node_id' or 'order'"),
        (f"{hosts}.advertise_port", 65536, f"{where}.advertise_port", "must be from 0 to 65535"),
    ]  # fmt: skip
    assert misnamed(clustered, cases) == []


def test_a_key_of_a_cluster_that_has_no_effect_or_a_certificate_that_lacks_a_name_is_a_warning(
    clustered: dict[str, Any], tmp_path: pathlib.Path
) -> None:
    del clustered["tap"]
    clustered["listeners"][0]["brokers"]["hosts"] = "{id}.example.org"
    found = [(key, reason) for key, reason in warnings(clustered, tmp_path) if "brokers" in key]
    assert [(key, reason.partition(",")[0]) for key, reason in found] == [("listeners[0].brokers.hosts", "is no name of server.crt")]
    clustered["listeners"][0]["brokers"]["by"] = "order"
    clustered["listeners"][1]["brokers"]["advertise_port"] = 9
    found = [(key, reason) for key, reason in warnings(clustered, tmp_path) if "has no effect" in reason]
    assert [key for key, _ in found] == ["listeners[0].brokers.by", "listeners[1].brokers.advertise_port"]


def listener(address: str, **brokers: Any) -> ListenerConfig:
    return ListenerConfig(name="a", address=address, upstream="u", protocol="kafka", brokers=BrokersConfig(**brokers))


def test_the_advertised_host_is_the_configured_one_a_name_or_loopback() -> None:
    addresses = {"127.0.0.1:1": "127.0.0.1", "127.9.0.1:1": "127.9.0.1", "[::1]:1": "::1", "kafka:1": "kafka", "10.0.0.1:1": "", "[::]:1": ""}
    assert {text: advertised_host(listener(text, ports="2")) for text in addresses} == addresses
    assert advertised_host(listener("0.0.0.0:1", ports="2", advertise="edge")) == "edge"
    assert broker_host(BrokersConfig(hosts="b{id}.x"), 12) == "b12.x"


def test_a_range_includes_both_ends() -> None:
    assert list(port_range("9100-9102")) == [9100, 9101, 9102]
    assert list(port_range("65535")) == [65535]
    made = [(("listeners", number), item) for number, item in enumerate((listener("h:1", ports="2-3"), listener("h:1", ports="x")))]
    assert [(path, str(address), ports) for path, address, ports in port_ranges(made)] == [(("listeners", 0, "brokers", "ports"), "h:1", range(2, 4))]
