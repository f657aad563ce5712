"""What an operator finds about connections of a running framegate: explained, as evidence, and in the rows that are watched."""

import base64
import contextlib
import json
import re
import shlex
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from framegate.control.v1 import event_service_pb2 as pb2
from framegate.control.v1.event_service_pb2_grpc import EventServiceStub
from tests.fakes.framegate import Framegate
from tests.fakes.upstream import ScriptedUpstream, ask, frame, peer_name, read_frame
from tests.fakes.waiting import until

PAGE = Path(__file__).parents[2] / "deploy/docs/operating.md"
KIB = 1024
MIB = 1024 * KIB


class Servers:
    """An upstream that answers each request of 4 bytes with a frame of that many bytes, and one of Kafka that takes requests and does not answer."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()  # lets the second one answer
        self.large, self.slow = ScriptedUpstream(self._large), ScriptedUpstream(self._slow)

    def _large(self, sock: Any) -> None:
        while True:
            sock.sendall(frame(bytes(int.from_bytes(read_frame(sock), "big"))))

    def _slow(self, sock: Any) -> None:
        while True:
            request = read_frame(sock)
            self.goes_on.wait(30)
            sock.sendall(frame(request[4:8]))

    def close(self) -> None:
        self.goes_on.set()
        self.large.close()
        self.slow.close()


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Framegate, Servers]]:
    servers = Servers()
    config = {
        "processors": 2,
        "memory_pool": {"size": "96MiB"},
        "listeners": [
            {
                "name": "files",
                "address": "127.0.0.1:0",
                "upstream": "large",
                "max_receive_size": "1MiB",
                "forwarding": {"responses": "cut_through"},
                "min_rate": 0,
            },
            {
                "name": "reports",
                "address": "127.0.0.1:0",
                "upstream": "large",
                "max_receive_size": "1MiB",
                "forwarding": {"responses": "whole"},
                "min_rate": 0,
            },
            {"name": "orders", "address": "127.0.0.1:0", "upstream": "slow", "max_receive_size": "1MiB", "protocol": "kafka"},
        ],
        "upstreams": [
            {"name": "large", "endpoints": [servers.large.address], "max_receive_size": "32MiB"},
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
    with running.connect("files") as slow, running.connect("files") as quick:
        assert len(ask(quick, (1000).to_bytes(4, "big"))) == 1000
        slow.sendall(frame((20 * MIB).to_bytes(4, "big")))
        identifier = running.channels()[peer_name(slow)].id
        (wait,) = until(lambda: [item for item in waits(running, identifier) if item.get("since_time")])
        assert (wait["kind"], wait["side"], wait["channel_ids"]) == ("KIND_CLIENT", "SIDE_DOWNSTREAM", [identifier])
        assert 64 * KIB < wait["unsent_bytes"] < 20 * MIB
        assert f"client {peer_name(slow)} (channel {identifier}) has not taken " in wait["text"]
        summary, line = running.cli("explain", "files").stdout.splitlines()
        assert summary == "listener files: 2 channels open, 1 of them waits"
        assert line.startswith(f"- client {peer_name(slow)} (channel {identifier}) has not taken ")
        read_frame(slow)
        assert waits(running, identifier) == []


@pytest.mark.slow
def test_frames_whose_size_was_refused_are_evidence_with_who_sent_them(proxy: tuple[Framegate, Servers]) -> None:
    running, _ = proxy
    data = frame(bytes(MIB + 1))[:12]
    with running.connect("files") as client, running.connect("files") as tls:
        client.sendall(data)
        tls.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03secret")
        row = running.closed_row(client)
        assert running.closed_row(tls)["cause"] == "wrong_protocol"
        (found,) = until(lambda: running.json("listeners", "refused", "files"))
        assert (found["channel_id"], found["peer_address"]) == (row["id"], peer_name(client))
        assert (found["cause"], found["size_bytes"], found["limit_bytes"]) == ("CAUSE_FRAME_TOO_LARGE", MIB + 1, MIB)
        assert base64.b64decode(found["head"]) == data


@pytest.mark.slow
def test_an_endpoint_that_does_not_answer_is_named_with_the_age_of_the_oldest_request(proxy: tuple[Framegate, Servers]) -> None:
    running, servers = proxy
    with running.connect("orders") as client:
        client.sendall(frame(bytes([0, 3, 0, 0, 0, 0, 0, 7]) + b"\x00\x05ada-1"))
        (wait,) = until(lambda: waits(running, "orders"))
        assert (wait["kind"], wait["endpoint"], wait["channel_count"]) == ("KIND_ANSWER", servers.slow.address, 1)
        assert f"endpoint {servers.slow.address} has not answered 1 request of client {peer_name(client)} (channel " in wait["text"]
        assert "client id ada-1" in wait["text"]
        running.cli("channels", "mute", *wait["channel_ids"], "--reason", "incident 7")
        operator, answer = waits(running, wait["channel_ids"][0])
        assert operator["text"].endswith("for the reason: incident 7")
        assert answer["kind"] == "KIND_ANSWER"
        servers.goes_on.set()


def page_blocks() -> dict[str, list[tuple[str, str]]]:
    """The commands of each incident of the page, with the output that it shows."""
    _, _, section = PAGE.read_text().partition("\n## Three incidents\n")
    found: dict[str, list[tuple[str, str]]] = {}
    for title, text in re.findall(r"^### (.*?)$(.*?)(?=^###? |\Z)", section, re.MULTILINE | re.DOTALL):
        blocks = "".join(re.findall(r"^```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
        found[title] = [(command, output) for command, output in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", blocks, re.MULTILINE)]
    return found


def without_numbers(text: str) -> list[str]:
    """The words of an output, sorted; numbers, addresses, ids and times are all the same."""
    return sorted(re.sub(r"\b[0-9a-f]*\d[\w.:-]*( [KMG]iB)?", "N", text).split())


@pytest.mark.slow
def test_the_three_incidents_of_the_page_are_found_by_its_commands(proxy: tuple[Framegate, Servers]) -> None:
    running, servers = proxy
    servers.goes_on.set()
    with contextlib.ExitStack() as stack:
        reader, quick, giant, waiting = (stack.enter_context(running.connect(name)) for name in ("reports", "reports", "orders", "orders"))
        for client, client_id in ((giant, b"etl-2"), (waiting, b"web-7")):
            assert len(ask(client, struct.pack(">hhih", 3, 0, 7, 5) + client_id)) == 4
        giant.sendall(struct.pack(">ihhih", 4 * MIB, 0, 9, 8, 5) + b"etl-2")
        running.closed_row(giant)
        servers.goes_on.clear()
        stack.callback(servers.goes_on.set)
        waiting.sendall(frame(struct.pack(">hhih", 3, 0, 9, 5) + b"web-7"))
        ask(quick, (1000).to_bytes(4, "big"))
        reader.sendall(frame((24 * MIB).to_bytes(4, "big")))
        until(lambda: any(item["held_bytes"] > MIB for item in waits(running, "reports")))
        until(lambda: waits(running, "orders"))
        wrong = {}
        for title, steps in page_blocks().items():
            assert 1 <= len(steps) <= 2, f"{title} is not found in at most two commands"
            for command, shown in steps:
                done = running.cli(*shlex.split(command)[1:])
                if without_numbers(done.stdout) != without_numbers(shown):
                    wrong[command] = done.stdout + done.stderr
        assert len(page_blocks()) == 3
        assert not wrong, "\n".join(f"$ {command}\n{output}" for command, output in wrong.items())


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
