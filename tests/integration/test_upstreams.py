"""Upstreams with several endpoints, some of which do not do what they should, behind a whole framegate."""

import contextlib
import socket
import ssl
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.certificates import Authority
from tests.fakes.framegate import Framegate
from tests.fakes.upstream import ScriptedUpstream, ask, echo, refusing_port

pytestmark = pytest.mark.slow


def config_of(*endpoints: str, listeners: tuple[str, ...] = ("one",), **upstream: Any) -> dict[str, Any]:
    return {
        "memory_pool": {"size": "8MiB"},
        "listeners": [{"name": name, "address": "127.0.0.1:0", "upstream": "u", "max_receive_size": "1MiB"} for name in listeners],
        "upstreams": [{"name": "u", "endpoints": list(endpoints), **upstream}],
    }


def is_served(proxy: Framegate, listener: str = "one") -> None:
    with proxy.connect(listener) as client:
        assert ask(client, b"hello") == b"hello"


def test_of_two_endpoints_one_refuses_and_twenty_clients_at_once_are_served(tmp_path: Path, upstream: ScriptedUpstream) -> None:
    with (
        refusing_port() as port,
        Framegate(tmp_path, config_of(f"127.0.0.1:{port}", upstream.address, listeners=("one", "two"))) as proxy,
        ThreadPoolExecutor(20) as clients,
    ):
        for _ in range(3):
            list(clients.map(lambda number: is_served(proxy, ("one", "two")[number % 2]), range(20)))
        down = proxy.wait_row(lambda row: row["event"] == "endpoint_down")
        assert (down["upstream"], down["endpoint"], down["reason"], down["backoff_ms"]) == ("u", f"127.0.0.1:{port}", "refused", 1000)
        assert (proxy.metric("framegate_upstream_endpoint_count"), proxy.metric("framegate_upstream_endpoint_down")) == (2, 1)
        assert proxy.metric("framegate_upstream_endpoint_ejections_total", error_type="refused") == 1
        assert proxy.metric("framegate_upstream_endpoint_ejections_total") == 1
        (listed,) = proxy.json("upstreams", "list")[0]["down_endpoints"]
        assert (listed["address"], listed["reason"], listed["processor_count"]) == (f"127.0.0.1:{port}", "REASON_REFUSED", 1)
    assert {row["cause"] for row in proxy.events("closed")} == {"peer_closed"}


def tls_echo(certificate: tuple[str, str], names: list[str | None]) -> Callable[[socket.socket], None]:
    """Speaks TLS, notes what name the client asked for, echoes."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    context.sni_callback = lambda tls, name, context: names.append(name)

    def script(sock: socket.socket) -> None:
        with context.wrap_socket(sock, server_side=True) as tls:
            echo(tls)

    return script


@contextlib.contextmanager
def tls_upstreams(authority: Authority) -> Iterator[tuple[list[ScriptedUpstream], list[str | None]]]:
    """Three whose certificates are for one host alone: ``localhost``, 127.0.0.1 and ::1."""
    names: list[str | None] = []
    with contextlib.ExitStack() as stack:
        started = []
        hosts = {
            "127.0.0.1": (authority.leaf("named", addresses=()), authority.leaf("number", hosts=())),
            "::1": (authority.leaf("six", hosts=(), addresses=("::1",)),),
        }
        for host, certificates in hosts.items():
            for certificate in certificates:
                started.append(ScriptedUpstream(tls_echo(certificate, names), host))
                stack.callback(started[-1].close)
        yield started, names


@pytest.mark.extended
def test_each_endpoint_is_verified_against_its_own_host(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with tls_upstreams(authority) as ((named, number, six), names):
        config = config_of(f"localhost:{named.port}", number.address, f"[0:0::1]:{six.port}", tls={"ca": str(authority.path)})
        with Framegate(tmp_path, config) as proxy:
            for _ in range(9):
                is_served(proxy)
            listed = proxy.json("upstreams", "list")[0]
        assert {named.address, number.address, six.address} <= set(listed["addresses"])
    assert {row["endpoint"] for row in proxy.events("closed")} == {named.address, number.address, six.address}
    assert set(names) == {"localhost", None}, "SNI is the host, and a number is not sent"
    failed = [row for row in proxy.events("endpoint_down") if row["reason"] != "refused"]  # localhost may be [::1], too
    assert failed == []
