"""Endpoints and brokers from control's rows, and their settings: what is in force after which change, and what cannot be."""

import dataclasses
import json
import socket
from typing import Any

import pytest

from framegate.proxy.auth.server import SaslServerAuthenticators
from framegate.proxy.config.model import (
    BrokersConfig,
    KafkaCluster,
    KafkaRules,
    ListenerConfig,
    ListenerTls,
    ProxyConfig,
    UpstreamConfig,
    UpstreamTls,
    to_wire,
)
from framegate.proxy.config.sasl import ListenerSasl
from framegate.proxy.errors import ConfigError
from framegate.proxy.kafka.addresses import SeenBroker
from framegate.proxy.network.memory_pool import MemoryPool
from framegate.proxy.server.endpoints import endpoints_of, literal, read_cluster, server_names
from framegate.proxy.server.in_force import ADDRESSES_HEAD
from framegate.proxy.server.messages import AdvertisedRow, BrokerRow, ClusterRow
from framegate.proxy.server.settings import ChangeError, Settings
from tests.fakes.cases import each_of
from tests.fakes.changes import prepare
from tests.fakes.tls import TlsWorld

INET = int(socket.AF_INET)
CLUSTER = UpstreamConfig(name="c", kafka=KafkaCluster(bootstrap=("127.0.0.1:9092", "boot.example:9093")))
BOOTSTRAP: list[list[str | int]] = [["127.0.0.1", INET, "127.0.0.1", 9092], ["boot.example", INET, "127.0.0.2", 9093]]
CONFIG = ProxyConfig(
    node="n",
    listeners=(
        ListenerConfig(name="p", address="127.0.0.1:9092", upstream="c", protocol="kafka", brokers=BrokersConfig(ports="9100-9199")),
        ListenerConfig(
            name="h", address="0.0.0.0:0", upstream="c", protocol="kafka", brokers=BrokersConfig(hosts="b{id}.example", advertise="h.example")
        ),
        ListenerConfig(name="o", address="0.0.0.0:0", upstream="u"),
    ),
    upstreams=(CLUSTER, UpstreamConfig(name="u", endpoints=("127.0.0.1:1",))),
)


def broker(node: int, host: str = "", address: str = "127.0.0.1", rack: str = "") -> BrokerRow:
    return BrokerRow(id=node, rack=rack, addresses=[[host or f"k{node}", INET, address, 9000 + node]])


def told(*nodes: int, host: str = "localhost", port: int = 9100) -> AdvertisedRow:
    return AdvertisedRow(bootstrap=[host, 9092], brokers=[[node, host, port + node] for node in nodes])


def row(*nodes: int, **changes: Any) -> ClusterRow:
    return ClusterRow(
        **{"brokers": [broker(node) for node in nodes], "listeners": {"p": told(*nodes), "h": told(*nodes, host="h.example")}, **changes}
    )


def settings(config: ProxyConfig = CONFIG, cluster: ClusterRow | None = None, **message: Any) -> Settings:
    start: Any = {"config": to_wire(config), "endpoints": {"c": BOOTSTRAP}, "brokers": {"c": cluster or row(1, 2)}, **message}
    return Settings(json.loads(json.dumps(start)), MemoryPool(1 << 28, lambda: 0))


def change(made: Settings, **asked: Any) -> None:
    prepare(made, 1, json.loads(json.dumps(asked)))
    assert made.commit(1)


def endpoints(made: Settings) -> list[tuple[int, str]]:
    return [(int(each.broker), each.text) for each in made.in_force.upstreams["c"].endpoints]


def port_told(made: Settings, node: int) -> int:
    route = made.routes["p"].brokers
    assert route is not None
    return int.from_bytes(route.rewriter.advertised.encoded(node, False)[-4:], "big")


BOOT = [(-1, "127.0.0.1:9092"), (-1, "127.0.0.2:9093")]


def test_an_upstream_has_the_endpoints_of_its_bootstrap_and_of_each_broker() -> None:
    made = settings()
    assert endpoints(made) == [*BOOT, (1, "127.0.0.1:9001"), (2, "127.0.0.1:9002")]
    assert [attempt.endpoint.text for node in (1, 2, 5) if (attempt := made.in_force.upstreams["c"].pick(None, 0, node)) is not None] == [
        "127.0.0.1:9001",
        "127.0.0.1:9002",
    ]
    assert made.in_force.clusters["c"].brokers == {node: SeenBroker(node, f"k{node}", 9000 + node, None) for node in (1, 2)}
    assert [port_told(made, node) for node in (1, 2, 3)] == [9101, 9102, 9092]
    assert made.routes["o"].brokers is None
    for name, first in (("p", ADDRESSES_HEAD), ("o", 0)):
        (options,) = made.routes[name].upstream_options.values()
        assert (int(options.first_piece), options.keeps_first) == (first, first != 0)


def test_a_change_of_brokers_keeps_the_bootstrap_and_the_reverse() -> None:
    made = settings()
    kept = made.in_force.upstreams["c"].endpoints[3]
    change(made, brokers={"c": row(2, 3)})
    assert endpoints(made) == [*BOOT, (2, "127.0.0.1:9002"), (3, "127.0.0.1:9003")]
    assert made.in_force.upstreams["c"].endpoints[2] is kept, "with its state"
    assert [port_told(made, node) for node in (1, 2, 3)] == [9092, 9102, 9103]
    change(made, endpoints={"c": BOOTSTRAP[:1]})
    assert endpoints(made) == [BOOT[0], (2, "127.0.0.1:9002"), (3, "127.0.0.1:9003")]
    change(made, endpoints={"c": BOOTSTRAP[1:]}, brokers={"c": row()})
    assert endpoints(made) == BOOT[1:]
    assert made.in_force.clusters["c"].brokers == {}
    prepare(made, 1, {"brokers": {"c": row(7)}})
    made.abort(1)
    assert endpoints(made) == BOOT[1:]


def test_brokers_that_appear_later_have_channel_options_for_their_own_names() -> None:
    for server_name, names in ((None, {"127.0.0.1", "boot.example", "k1", "k2"}), ("all.example", {"all.example"})):
        upstream = dataclasses.replace(CLUSTER, tls=UpstreamTls(server_name=server_name))
        made = settings(dataclasses.replace(CONFIG, upstreams=(upstream, CONFIG.upstreams[1])))
        route = made.routes["p"]
        assert set(route.upstream_options) == names
        assert server_names(upstream) == names - {"k1", "k2"}
        kept = route.upstream_options[min(names)]
        change(made, brokers={"c": row(2, 3)})
        after = names - {"k1"} | ({"k3"} if server_name is None else set())
        assert set(route.upstream_options) == set(made.routes["h"].upstream_options) == after
        assert route.upstream_options[min(names)] is kept
        for name, options in route.upstream_options.items():
            assert options.tls is not None
            assert options.tls.server_name == name
        assert all(endpoint.server_name in after for endpoint in made.in_force.upstreams["c"].endpoints)


def test_a_listener_with_hosts_reads_the_server_name_and_one_with_ports_does_not(tls_world: TlsWorld) -> None:
    certificate, key = tls_world.server
    listeners = tuple(dataclasses.replace(item, tls=ListenerTls(certificate=certificate, key=key)) for item in CONFIG.listeners)
    made = settings(dataclasses.replace(CONFIG, listeners=listeners))
    stores = {name: None if route.options.tls is None else route.options.tls.store for name, route in made.routes.items()}
    assert {name: store is not None and store.reads_hello for name, store in stores.items()} == {"p": False, "h": True, "o": False}
    (narrow,) = {route.brokers.narrow for route in made.routes.values() if route.brokers is not None}
    assert narrow


@each_of(
    ("asked", "reason"),
    [
        ({"x": row()}, "no upstream x"),
        ({"u": row()}, "the upstream u has brokers, and is no cluster"),
        ({"c": {**row(1), "listeners": {"p": told(1)}}}, "the brokers of c are told by p, and not by h, p"),
        ({"c": {**row(1), "listeners": {}}}, "are told by no listener"),
        ({"c": {**row(1), "listeners": {**row(1)["listeners"], "o": told()}}}, "are told by h, o, p, and not by h, p"),
        ({"c": {**row(1), "brokers": [broker(1), broker(1)]}}, "the brokers of c: the id 1 is no number of a broker, or is there twice"),
        ({"c": {**row(), "brokers": [broker(-1)]}}, "the id -1 is no number"),
        ({"c": {**row(), "brokers": [broker(1 << 31)]}}, "the id 2147483648 is no number"),
        ({"c": {**row(1), "brokers": [{**broker(1), "addresses": [["k", INET, "127.0.0.1"]]}]}}, "1 has the address"),
        ({"c": {**row(1), "brokers": [{**broker(1), "addresses": [["", 1, "/run/k.sock", 1]]}]}}, "1 has the address"),
        ({"c": {**row(1), "brokers": [{**broker(1), "addresses": [["k", INET, "127.0.0.1", 0]]}]}}, "1 has the host 'k' and the port 0"),
        ({"c": {**row(1), "brokers": [{**broker(1), "addresses": [["k", INET, "127.0.0.1", 65536]]}]}}, "and the port 65536"),
        ({"c": {**row(1), "brokers": [{**broker(1), "addresses": [["", INET, "127.0.0.1", 1]]}]}}, "1 has the host ''"),
        ({"c": row(1, listeners={"p": told(1, 2), "h": told()})}, "clients are told an address of 2, which is none of them"),
        ({"c": row(1, listeners={"p": told(1, 1), "h": told()})}, "the id 1 is no number of a broker, or is there twice"),
        ({"c": row(1, listeners={"p": told(1, port=70_000), "h": told()})}, "1 has the host 'localhost' and the port 70001"),
        ({"c": row(1, listeners={"p": told(1, host="x" * 256), "h": told()})}, "which is no address"),
        ({"c": row(1, listeners={"p": {"bootstrap": ["localhost"], "brokers": []}, "h": told()})}, "is not host and port"),
        ({"c": row(1, listeners={"p": {"bootstrap": ["localhost", 1], "brokers": [[1, "h"]]}, "h": told()})}, "is not host and port"),
        ({"c": row(1, listeners={"p": {"bootstrap": ["localhost", "1"], "brokers": []}, "h": told()})}, "the bootstrap has the host"),
        ({"c": {"brokers": []}}, "a change that cannot be read: change.brokers.c.listeners is missing"),
    ],
)
def test_brokers_that_cannot_be_are_refused_in_words_and_those_before_stay(asked: Any, reason: str) -> None:
    made = settings()
    with pytest.raises(ChangeError) as caught:
        change(made, brokers=asked)
    assert reason in str(caught.value)
    assert len(endpoints(made)) == 4
    change(made, brokers={"c": row(1)})


def test_a_processor_does_not_start_without_the_brokers_of_a_cluster() -> None:
    for brokers in ({}, None):
        with pytest.raises(ConfigError, match="the brokers of c were not sent"):
            settings(brokers=brokers)


def test_a_broker_without_an_address_is_known_and_has_no_endpoint() -> None:
    made = read_cluster(CLUSTER, ["p"], ClusterRow(brokers=[BrokerRow(id=4, rack="r", addresses=[])], listeners={"p": told(4)}), {})
    assert (made.endpoints, made.brokers) == ([], [SeenBroker(4, "", 0, "r")])


def test_endpoints_of_the_configuration_are_numbers_or_come_with_their_addresses() -> None:
    upstream = UpstreamConfig(name="u", endpoints=("127.0.0.1:1", "[::1]:2", "unix:/run/u.sock", "name:3"))
    rows = [literal(endpoint) for endpoint in upstream.endpoints[:3]] + [["name", INET, "127.0.0.9", 3]]
    assert [each.text for each in endpoints_of(upstream, rows, {})] == ["127.0.0.1:1", "[::1]:2", "unix:/run/u.sock", "127.0.0.9:3"]
    with pytest.raises(ConfigError, match="the endpoint name:3 came without an address"):
        literal("name:3")
    with pytest.raises(ConfigError, match="the upstream u has no endpoint with the host 'other'"):
        endpoints_of(upstream, [["other", INET, "127.0.0.1", 1]], {})


def test_versions_that_are_not_known_pass_in_the_answer_before_authentication_as_in_those_of_brokers() -> None:
    sasl = ListenerSasl(mechanisms=("PLAIN",), users="/users")
    for kafka, narrows in ((None, True), (KafkaRules(), True), (KafkaRules(unknown_versions="pass"), False)):
        listeners = (dataclasses.replace(CONFIG.listeners[0], sasl=sasl, kafka=kafka), *CONFIG.listeners[1:])
        route = settings(dataclasses.replace(CONFIG, listeners=listeners)).routes["p"]
        authenticators = route.options.authenticators
        assert isinstance(authenticators, SaslServerAuthenticators)
        assert route.brokers is not None
        assert (authenticators._settings.narrows, route.brokers.narrow) == (narrows, narrows)
