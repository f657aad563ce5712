"""Probes over HTTP show startup, liveness and readiness, as those over gRPC on the same port do (test_health)."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from framegate.control.errors import StartError
from framegate.control.service.health import SERVICES
from framegate.control.service.probes import PATHS, Probes, answer_probe
from framegate.control.status import Health
from framegate.proxy.config.model import HealthConfig
from tests.fakes.plane import FakePlane, fake_config

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


GOOD = Health(started=True, alive=True, ready=True)
BAD = Health(started=False, alive=False, ready=False, problems=("processor 0 has not moved for 7000 ms", "framegate is starting"))


def asked(line: bytes, health: Health = GOOD) -> tuple[int, str, str]:
    """Status, headers and body."""
    head, _, body = answer_probe(line + b"\r\nHost: x\r\n\r\n", health).decode().partition("\r\n\r\n")
    return int(head.split()[1]), head, body


@pytest.mark.parametrize("path", PATHS)
def test_each_path_is_200_or_503_with_why_not(path: str) -> None:
    line = f"GET {path} HTTP/1.1".encode()
    assert asked(line)[::2] == (200, "ok\n")
    expected = f"not {PATHS[path]}: processor 0 has not moved for 7000 ms; framegate is starting\n"
    assert asked(line, BAD)[::2] == (503, expected)
    assert asked(line.replace(b" HTTP", b"?verbose=1 HTTP"))[0] == 200


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (b"GET / HTTP/1.1", 404),
        (b"GET /readyz HTTP/1.1", 404),
        (b"GET /ready/ HTTP/1.1", 404),
        (b"POST /metrics HTTP/1.1", 404),
        (b"POST /ready HTTP/1.1", 405),
        (b"get /ready HTTP/1.1", 405),
        (b"GET /ready HTTP/2.0", 505),
        (b"GET /ready", 400),
        (b"GET  /ready HTTP/1.1", 400),
        (b"GET ready HTTP/1.1", 400),
        (b"GET /ready XTTP/1.1", 400),
        (b"", 400),
        (b"\x16\x03\x01\xff GET /ready", 400),
    ],
)
def test_anything_else_gets_a_status_that_says_what_is_wrong(line: bytes, status: int) -> None:
    assert asked(line)[0] == status
    assert asked(line)[2].endswith("\n")


async def over_http(address: str | None, path: str) -> int:
    host, _, port = str(address).rpartition(":")
    reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    return int(answer.split()[1])


def with_probes(tmp_path: Path, body: Any, http_address: str | None = "127.0.0.1:0") -> None:
    async def main() -> None:
        plane = FakePlane(fake_config("unix:unused", None))
        probes = Probes(plane, HealthConfig(address="127.0.0.1:0", http_address=http_address), tmp_path)  # type: ignore[arg-type]
        await probes.start()
        try:
            await asyncio.wait_for(body(plane, probes), 20)
        finally:
            await probes.stop()
            plane.close()

    asyncio.run(main())


@pytest.mark.parametrize("address", ["127.0.0.1:0", "[::1]:0"])
def test_both_listeners_and_both_protocols_agree_at_any_time(tmp_path: Path, address: str) -> None:
    facts = {"alive": "/healthz", "ready": "/ready", "started": "/startup"}

    async def body(plane: FakePlane, probes: Probes) -> None:
        async with grpc.aio.insecure_channel(str(probes.address)) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            for plane.started, plane.alive, plane.accepting in ((True, True, True), (False, True, True), (True, False, True), (True, True, False)):
                for service, fact in SERVICES.items():
                    serving = (await stub.Check(health_pb2.HealthCheckRequest(service=service))).status == health_pb2.HealthCheckResponse.SERVING
                    codes = [await over_http(each, facts[fact]) for each in (probes.address, probes.http_address)]
                    assert codes == [200 if serving else 503] * 2, fact

    with_probes(tmp_path, body, address)


def test_there_is_no_second_listener_unless_it_is_configured(tmp_path: Path) -> None:
    async def body(plane: FakePlane, probes: Probes) -> None:
        assert probes.http_address is None

    with_probes(tmp_path, body, None)


def test_an_address_that_cannot_be_bound_ends_the_start_and_leaves_nothing() -> None:
    async def main() -> None:
        plane = FakePlane(fake_config("unix:unused", None))
        taken = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
        used = f"127.0.0.1:{taken.sockets[0].getsockname()[1]}"
        free = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
        port = free.sockets[0].getsockname()[1]
        free.close()
        with pytest.raises(StartError, match=f"health listener cannot bind {used}"):
            Probes(plane, HealthConfig(address=f"127.0.0.1:{port}", http_address=used), Path())  # type: ignore[arg-type]
        (await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", port)).close()
        taken.close()
        plane.close()

    asyncio.run(main())
