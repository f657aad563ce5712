"""Which endpoint of an upstream clients reach, behind a whole framegate: full, failing its checks, ejected, and with control stopped."""

import collections
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from framegate.proxy.network.proxy_protocol import header_bytes
from tests.fakes.framegate import Framegate
from tests.fakes.upstream import ScriptedUpstream, ask, echo, frame, read_frame
from tests.fakes.waiting import until

pytestmark = pytest.mark.slow


def config_of(*endpoints: Any, processors: int = 1, listener: dict[str, Any] | None = None, **upstream: Any) -> dict[str, Any]:
    return {
        "processors": processors,
        "memory_pool": {"size": "8MiB"},
        "listeners": [{"name": "one", "address": "127.0.0.1:0", "upstream": "u", "max_receive_size": "1MiB", **(listener or {})}],
        "upstreams": [{"name": "u", "endpoints": list(endpoints), **upstream}],
    }


def states(proxy: Framegate) -> list[str]:
    return [row["state"].removeprefix("STATE_").lower() for row in proxy.json("upstreams", "list")[0]["endpoint_states"]]


def named(name: bytes) -> Callable[[socket.socket], None]:
    """Answers each frame with a name."""

    def script(sock: socket.socket) -> None:
        while True:
            read_frame(sock)
            sock.sendall(frame(name))

    return script


@pytest.fixture
def pair() -> Iterator[tuple[ScriptedUpstream, ScriptedUpstream]]:
    with ScriptedUpstream(named(b"a")) as first, ScriptedUpstream(named(b"b")) as second:
        yield first, second


def reached(proxy: Framegate, count: int) -> dict[bytes, int]:
    """How often each endpoint answered so many connections, one after the other."""
    found: collections.Counter[bytes] = collections.Counter()
    for _ in range(count):
        with proxy.connect("one") as client:
            found[ask(client, b"who")] += 1
    return dict(found)


def test_a_full_endpoint_is_not_chosen_and_when_all_are_a_connection_is_refused(
    tmp_path: Path, pair: tuple[ScriptedUpstream, ScriptedUpstream]
) -> None:
    first, second = pair
    with Framegate(tmp_path, config_of(first.address, second.address, max_connections=1)) as proxy:
        clients = [proxy.connect("one") for _ in range(2)]
        assert {ask(client, b"who") for client in clients} == {b"a", b"b"}
        assert states(proxy) == ["full", "full"]
        with proxy.connect("one") as refused:
            row = proxy.closed_row(refused)
        assert (row["cause"], row["detail"]) == ("limit", "the upstream is full: each of its 2 endpoints has max_connections")
        clients[0].close()
        until(lambda: "up" in states(proxy))
        assert sum(reached(proxy, 1).values()) == 1
        clients[1].close()


@pytest.mark.extended
def test_an_endpoint_that_hangs_is_left_out_by_its_checks_and_one_whose_control_is_stopped_is_not(tmp_path: Path) -> None:
    check = {"kind": "kafka", "every": "200ms", "timeout": "200ms", "fall": 2, "rise": 2}
    with ScriptedUpstream(_broker(b"a")) as good, socket.create_server(("127.0.0.1", 0), backlog=100) as hanging:
        address = f"127.0.0.1:{hanging.getsockname()[1]}"
        with Framegate(tmp_path, config_of(good.address, address, processors=2, check=check)) as proxy:
            failed = proxy.wait_row(lambda row: row["event"] == "check_failed")
            assert (failed["endpoint"], failed["check"], failed["error"]) == (address, "kafka", "no answer within 0.2 s")
            until(lambda: states(proxy) == ["up", "failing"])
            assert proxy.metric("framegate_upstream_endpoint_ejections_total", error_type="check") == 2, "of both processors"
            assert reached(proxy, 8) == {b"a": 8}
            for _ in range(3):
                proxy.process.send_signal(signal.SIGSTOP)
                time.sleep(0.7)
                proxy.process.send_signal(signal.SIGCONT)
                time.sleep(0.3)
            assert len(proxy.events("check_failed")) == 1
            pids = proxy.processors
            os.kill(pids[0], signal.SIGKILL)
            until(lambda: len(proxy.processors) == 2 and proxy.processors != pids)
            until(lambda: states(proxy) == ["up", "failing"])
            listed = proxy.json("upstreams", "list")[0]["endpoint_states"][1]
            assert (listed["out_processor_count"], listed["reason"]) == (2, "REASON_CHECK"), "one that starts anew knows it, too"


def _broker(name: bytes) -> Callable[[socket.socket], None]:
    """Answers ApiVersions as a broker, and other frames with its name."""

    def script(sock: socket.socket) -> None:
        while True:
            body = read_frame(sock)
            known = body[:2] == b"\0\x12"
            sock.sendall(frame(body[4:8] + b"\0\0" + b"\0\0\0\1" + b"\0\x12\0\0\0\4" if known else name))

    return script


def test_an_endpoint_that_breaks_connections_is_ejected_and_comes_back_after_it_has_proved_itself(tmp_path: Path) -> None:
    broken = True

    def script(sock: socket.socket) -> None:
        if not broken:
            echo(sock)

    ejection = {"failures": 3, "time": "1s", "successes": 2}
    with (
        ScriptedUpstream() as good,
        ScriptedUpstream(script) as bad,
        Framegate(tmp_path, config_of(good.address, bad.address, ejection=ejection)) as proxy,
    ):
        for _ in range(20):
            with proxy.connect("one") as client:
                client.sendall(frame(b"x"))
                client.recv(100)
        down = proxy.wait_row(lambda row: row["event"] == "endpoint_down")
        assert (down["endpoint"], down["reason"], down["detail"]) == (bad.address, "failures", "ended a connection before it sent a byte")
        assert states(proxy) == ["up", "ejected"]
        assert len([row for row in proxy.events("closed") if row["cause"] == "upstream_closed"]) < 6
        broken = False

        def is_back() -> bool:
            with proxy.connect("one") as client:
                client.sendall(frame(b"x"))
                client.recv(100)
            return bool(proxy.events("endpoint_up"))

        until(is_back, timeout=20)
        assert proxy.events("endpoint_up")[0]["reason"] == "failures"
        assert states(proxy) == ["up", "up"]


@pytest.mark.extended
def test_a_chain_of_proxies_keeps_the_clients_address(tmp_path: Path) -> None:
    listener = {"proxy_protocol": {"trusted": ["127.0.0.0/8"]}, "tls": None}
    with ScriptedUpstream() as upstream, Framegate(tmp_path / "inner", config_of(upstream.address, listener=listener)) as inner:
        address = "{}:{}".format(*inner.address("one"))
        with Framegate(tmp_path / "outer", config_of(address, send_proxy_protocol="v2", listener=listener)) as outer:
            with outer.connect("one") as client:
                client.sendall(header_bytes("v1", "198.51.100.7:1234", "192.0.2.1:9092"))
                assert ask(client, b"hello") == b"hello"
                assert [channel.peer_address for channel in inner.channels().values()] == ["198.51.100.7:1234"]
            assert inner.closed_row("198.51.100.7:1234")["cause"] == "peer_closed"
            assert outer.closed_row("198.51.100.7:1234")["cause"] == "peer_closed"
