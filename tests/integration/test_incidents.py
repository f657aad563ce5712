"""What an operator finds about connections of a running framegate: explained, as evidence, and in the rows that are watched."""

import base64
import json
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from framegate.control.v1 import event_service_pb2 as pb2
from framegate.control.v1.event_service_pb2_grpc import EventServiceStub
from tests.fakes.framegate import Framegate, until
from tests.fakes.upstream import ScriptedUpstream, ask, frame, peer_name, read_frame

KIB = 1024
MIB = 1024 * KIB


class Servers:
    """An upstream that answers each request of 4 bytes with a frame of that many bytes, and one that takes a request and does not answer.

    Attributes:
        goes_on: lets the second one answer.
    """

    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.large, self.slow = ScriptedUpstream(self._large), ScriptedUpstream(self._slow)

    def _large(self, sock: Any) -> None:
        while True:
            sock.sendall(frame(bytes(int.from_bytes(read_frame(sock), "big"))))

    def _slow(self, sock: Any) -> None:
        read_frame(sock)
        self.goes_on.wait(30)
        sock.sendall(frame(b"late"))

    def close(self) -> None:
        self.goes_on.set()
        self.large.close()
        self.slow.close()


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Framegate, Servers]]:
    servers = Servers()
    config = {
        "processors": 2,
        "memory_pool": {"size": "64MiB"},
        "listeners": [
            {
                "name": "large",
                "address": "127.0.0.1:0",
                "upstream": "large",
                "max_receive_size": "1MiB",
                "forwarding": {"responses": "cut_through"},
                "min_rate": 0,
            },
            {"name": "slow", "address": "127.0.0.1:0", "upstream": "slow", "max_receive_size": "1MiB", "protocol": "kafka"},
        ],
        "upstreams": [
            {"name": "large", "endpoints": [servers.large.address], "max_receive_size": "64MiB"},
            {"name": "slow", "endpoints": [servers.slow.address]},
        ],
    }
    with Framegate(tmp_path_factory.mktemp("framegate"), config) as running:
        yield running, servers
    servers.close()


def waits(proxy: Framegate, what: str) -> list[dict[str, Any]]:
    """What ``framegate explain`` finds."""
    found: list[dict[str, Any]] = proxy.json("explain", what)["waits"]
    return found


@pytest.mark.slow
def test_a_client_that_does_not_take_a_large_answer_is_named_with_the_bytes_that_its_socket_holds(proxy: tuple[Framegate, Servers]) -> None:
    running, _ = proxy
    with running.connect("large") as slow, running.connect("large") as quick:
        assert len(ask(quick, (1000).to_bytes(4, "big"))) == 1000
        slow.sendall(frame((20 * MIB).to_bytes(4, "big")))
        identifier = running.channels()[peer_name(slow)].id
        (wait,) = until(lambda: [item for item in waits(running, identifier) if item.get("since_time")])
        assert (wait["kind"], wait["side"], wait["channel_ids"]) == ("KIND_CLIENT", "SIDE_DOWNSTREAM", [identifier])
        assert 64 * KIB < wait["unsent_bytes"] < 20 * MIB
        assert f"client {peer_name(slow)} (channel {identifier}) has not taken " in wait["text"]
        summary, line = running.cli("explain", "large").stdout.splitlines()
        assert summary == "listener large: 2 channels open, 1 of them waits"
        assert line.startswith(f"- client {peer_name(slow)} (channel {identifier}) has not taken ")
        read_frame(slow)
        assert waits(running, identifier) == []


@pytest.mark.slow
def test_frames_whose_size_was_refused_are_evidence_with_who_sent_them(proxy: tuple[Framegate, Servers]) -> None:
    running, _ = proxy
    data = frame(bytes(MIB + 1))[:12]
    with running.connect("large") as client, running.connect("large") as tls:
        client.sendall(data)
        tls.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03secret")
        row = running.closed_row(client)
        assert running.closed_row(tls)["cause"] == "wrong_protocol"
        (found,) = until(lambda: running.json("listeners", "refused", "large"))
        assert (found["channel_id"], found["peer_address"]) == (row["id"], peer_name(client))
        assert (found["cause"], found["size_bytes"], found["limit_bytes"]) == ("CAUSE_FRAME_TOO_LARGE", MIB + 1, MIB)
        assert base64.b64decode(found["head"]) == data


@pytest.mark.slow
def test_an_endpoint_that_does_not_answer_is_named_with_the_age_of_the_oldest_request(proxy: tuple[Framegate, Servers]) -> None:
    running, servers = proxy
    with running.connect("slow") as client:
        client.sendall(frame(bytes([0, 3, 0, 0, 0, 0, 0, 7]) + b"\x00\x05ada-1"))
        (wait,) = until(lambda: waits(running, "listener=slow"))
        assert (wait["kind"], wait["endpoint"], wait["channel_count"]) == ("KIND_ANSWER", servers.slow.address, 1)
        assert f"endpoint {servers.slow.address} has not answered 1 request of client {peer_name(client)} (channel " in wait["text"]
        assert "client id ada-1" in wait["text"]
        running.cli("channels", "mute", *wait["channel_ids"], "--reason", "incident 7")
        operator, answer = waits(running, wait["channel_ids"][0])
        assert operator["text"].endswith("for the reason: incident 7")
        assert answer["kind"] == "KIND_ANSWER"
        servers.goes_on.set()


@pytest.mark.slow
def test_rows_are_followed_while_they_are_written_and_the_end_ends_the_watcher(tmp_path: Any) -> None:
    with ScriptedUpstream() as upstream:
        config = {
            "listeners": [{"name": "plain", "address": "127.0.0.1:0", "upstream": "echo", "max_receive_size": "1KiB"}],
            "upstreams": [{"name": "echo", "endpoints": [upstream.address]}],
        }
        with Framegate(tmp_path, config) as running, running.api() as channel:
            request = pb2.WatchEventsRequest(filter="event=closed cause=frame_too_large address=127.0.0.0/8")
            watch = EventServiceStub(channel).WatchEvents(request, timeout=60)
            token = next(watch).resume_token
            peers = []
            for size in (1024, 1025, 1026):
                with running.connect("plain") as client:
                    client.sendall(frame(bytes(size)))
                    if size == 1024:
                        assert len(read_frame(client)) == size
                    peers.append(peer_name(client))
                    client.close()
                    running.closed_row(peers[-1])
            seen: list[str] = []
            while len(seen) < 2:
                seen += [json.loads(item.fields_json)["peer"] for item in next(watch).events]
            assert seen == peers[1:]
            again = running.cli("events", "--after", token, "--filter", "cause=frame_too_large", "--output", "json").stdout.splitlines()
            assert [json.loads(line)["peer"] for line in again] == peers[1:]
            running.process.terminate()
            assert list(watch) == []
            assert watch.code() is grpc.StatusCode.OK
