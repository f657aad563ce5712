"""Connection quotas of a whole framegate: real processors, limits changed under load. Numbers are those of the reference's list."""

import contextlib
import json
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.framegate import Framegate, Witness
from tests.fakes.upstream import ask, frame, peer_name, read_frame

REFUSED = "framegate_connection_rejected_total"


def listeners(base: dict[str, Any], /, **limits: dict[str, Any]) -> list[dict[str, Any]]:
    """Listeners like the plain one, with these names and limits."""
    return [{**base["listeners"][0], "name": name, "limits": given} for name, given in limits.items()]


def echoes(sock: socket.socket, body: bytes = b"x") -> bool:
    """Whether a frame comes back before the connection ends."""
    try:
        return ask(sock, body) == body
    except (ConnectionError, EOFError, AssertionError):
        return False


def opened(proxy: Framegate, listener: str, count: int) -> list[socket.socket]:
    made = [proxy.connect(listener) for _ in range(count)]
    assert all(echoes(sock) for sock in made)
    return made


def closed_by(sock: socket.socket) -> None:
    with contextlib.suppress(ConnectionResetError):
        assert sock.recv(1) == b""


@pytest.mark.extended
@pytest.mark.slow
def test_limits_under_load_are_raised_lowered_and_removed(tmp_path: Path, plain: dict[str, Any]) -> None:
    """Numbers 182, 185 and 192: while frames pass on another connection."""
    config = {**plain, "processors": 2, "limits": {"per_address": {"connections": 6}}, "listeners": listeners(plain, plain={}, other={})}
    with Framegate(tmp_path, config) as proxy, Witness(proxy, "other") as witness:
        first = opened(proxy, "plain", 5)
        closed_by(proxy.connect("plain"))
        assert proxy.metric(REFUSED, framegate_listener="plain", framegate_reason="address_connections") == 1
        assert proxy.cli("limits", "set", "--network", "127.0.0.0/8", "--connections", "7").returncode == 0
        opened_now = opened(proxy, "plain", 1)[0]
        assert proxy.cli("limits", "set", "--network", "127.0.0.0/8", "--remove").returncode == 0
        closed_by(proxy.connect("plain"))
        assert proxy.cli("limits", "set", "--per-address", "--connections", "0").returncode == 0
        assert proxy.cli("limits", "set", "--listener", "plain", "--connections", "6").returncode == 0
        waits = proxy.connect("plain")
        waits.sendall(frame(b"late"))
        row = proxy.wait_row(lambda row: row["event"] == "accept_waits")
        assert row["key"] == "listeners[plain].limits.connections"
        peer = peer_name(opened_now)
        opened_now.close()
        assert read_frame(waits) == b"late"
        proxy.closed_row(peer)
        assert all(echoes(sock) for sock in (*first, waits))
        witness.stop()


@pytest.mark.extended
@pytest.mark.slow
def test_a_storm_on_the_protected_listener_closes_the_idlest_of_the_other(tmp_path: Path, plain: dict[str, Any]) -> None:
    """Numbers 186 and 194."""
    limits = {"connections": 8, "protected_listener": "brokers"}
    config = {**plain, "limits": limits, "listeners": listeners(plain, clients={}, brokers={})}
    with Framegate(tmp_path, config) as proxy:
        clients = opened(proxy, "clients", 8)
        for sock in (clients[5], clients[2], clients[7]):  # who moved last; the others are idle since they came
            time.sleep(0.005)
            assert echoes(sock)
        waits = proxy.connect("clients")
        waits.sendall(frame(b"late"))
        brokers = opened(proxy, "brokers", 5)
        for sock in (clients[0], clients[1], clients[3], clients[4], clients[6]):
            row = proxy.closed_row(sock)
            assert (row["cause"], row["listener"], row["side"]) == ("limit", "clients", "internal")
        assert all(echoes(sock) for sock in (clients[5], clients[2], clients[7], *brokers))
        waits.settimeout(0.3)
        with pytest.raises(TimeoutError):
            waits.recv(1)
        waits.settimeout(10)
        brokers[0].close()
        assert read_frame(waits) == b"late"
        assert proxy.metric("framegate_connection_closed_total", framegate_cause="limit") == 5


@pytest.mark.extended
@pytest.mark.slow
def test_limit_rules_apply_to_open_connections_of_every_processor_and_are_named_in_what_is_reported(tmp_path: Path, plain: dict[str, Any]) -> None:
    base = {**plain, "listeners": [{**plain["listeners"][0], "max_receive_size": "4KiB"}], "processors": 2}
    rule = {"name": "near", "networks": ["127.0.0.0/8"], "max_receive_size": 1000}
    file = tmp_path / "rules.yaml"
    with Framegate(tmp_path, base) as proxy:
        clients = opened(proxy, "plain", 4)
        file.write_text(json.dumps({"rules": [{**rule, "report_only": True}]}))
        assert proxy.cli("limits", "set", "--listener", "plain", "--rules", str(file)).returncode == 0
        assert {row["limit_rule"] for row in proxy.json("channels", "list")} == {"near"}
        assert all(echoes(sock, bytes(size)) for sock in clients for size in (1000, 1001, 4096))
        assert proxy.metric("framegate_frame_reported_total") == 8
        told = proxy.json("listeners", "refused", "plain")
        assert {(row["limit_rule"], row["limit_bytes"], row["report_only"]) for row in told} == {("near", 1000, True)}
        assert {row["size_bytes"] for row in told} <= {1001, 4096}
        assert not echoes(clients[0], bytes(4097))
        assert "exceeds the limit of 4096" in proxy.closed_row(clients[0])["detail"]
        file.write_text(json.dumps({"rules": [rule]}))
        assert proxy.cli("limits", "set", "--listener", "plain", "--rules", str(file)).returncode == 0
        assert all(echoes(sock, bytes(1000)) for sock in clients[1:])
        assert not echoes(clients[1], bytes(1001))
        assert proxy.closed_row(clients[1])["detail"].endswith("exceeds the limit of 1000 of the limit rule near")
        newest = proxy.json("listeners", "refused", "plain")[0]
        assert (newest["limit_rule"], newest["size_bytes"], newest["report_only"]) == ("near", 1001, False)
        assert "limit rule near" in proxy.cli("explain", proxy.json("channels", "list")[0]["id"]).stdout
        assert proxy.cli("config", "apply").returncode == 0, "the file has no rules"
        assert echoes(clients[2], bytes(4096))
        assert {row["limit_rule"] for row in proxy.json("channels", "list")} == {""}
