"""Metadata of all supported versions, asked of scripted brokers; and lists that no cluster has."""

import asyncio
import struct

import pytest

from framegate.control.accept.broker_connection import Wire
from framegate.control.accept.broker_list import MAX_BROKERS, Broker, ask_brokers, brokers_in, checked_brokers, metadata_question
from framegate.proxy.auth.messages import ApiRange
from framegate.proxy.auth.wire import MalformedError
from framegate.proxy.errors import ProxyError
from tests.fakes.brokers import API_VERSIONS, METADATA, FakeBroker
from tests.fakes.scenario import run_by, within_10_s
from tests.fakes.upstream import refusing_port

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
        assert metadata_question([ApiRange(18, 0, 4), ApiRange(3, least, most)]) == (version, body)
    for ranges in ([], [ApiRange(18, 0, 4)], [ApiRange(3, 0, 0)], [ApiRange(3, 9, 13)]):
        assert metadata_question(ranges) is None


def test_brokers_are_read_of_every_version_and_what_is_cut_is_no_answer() -> None:
    broker = struct.pack(">ih4sih1s", 1, 4, b"edge", 9093, 1, b"r")
    for version, time in ((1, b""), (2, b""), (3, bytes(4)), (8, bytes(4))):
        body = struct.pack(">i", 1) + time + struct.pack(">i", 1) + broker
        assert brokers_in(body + b"what follows", version) == [EDGE._replace(rack="r")]
        with pytest.raises(MalformedError):
            brokers_in(body[:-1], version)
    with pytest.raises(MalformedError):
        brokers_in(struct.pack(">ii", 2, 0), 1)


def test_a_list_that_no_cluster_has_is_refused_with_the_reason() -> None:
    cases = {
        "is empty": [],
        "the node id -1": [Broker(-1, "a", 1)],
        "the node id 3 twice": [Broker(3, "a", 1), Broker(3, "b", 1)],
        "for node 1 no usable address: port 0": [Broker(1, "a", 0)],
        "for node 2 no usable address: port '-1'": [EDGE, Broker(2, "a", -1)],
        "for node 1 no usable address: port '65536'": [Broker(1, "a", 65536)],
        "for node 1 no usable address: is not an address": [Broker(1, "", 9)],
        "for node 1 no usable address: 'a b'": [Broker(1, "a b", 9)],
        "for node 1 no usable address: [a:b]": [Broker(1, "a:b", 9)],
        "more than 10000": [Broker(node, "a", 1) for node in range(MAX_BROKERS + 1)],
    }
    for reason, brokers in cases.items():
        with pytest.raises(ValueError, match="the list of brokers") as caught:
            checked_brokers(brokers)
        assert reason in str(caught.value)
    good = [Broker(5, "::1", 65535), Broker(0, "a.b", 1, "r")]
    assert list(checked_brokers(good).items()) == [(0, good[1]), (5, good[0])]
    assert len(checked_brokers([Broker(node, "a", 1) for node in range(MAX_BROKERS)])) == MAX_BROKERS
    assert [str(item) for item in good] == ["[::1]:65535", "a.b:1"]


async def asked(address: Wire, timeout_s: float = 5.0) -> dict[int, Broker] | str:
    """The list, or the error."""
    try:
        return await ask_brokers(address, lambda host: None, None, timeout_s)
    except (OSError, EOFError, ProxyError, ValueError) as error:
        return f"{type(error).__name__}: {error}"


@run_by(within_10_s)
async def test_a_broker_is_asked_in_the_newest_version_that_it_has() -> None:
    async with FakeBroker([EDGE, Broker(0, "b", 2, "rack")]) as broker:
        for most in (1, 2, 3, 5, 8, 13):
            broker.ranges = ((METADATA, 0, most), (API_VERSIONS, 0, 4))
            assert await asked(broker.wire) == {0: Broker(0, "b", 2, "rack"), 1: EDGE}
        broker.ranges = ((METADATA, 9, 13),)
        assert "no version of Metadata" in str(await asked(broker.wire))
        assert broker.asked == 6


@run_by(within_10_s)
async def test_what_is_no_answer_is_an_error_that_says_why() -> None:
    cases = {"closes": "clients may have to log in first", "garbage": "MalformedError", "large": "does not speak Kafka", "cut": "IncompleteReadError"}
    async with FakeBroker() as broker:
        assert "is empty" in str(await asked(broker.wire))
        for how, error in cases.items():
            broker.brokers = how
            assert error in str(await asked(broker.wire)), how
        broker.brokers = "silent"
        assert str(await asked(broker.wire, 0.05)).startswith("TimeoutError")
    with refusing_port() as port:
        assert str(await asked(["127.0.0.1", 2, "127.0.0.1", port])).startswith("ConnectionRefusedError")


@run_by(within_10_s)
async def test_who_stops_waiting_leaves_no_connection() -> None:
    async with FakeBroker("silent") as broker:
        task = asyncio.create_task(asked(broker.wire, 60))
        while not broker.open:
            await asyncio.sleep(0.002)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while broker.open:
            await asyncio.sleep(0.002)
