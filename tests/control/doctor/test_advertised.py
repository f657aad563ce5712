"""The findings about the addresses in Metadata."""

import socket
from typing import Any

from framegate.control.accept.broker_list import Broker
from framegate.control.doctor.advertised import finding
from framegate.proxy.config.model import BrokersConfig, KafkaCluster, ListenerConfig, ProxyConfig, UpstreamConfig

EDGE = Broker(1, "edge", 9093)


def test_brokers_of_one_cluster_behind_one_listener_are_the_wrong_ones_for_clients() -> None:
    def judged(brokers: list[Broker], *endpoints: str, address: str = "0.0.0.0:9093") -> tuple[str, str]:
        config = ProxyConfig(
            node="n",
            listeners=(
                ListenerConfig(name="a", address=address, upstream="up", protocol="kafka"),
                ListenerConfig(name="b", address="0.0.0.0:9094", upstream="up", protocol="kafka"),
                ListenerConfig(name="c", address="0.0.0.0:9095", upstream="up"),
            ),
            upstreams=(UpstreamConfig(name="up", endpoints=endpoints),),
        )
        wires = [["broker", socket.AF_INET, *endpoint.split(":")] for endpoint in endpoints]
        found = finding("up, x", config, config.upstreams[0], wires, brokers)
        return found.level, found.found

    other = Broker(2, "edge", 9094)
    assert judged([EDGE, other], "b1:9092")[0] == "ok", "one listener leads to each"
    assert judged([EDGE, other], "b1:9092", "b2:9092") == (
        "warning",
        "its 2 addresses are taken in turn, and Metadata names 2 brokers: clients meet the wrong one",
    )
    assert judged([EDGE], "b1:9092", "b2:9092")[0] == "ok", "two addresses of one broker"
    assert judged([EDGE, Broker(2, "edge", 9095)], "b1:9092")[0] == "warning", "that listener does not speak Kafka"
    assert judged([EDGE, Broker(2, "b2", 9094)], "b1:9092", "b2:9094")[0] == "warning", "a listener has that port, and so has the broker itself"
    assert judged([EDGE], "b1:9092", address="unix:/s")[0] == "warning"
    five = [Broker(number, f"b{number}", 1) for number in range(5)]
    assert judged(five, "b1:9092")[1] == "Metadata sends clients to b0:1, b1:1, b2:1 and 2 more, which is no listener here: they walk past framegate"


def test_a_cluster_needs_nothing_of_its_brokers_but_ports_enough_here() -> None:
    brokers = [Broker(node, f"b{node}", 9092) for node in (0, 2, 5)]

    def judged(**given: Any) -> tuple[str, str]:
        listener = ListenerConfig(name="a", address="127.0.0.1:9093", upstream="up", protocol="kafka", brokers=BrokersConfig(**given))
        upstream = UpstreamConfig(name="up", kafka=KafkaCluster(bootstrap=("b0:9092",)))
        found = finding("up, x", ProxyConfig(node="n", listeners=(listener,), upstreams=(upstream,)), upstream, [], brokers)
        return found.level, found.found.partition("; the")[2]

    assert judged(hosts="{id}.x") == judged(ports="1-6") == judged(ports="1-3", by="order") == ("ok", "")
    assert judged(ports="1-5") == ("warning", " ports of a have no place for node 5")
    assert judged(ports="1-2", by="order") == ("warning", " ports of a have no place for node 5")
    assert judged(ports="1") == ("warning", " ports of a have no place for node 2, 5")
