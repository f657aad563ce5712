"""Which broker a client reaches by its server name, and what control hears of brokers that answers name."""

from typing import Any

from tests.fakes import cluster
from tests.fakes.cases import each_of
from tests.fakes.cluster import METADATA
from tests.fakes.kafka_frames import request
from tests.fakes.world import World


@each_of(
    ("hosts", "host", "node"),
    [
        ("broker-{id}.example.org", "broker-5.example.org", 5),
        ("Broker-{id}.Example.Org.", "broker-0.example.org", 0),
        ("broker-{id}.example.org", "broker-2147483647.example.org", 2147483647),
        ("broker-{id}.example.org", "broker-2147483648.example.org", -1),
        ("broker-{id}.example.org", "broker-05.example.org", -1),
        ("broker-{id}.example.org", "broker--1.example.org", -1),
        ("broker-{id}.example.org", "broker-.example.org", -1),
        ("broker-{id}.example.org", "broker-²5.example.org", -1),
        ("broker-{id}.example.org", "broker-5.example.com", -1),
        ("broker-{id}.example.org", "kafka.example.org", -1),
        ("broker-{id}.example.org", "", -1),
        ("{id}", "7", 7),
        ("{id}a", "a", -1),
        ("", "broker-5.example.org", -1),
        ("", "", -1),
    ],
)
def test_a_server_name_chooses_the_broker_with_that_number(hosts: str, host: str, node: int) -> None:
    assert cluster.brokers(hosts).broker_of(host) == node


def test_brokers_that_differ_from_those_in_force_are_reported_once_and_at_most_once_a_second(make: Any) -> None:
    route = cluster.brokers()
    reports: list[Any] = []
    route.cluster.report = lambda upstream, seen: reports.append((upstream, [each.node for each in seen]))
    world: World = make("kafka", brokers=route)
    client, upstream, _ = world.pair()

    def pass_metadata(*nodes: int, version: int = 12) -> None:
        asked, given = request(METADATA, version, 7), cluster.metadata(nodes=nodes, version=version)
        client.sendall(asked)
        world.read(upstream, len(asked))
        upstream.sendall(given)
        world.read(client, 4)
        world.poll()
        client.recv(1 << 16)

    pass_metadata(1, 2, 3)
    assert reports == [], "those in force"
    pass_metadata(1, 2, version=0)
    assert reports == [], "a version without racks"
    pass_metadata(2, 1)
    pass_metadata(2, 1)
    pass_metadata(1)
    assert reports == [("u", [1, 2])], "within a second"
    world.pass_time(1)
    pass_metadata(1)
    pass_metadata(1)
    assert reports == [("u", [1, 2]), ("u", [1])]
    world.pass_time(5)
    pass_metadata(1)
    assert len(reports) == 2, "the same as in the last report"
    route.cluster.put([])
    world.pass_time(5)
    pass_metadata(1, 2)
    assert reports[2:] == [("u", [1, 2])]
