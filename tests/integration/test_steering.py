"""The control plane at work while traffic flows: limits, muting, the pool, processors."""

import json
import os
import signal
import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest

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
        assert client.recv(1) == b""
        assert proxy.closed_row(client)["cause"] == "frame_too_large"
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
        assert client.recv(1) == b""
        assert proxy.closed_row(client)["cause"] == "admin"
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


@pytest.mark.slow
def test_a_change_that_a_processor_does_not_answer_is_aborted_and_none_has_it(proxy: Framegate) -> None:
    stopped = proxy.processors[0]
    os.kill(stopped, signal.SIGSTOP)
    try:
        began = time.monotonic()
        aborted = proxy.cli("limits", "set", "--listener", "plain", "--max-receive-size", "100")
        assert aborted.returncode == 4
        assert time.monotonic() - began < 9  # a processor is killed for its heart after 10
    finally:
        os.kill(stopped, signal.SIGCONT)
    time.sleep(0.1)
    for _ in range(2):
        with proxy.connect("plain") as client:
            client.sendall(frame(bytes(200)))
            assert len(read_frame(client)) == 200
    (limit,) = rows(proxy, "limits", "get")
    assert int(limit["max_receive_size_bytes"]) == 1 << 20
