"""The control plane at work while traffic flows: limits, muting, the pool, processors."""

import json
import os
import signal
import struct
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from framegate.control.v1 import limit_service_pb2 as pb2
from framegate.control.v1.limit_service_pb2_grpc import LimitServiceStub
from tests.fakes.framegate import Framegate, Witness
from tests.fakes.upstream import ScriptedUpstream, frame, read_frame


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Framegate]:
    upstream = ScriptedUpstream()
    config = {
        "processors": 2,
        "memory_pool": {"size": "8MiB"},
        "listeners": [{"name": "plain", "address": "127.0.0.1:0", "upstream": "echo", "max_receive_size": "1MiB"}],
        "upstreams": [{"name": "echo", "endpoints": [upstream.address]}],
    }
    with Framegate(tmp_path_factory.mktemp("framegate"), config) as running:
        yield running
    upstream.close()


def rows(proxy: Framegate, *arguments: str) -> Any:
    done = proxy.cli(*arguments, "--output", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def channel_of(proxy: Framegate, sock: Any) -> str:
    peer = "{}:{}".format(*sock.getsockname()[:2])
    return str(next(item["id"] for item in rows(proxy, "channels", "list") if item["peer_address"] == peer))


@pytest.mark.slow
def test_a_lowered_limit_is_in_force_when_the_call_returns(proxy: Framegate) -> None:
    with proxy.connect("plain") as client, Witness(proxy, "plain") as witness:
        client.sendall(frame(bytes(1000)))
        assert len(read_frame(client)) == 1000
        assert proxy.cli("limits", "set", "--listener", "plain", "--max-receive-size", "500").returncode == 0
        client.sendall(struct.pack(">i", 501))
        assert proxy.ended_row(client)["cause"] == "frame_too_large"
        with proxy.connect("plain") as another:
            another.sendall(frame(bytes(500)))
            assert len(read_frame(another)) == 500
        assert proxy.cli("limits", "set", "--listener", "plain", "--max-receive-size", "1MiB").returncode == 0
        witness.check()


@pytest.mark.slow
def test_a_muted_client_stands_still_and_goes_on_in_order(proxy: Framegate) -> None:
    with proxy.connect("plain", timeout=0.3) as client, Witness(proxy, "plain") as witness:
        client.sendall(frame(b"before"))
        assert read_frame(client) == b"before"
        identifier = channel_of(proxy, client)
        assert proxy.cli("channels", "mute", identifier, "--reason", "test").returncode == 0
        for number in range(100):
            client.sendall(frame(bytes([number])))
        with pytest.raises(TimeoutError):
            client.recv(1)
        witness.check()
        assert proxy.cli("channels", "unmute", identifier).returncode == 0
        client.settimeout(10)
        assert [read_frame(client) for _ in range(100)] == [bytes([number]) for number in range(100)]
        assert proxy.cli("channels", "close", identifier, "--reason", "test").returncode == 0
        assert proxy.ended_row(client)["cause"] == "admin"
        assert proxy.cli("channels", "mute", identifier, "--reason", "test").returncode == 3


@pytest.mark.slow
def test_processors_come_and_go_while_frames_pass(proxy: Framegate) -> None:
    with Witness(proxy, "plain") as one, Witness(proxy, "plain") as two:
        for count in (3, 2):
            assert proxy.cli("pool", "set", "--processors", str(count)).returncode == 0
            assert len(proxy.processors) == count
            one.check()
            two.check()
            shares = rows(proxy, "pool", "get")["memory_pool"]["shares"]
            assert sum(int(item["size_bytes"]) for item in shares) == 8 << 20
            assert len(shares) == count


@pytest.mark.slow
def test_a_change_that_the_pool_does_not_allow_is_refused_everywhere(proxy: Framegate) -> None:
    refused = proxy.cli("pool", "set", "--size", "1MiB")
    assert refused.returncode == 1
    assert "POOL_BELOW_MAX_RECEIVE_SIZE" in refused.stderr
    assert proxy.cli("limits", "set", "--listener", "plain", "--max-receive-size", "5MiB").returncode == 1
    assert proxy.cli("limits", "set", "--listener", "none", "--max-receive-size", "5KiB").returncode == 3


def set_limit(proxy: Framegate, size: int, timeout: float) -> grpc.StatusCode:
    limit = pb2.Limit(listener="plain", max_receive_size_bytes=size)
    with proxy.api() as channel:
        try:
            LimitServiceStub(channel).UpdateLimit(pb2.UpdateLimitRequest(limit=limit), timeout=timeout)
        except grpc.RpcError as error:
            return error.code()
    return grpc.StatusCode.OK


@pytest.mark.slow
def test_a_call_that_ends_before_a_slow_processor_answers_is_taken_back_and_one_that_waits_is_not(proxy: Framegate) -> None:
    slow = proxy.processors[0]
    with Witness(proxy, "plain") as one, Witness(proxy, "plain") as two:
        os.kill(slow, signal.SIGSTOP)
        try:
            assert set_limit(proxy, 100, timeout=1) is grpc.StatusCode.DEADLINE_EXCEEDED
            row = proxy.wait_row(lambda row: row["event"] == "change_settled")
            assert (row["change"], row["result"]) == ("limit of plain", "taken back")
            assert rows(proxy, "limits", "get")[0]["max_receive_size_bytes"] == 1 << 20
            timer = threading.Timer(0.7, os.kill, (slow, signal.SIGCONT))
            timer.start()
            assert set_limit(proxy, 1 << 19, timeout=9) is grpc.StatusCode.OK
            timer.join()
        finally:
            os.kill(slow, signal.SIGCONT)
        for _ in range(2):
            with proxy.connect("plain") as client:
                client.sendall(frame(bytes(200)))
                assert len(read_frame(client)) == 200
                client.sendall(struct.pack(">i", (1 << 19) + 1))
                assert client.recv(1) == b""
        assert set_limit(proxy, 1 << 20, timeout=9) is grpc.StatusCode.OK
        assert slow in proxy.processors
        one.check()
        two.check()
