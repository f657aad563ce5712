"""The control plane at work while traffic flows: limits, muting, the pool, processors."""

import os
import signal
import struct
import threading
from collections.abc import Iterator

import grpc
import pytest

from framegate.control.v1 import limit_service_pb2 as pb2
from framegate.control.v1.limit_service_pb2_grpc import LimitServiceStub
from tests.fakes.framegate import Framegate, Witness, config_before
from tests.fakes.upstream import ScriptedUpstream, ask, frame, peer_name, read_frame


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Framegate]:
    with (
        ScriptedUpstream() as upstream,
        Framegate(tmp_path_factory.mktemp("framegate"), {**config_before(upstream.address), "processors": 2}) as running,
    ):
        yield running


@pytest.mark.slow
def test_a_muted_client_stands_still_and_goes_on_in_order(proxy: Framegate) -> None:
    with proxy.connect("plain", timeout=0.3) as client, Witness(proxy, "plain") as witness:
        assert ask(client, b"before") == b"before"
        identifier = proxy.channels()[peer_name(client)].id
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
            assert (row["change"], row["result"]) == ("limit plain", "taken back")
            assert proxy.json("limits", "get")[0]["max_receive_size_bytes"] == 1 << 20
            timer = threading.Timer(0.7, os.kill, (slow, signal.SIGCONT))
            timer.start()
            assert set_limit(proxy, 1 << 19, timeout=9) is grpc.StatusCode.OK
            timer.join()
        finally:
            os.kill(slow, signal.SIGCONT)
        for _ in range(2):
            with proxy.connect("plain") as client:
                assert len(ask(client, bytes(200))) == 200
                client.sendall(struct.pack(">i", (1 << 19) + 1))
                assert client.recv(1) == b""
        assert set_limit(proxy, 1 << 20, timeout=9) is grpc.StatusCode.OK
        assert slow in proxy.processors
        one.check()
        two.check()
