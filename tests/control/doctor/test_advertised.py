"""Metadata of all supported versions, and the findings about its addresses."""

import socket
import struct

import pytest

from framegate.control.doctor.advertised import Broker, brokers_in, finding, metadata_question
from framegate.proxy.auth.messages import ApiRange
from framegate.proxy.auth.wire import MalformedError
from framegate.proxy.config.model import ListenerConfig, ProxyConfig, UpstreamConfig

EDGE = Broker(1, "edge", 9093)


def test_the_newest_version_that_both_know_is_asked_for_brokers_alone() -> None:
    head = struct.pack(">h", 9) + b"framegate"
    for least, most, version, rest in (
        (0, 1, 1, b""),
        (0, 3, 3, b""),
        (0, 5, 5, b"\0"),
        (0, 7, 7, b"\0"),
        (0, 13, 8, b"\0\0\0"),
        (8, 20, 8, b"\0\0\0"),
    ):
        body = struct.pack(">hhi", 3, version, 1) + head + bytes(4) + rest
        assert metadata_question([ApiRange(18, 0, 4), ApiRange(3, least, most)]) == (version, struct.pack(">i", len(body)) + body)
    for ranges in ([], [ApiRange(18, 0, 4)], [ApiRange(3, 0, 0)], [ApiRange(3, 9, 13)]):
        assert metadata_question(ranges) is None


def test_brokers_are_read_of_every_version_and_what_is_cut_is_no_answer() -> None:
    broker = struct.pack(">ih4sih1s", 1, 4, b"edge", 9093, 1, b"r")
    for version, time in ((1, b""), (2, b""), (3, bytes(4)), (8, bytes(4))):
        body = struct.pack(">i", 1) + time + struct.pack(">i", 1) + broker
        assert brokers_in(body + b"what follows", version) == [EDGE]
        with pytest.raises(MalformedError):
            brokers_in(body[:-1], version)
    with pytest.raises(MalformedError):
        brokers_in(struct.pack(">ii", 2, 0), 1)


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
