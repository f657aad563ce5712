"""A whole framegate: what it says when it serves, its listeners, its memory, health."""

import fcntl
import json
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from framegate.control.v1 import limit_service_pb2 as limits_pb2
from framegate.control.v1.limit_service_pb2_grpc import LimitServiceStub
from tests.fakes.framegate import Framegate, resident_bytes
from tests.fakes.upstream import ask

MIB = 1024 * 1024


HEALTH = {"address": "127.0.0.1:0", "http_address": "127.0.0.1:0"}


@pytest.mark.slow
def test_one_whole_framegate(tmp_path: Path, plain: dict[str, Any]) -> None:
    base = plain["listeners"][0]
    listeners = [base, {**base, "name": "six", "address": "[::]:0"}, {**base, "name": "local", "address": "unix:data.sock"}]
    with Framegate(tmp_path, {**plain, "processors": 2, "listeners": listeners, "health": HEALTH}) as proxy:
        assert set(proxy.serving["listeners"]) == {"plain", "six", "local"}
        assert proxy.serving["listeners"]["local"] == f"unix:{tmp_path}/data.sock"
        check_sizes(proxy)
        check_health(proxy)
        check_every_listener(proxy, tmp_path)
        with urllib.request.urlopen(f"http://{proxy.serving['prometheus']}/metrics", timeout=10) as answer:
            assert answer.status == 200
    assert proxy.process.returncode == 0
    assert proxy.rows[-1]["event"] == "stopped"
    assert not [row for row in proxy.rows if row["level"] == "error"]
    assert proxy.errors == ""


def check_sizes(proxy: Framegate) -> None:
    assert resident_bytes(proxy.process.pid) <= 45 * MIB, "gRPC is loaded later"
    assert "libssl" not in Path(f"/proc/{proxy.process.pid}/maps").read_text(), "control terminates no TLS here"
    for pid in proxy.processors:
        assert resident_bytes(pid) <= 28 * MIB


def check_health(proxy: Framegate) -> None:
    with grpc.insecure_channel(proxy.serving["health"]) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for service in ("framegate-startup", "framegate-liveness", "framegate-readiness"):
            assert stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=5).status == health_pb2.HealthCheckResponse.SERVING
    for path in ("healthz", "ready", "startup"):
        with urllib.request.urlopen(f"http://{proxy.serving['health_http']}/{path}", timeout=5) as answer:
            assert (answer.status, answer.read()) == (200, b"ok\n")


def check_every_listener(proxy: Framegate, folder: Path) -> None:
    port = int(proxy.serving["listeners"]["six"].rpartition(":")[2])
    for family, address in (
        (socket.AF_INET, proxy.address("plain")),
        (socket.AF_INET6, ("::1", port)),
        (socket.AF_INET, ("127.0.0.1", port)),
        (socket.AF_UNIX, str(folder / "data.sock")),
    ):
        with socket.socket(family) as client:
            client.settimeout(10)
            client.connect(address)
            assert ask(client, b"hello") == b"hello"
            if family != socket.AF_UNIX:
                name = client.getsockname()[:2]
                peer = ("[{}]:{}" if family == socket.AF_INET6 else "{}:{}").format(*name)
            else:
                peer = "unix:"
        assert proxy.closed_row(peer)["cause"] == "peer_closed"


@pytest.mark.slow
def test_while_stdout_is_not_read_nothing_is_changed_and_traffic_goes_on(tmp_path: Path, plain: dict[str, Any]) -> None:
    two = "import functools, sys; from framegate.control import serve; serve.RowLog = functools.partial(serve.RowLog, places=2); "
    config = tmp_path / "framegate.yaml"
    admin = f"unix:{tmp_path}/admin.sock"
    config.write_text(json.dumps({"node": "n", "processors": 1, "admin": {"address": admin}, **plain}))
    command = [sys.executable, "-c", f"{two} sys.exit(serve.serve({str(config)!r}))"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, 4096)
        try:
            serving: dict[str, Any] = {}
            while serving.get("event") != "serving":
                serving = json.loads(process.stdout.readline())
            changes, refusal = change_until_refused(admin)
            assert (refusal.code(), "audit row cannot be written" in str(refusal.details())) == (grpc.StatusCode.UNAVAILABLE, True)
            host, _, port = serving["listeners"]["plain"].rpartition(":")
            with socket.create_connection((host, int(port)), 10) as client:
                assert ask(client, b"hello") == b"hello"
            process.terminate()
            rows = [json.loads(line) for line in process.communicate(timeout=20)[0].splitlines()]
        finally:
            process.kill()
    assert len([row for row in rows if row["event"] == "audit" and row["result"] == "OK"]) == changes > 2
    assert (rows[-1]["event"], process.returncode) == ("stopped", 0)


def change_until_refused(admin: str) -> tuple[int, grpc.RpcError]:
    """How many changes were made, and what the one after them was told."""
    with grpc.insecure_channel(admin) as channel:
        for number in range(200):
            raised = limits_pb2.Limit(listener="plain", max_receive_size_bytes=1000 + number)  # a limit that is lowered needs no row
            try:
                LimitServiceStub(channel).UpdateLimit(limits_pb2.UpdateLimitRequest(limit=raised), timeout=10)
            except grpc.RpcError as error:
                return number, error
    raise AssertionError("nothing was refused")
