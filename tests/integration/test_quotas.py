"""Limit rules of a whole framegate, changed while connections are open in two processors."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.framegate import Framegate
from tests.fakes.upstream import ask


def echoes(sock: socket.socket, body: bytes = b"x") -> bool:
    """Whether a frame comes back before the connection ends."""
    try:
        return ask(sock, body) == body
    except (ConnectionError, EOFError, AssertionError):
        return False


@pytest.mark.extended
@pytest.mark.slow
def test_limit_rules_apply_to_open_connections_of_every_processor_and_are_named_in_what_is_reported(tmp_path: Path, plain: dict[str, Any]) -> None:
    base = {**plain, "listeners": [{**plain["listeners"][0], "max_receive_size": "4KiB"}], "processors": 2}
    rule = {"name": "near", "networks": ["127.0.0.0/8"], "max_receive_size": 1000}
    file = tmp_path / "rules.yaml"
    with Framegate(tmp_path, base) as proxy:
        clients = [proxy.connect("plain") for _ in range(4)]
        assert all(map(echoes, clients))
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
