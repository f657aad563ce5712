"""Channels are found and acted on in a running framegate: filters, rates, throttle, and actions that stand over reconnects and new processors."""

import contextlib
import os
import select
import signal
import socket
import struct
import time
from collections.abc import Iterator

import pytest

from framegate.control.v1 import channel_service_pb2 as pb2
from framegate.control.v1.channel_service_pb2_grpc import ChannelServiceStub
from tests.fakes import kafka_frames
from tests.fakes.framegate import Framegate, config_before
from tests.fakes.upstream import ScriptedUpstream, ask, frame, peer_name
from tests.fakes.waiting import until


@pytest.fixture
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Framegate]:
    with ScriptedUpstream() as upstream:
        config = {**config_before(upstream.address), "processors": 2}
        config["listeners"].append({**config["listeners"][0], "name": "kafka", "protocol": "kafka", "address": "127.0.0.1:0"})
        with Framegate(tmp_path_factory.mktemp("framegate"), config) as running:
            yield running


def stand_still(clients: list[socket.socket]) -> bool:
    """Whether no frame of theirs is answered."""
    for client in clients:
        client.sendall(frame(b"x"))
    return not select.select(clients, [], [], 0.5)[0]


@pytest.mark.extended
@pytest.mark.slow
def test_a_kafka_client_is_found_by_its_id_and_by_what_it_sends(proxy: Framegate) -> None:
    with proxy.connect("kafka") as billing, proxy.connect("kafka") as other, proxy.connect("plain"):
        for client, name in ((billing, b"billing-7"), (other, b"other")):
            client.sendall(kafka_frames.request(18, 3, 7, b"\0\x04lib\x042.3\0", struct.pack(">h", len(name)) + name))
            client.recv(100)
        (row,) = proxy.json("channels", "list", "--filter", "client_id=billing-* listener=kafka state=open")
        assert (row["peer_address"], row["client_software_name"], row["client_software_version"]) == (peer_name(billing), "lib", "2.3")
        ends = time.monotonic() + 1.2
        with proxy.api() as channel:
            asked = pb2.ListChannelsRequest(filter="listener=kafka bytes_rate>0", order_by="bytes_rate desc", page_size=1)
            future = ChannelServiceStub(channel).ListChannels.future(asked, timeout=10)
            while time.monotonic() < ends and not future.done():
                other.sendall(kafka_frames.request(3, 9, 7, bytes(5000)))
                time.sleep(0.01)
            answer = future.result()
        assert [item.peer_address for item in answer.channels] == [peer_name(other)]
        assert (answer.total_count, answer.channels[0].request.bytes_per_second > 5000) == (1, True)


@pytest.mark.extended
@pytest.mark.slow
def test_a_standing_mute_meets_reconnects_killed_and_added_processors_until_it_is_undone(proxy: Framegate) -> None:
    with contextlib.ExitStack() as stack:
        before = stack.enter_context(proxy.connect("plain"))
        assert ask(before, b"1") == b"1"
        muted = proxy.json("channels", "mute", "--filter", "listener=plain address=127.0.0.0/8", "--standing", "--reason", "incident 7")
        assert (len(muted["affected"]), muted["action"]["standing"]) == (1, True)
        clients = [before, *(stack.enter_context(proxy.connect("plain")) for _ in range(4))]
        assert stand_still(clients)
        (killed, *_) = proxy.processors
        os.kill(killed, signal.SIGKILL)
        until(lambda: len(proxy.processors) == 2 and killed not in proxy.processors)
        assert proxy.cli("pool", "set", "--processors", "3").returncode == 0
        again = [stack.enter_context(proxy.connect("plain")) for _ in range(6)]
        assert stand_still(again)
        with proxy.connect("kafka") as spared:
            assert ask(spared, b"x") == b"x"
        (action,) = proxy.json("channels", "actions")
        assert (action["filter"], action["verb"], action["reason"]) == ("listener=plain address=127.0.0.0/8", "VERB_MUTE", "incident 7")
        assert proxy.cli("channels", "undo", action["id"]).returncode == 0
        assert proxy.json("channels", "actions") == []
        for client in again:
            client.settimeout(10)
            assert client.recv(5) == frame(b"x"), "it was only delayed"
        assert ask(stack.enter_context(proxy.connect("plain")), b"2") == b"2"


@pytest.mark.extended
@pytest.mark.slow
def test_a_throttle_with_a_time_is_over_after_it(proxy: Framegate) -> None:
    with proxy.connect("plain") as client, proxy.connect("plain") as other:
        for each in (client, other):
            assert ask(each, b"1") == b"1"
        identifier = proxy.channels()[peer_name(client)].id
        asked = ("channels", "throttle", identifier, "--request-rate", "20KB", "--ttl", "2s", "--reason", "x")
        assert proxy.json(*asked)["action"]["request_bytes_per_second"] == 20_000
        began = time.monotonic()
        for _ in range(20):
            assert len(ask(client, bytes(996))) == 996
        lasted = time.monotonic() - began
        assert 0.7 <= lasted < 2.5, "20 KB at 20 KB/s, of which the burst and a read come at once"
        began = time.monotonic()
        for _ in range(20):
            ask(other, bytes(996))
        assert time.monotonic() - began < 0.5
        until(lambda: not proxy.json("channels", "actions"))
        assert "throttle" not in proxy.json("channels", "describe", identifier)
