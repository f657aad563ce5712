"""Bad input over real sockets: the same cause word in log, metric and API, while another connection's frames keep arriving."""

import contextlib
import socket
import ssl
import struct
import time
from collections.abc import Iterator

import pytest

from framegate.control.demo.certificates import Certificates
from tests.fakes.framegate import Framegate, Row, Witness
from tests.fakes.upstream import ScriptedUpstream, ask, frame, peer_name, refusing_port
from tests.fakes.waiting import until

LIMIT = 256 * 1024


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory, made: Certificates) -> Iterator[Framegate]:
    timeouts = {"stall": "1s", "handshake": "1s", "half_close": "5s"}
    listener = {"address": "127.0.0.1:0", "max_receive_size": LIMIT, "timeouts": timeouts, "min_rate": "1KiB"}
    tls = {"certificate": str(made.server), "key": str(made.server_key)}
    with contextlib.ExitStack() as undo:
        endpoints = {"plain": undo.enter_context(ScriptedUpstream()).address, "refused": f"127.0.0.1:{undo.enter_context(refusing_port())}"}
        config = {
            "memory_pool": {"size": "8MiB"},
            "listeners": [{"name": name, "upstream": name, **listener} for name in endpoints]
            + [{"name": "tls", "upstream": "plain", "tls": tls, **listener}],
            "upstreams": [{"name": name, "endpoints": [endpoint]} for name, endpoint in endpoints.items()],
        }
        yield undo.enter_context(Framegate(tmp_path_factory.mktemp("framegate"), config))


@pytest.fixture
def client_tls(made: Certificates) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(made.ca))


@pytest.fixture
def witness(proxy: Framegate) -> Iterator[Witness]:
    with Witness(proxy, "plain") as running:
        yield running


def closed_count(proxy: Framegate, listener: str, cause: str) -> float:
    return proxy.metric("framegate_connection_closed_total", framegate_listener=listener, framegate_cause=cause)


@contextlib.contextmanager
def closing_for(proxy: Framegate, witness: Witness, listener: str, cause: str, client: socket.socket) -> Iterator[list[Row]]:
    """What happens in the block closes the client's connection for this cause: in the log, the metric and the API. The row is given out."""
    before = closed_count(proxy, listener, cause)
    peer = peer_name(client)
    rows: list[Row] = []
    with client:
        yield rows
        row = proxy.closed_row(peer)
        rows.append(row)
        assert (row["listener"], row["cause"]) == (listener, cause)
        until(lambda: closed_count(proxy, listener, cause) == before + 1)
        assert proxy.closed_cause(row["id"]) == cause
        witness.check()


@pytest.mark.parametrize("listener", ["plain", "tls"])
def test_a_negative_size_ends_the_connection_after_the_good_frames(
    proxy: Framegate, witness: Witness, client_tls: ssl.SSLContext, listener: str
) -> None:
    client = proxy.connect(listener, client_tls if listener == "tls" else None)
    with closing_for(proxy, witness, listener, "negative_size", client):
        client.sendall(frame(b"good") + struct.pack(">i", -2))


def test_a_frame_of_the_limit_passes_and_one_above_is_refused(proxy: Framegate, witness: Witness) -> None:
    client = proxy.connect("plain")
    body = bytes(LIMIT)
    assert ask(client, body) == body
    with closing_for(proxy, witness, "plain", "frame_too_large", client) as rows:
        client.sendall(struct.pack(">i", LIMIT + 1))
    assert rows[0]["frames"]["request"] == 1


@pytest.mark.slow
def test_a_peer_that_sends_one_byte_at_a_time_is_cut_off(proxy: Framegate, witness: Witness) -> None:
    client = proxy.connect("plain")
    with closing_for(proxy, witness, "plain", "receive_stalled", client), contextlib.suppress(OSError):
        for byte in frame(bytes(100)):
            client.send(bytes([byte]))
            time.sleep(0.5)
            if proxy_closed(proxy, client):
                break


def proxy_closed(proxy: Framegate, client: socket.socket) -> bool:
    return any(row["event"] == "closed" and row["peer"] == peer_name(client) for row in proxy.rows)


@pytest.mark.slow
def test_a_peer_that_never_reads_is_cut_off(proxy: Framegate, witness: Witness) -> None:
    client = proxy.connect("plain", timeout=0.5)
    with closing_for(proxy, witness, "plain", "send_stalled", client), contextlib.suppress(OSError):
        while True:
            client.sendall(frame(bytes(LIMIT)))


@pytest.mark.slow
@pytest.mark.parametrize(("listener", "cause"), [("refused", "upstream_refused"), ("tls", "handshake_timeout")])
def test_an_upstream_that_refuses_and_a_handshake_that_does_not_end_are_named(proxy: Framegate, witness: Witness, listener: str, cause: str) -> None:
    client = proxy.connect(listener)
    with closing_for(proxy, witness, listener, cause, client):
        assert client.recv(1) == b""
