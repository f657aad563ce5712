"""Probes over gRPC and HTTP show startup, liveness and readiness, on ports that serve nothing else."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from framegate.control import web
from framegate.control.errors import StartError
from framegate.control.service import health as grpc_health
from framegate.control.service.health import SERVICES
from framegate.control.service.probes import PATHS, Probes, answer_probe
from framegate.control.status import Health
from framegate.control.v1 import proxy_service_pb2, proxy_service_pb2_grpc
from framegate.proxy.config.model import HealthConfig
from tests.control.service.served import served
from tests.fakes.plane import FakePlane, fake_config
from tests.fakes.serving import Serving, run

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


@contextlib.asynccontextmanager
async def health_of(at: Serving) -> AsyncIterator[health_pb2_grpc.HealthStub]:
    async with grpc.aio.insecure_channel(str(at.service.health_address)) as channel:
        yield health_pb2_grpc.HealthStub(channel)


async def states(stub: health_pb2_grpc.HealthStub) -> dict[str, int]:
    return {name: (await stub.Check(health_pb2.HealthCheckRequest(service=name))).status for name in SERVICES}


@served()
async def test_a_drain_ends_readiness_but_not_liveness(at: Serving) -> None:
    async with health_of(at) as stub:
        assert set((await states(stub)).values()) == {SERVING}
        at.plane.accepting = False
        assert await states(stub) == {"": SERVING, "framegate-startup": SERVING, "framegate-liveness": SERVING, "framegate-readiness": NOT_SERVING}
        at.plane.alive = False
        assert (await states(stub))["framegate-liveness"] == NOT_SERVING


@served()
async def test_a_watch_tells_every_change(at: Serving) -> None:
    async with health_of(at) as stub:
        seen = []
        async for answer in stub.Watch(health_pb2.HealthCheckRequest(service="framegate-readiness")):
            seen.append(answer.status)
            at.plane.accepting = False
            if len(seen) == 2:
                break
        assert seen == [SERVING, NOT_SERVING]


@served()
async def test_an_unknown_name_is_not_found_and_no_other_service_is_there(at: Serving) -> None:
    async with grpc.aio.insecure_channel(str(at.service.health_address)) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service="nobody"))
        with pytest.raises(grpc.aio.AioRpcError) as foreign:
            await proxy_service_pb2_grpc.ProxyServiceStub(channel).GetProxy(proxy_service_pb2.GetProxyRequest())
        assert unknown.value.code() is grpc.StatusCode.NOT_FOUND
        assert foreign.value.code() is grpc.StatusCode.UNIMPLEMENTED


@contextlib.asynccontextmanager
async def watching(at: Serving, service: str = "framegate-readiness") -> AsyncIterator[Any]:
    """A watch over a connection of its own, whose first answer has come."""
    async with grpc.aio.insecure_channel(str(at.service.health_address), options=(("grpc.use_local_subchannel_pool", 1),)) as channel:
        call = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=service))
        assert (await call.read()).status == SERVING
        yield call


def test_watches_are_bounded_and_checks_are_not_kept_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_health, "MAX_WATCHES", 3)
    seen: list[tuple[str, str]] = []

    async def body(at: Serving) -> None:
        async with contextlib.AsyncExitStack() as others:
            for _ in range(2):
                await others.enter_async_context(watching(at))
            async with watching(at) as last:
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    async with watching(at):
                        pass
                assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
                async with health_of(at) as stub:
                    assert set((await states(stub)).values()) == {SERVING}
                last.cancel()
            while True:  # the place is free as soon as the server has seen the end
                with contextlib.suppress(grpc.aio.AioRpcError):
                    await others.enter_async_context(watching(at))
                    break
            at.plane.accepting = False

    run(body, lambda method, code, seconds: seen.append((method, code)))
    assert set(seen) == {("grpc.health.v1.Health/Watch", "RESOURCE_EXHAUSTED")}


def test_one_poll_serves_all_who_watch_and_there_is_none_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_health, "WATCH_INTERVAL", 0.02)

    async def body(at: Serving) -> None:
        asked = 0
        sound = at.plane.health

        def health() -> Health:
            nonlocal asked
            asked += 1
            if asked == 30:
                raise ValueError("our bug")
            return sound()

        async with contextlib.AsyncExitStack() as stack:
            calls = [await stack.enter_async_context(watching(at)) for _ in range(10)]
            monkeypatch.setattr(at.plane, "health", health)
            began = asyncio.get_running_loop().time()
            while asked < 40:
                await asyncio.sleep(0.01)
            assert asyncio.get_running_loop().time() - began > 0.4, "ten watches ask no more often than one"
            at.plane.accepting = False
            assert [(await call.read()).status for call in calls] == [NOT_SERVING] * 10
        while any(task.get_coro().__name__ == "_poll" for task in asyncio.all_tasks()):
            await asyncio.sleep(0.01)

    run(body)


@pytest.mark.parametrize("said", [b"", b"PRI * HTTP/2.0\r\n\r\n"])
def test_connections_that_say_nothing_are_closed_and_bounded(monkeypatch: pytest.MonkeyPatch, said: bytes) -> None:
    options = {**dict(grpc_health._OPTIONS), "grpc.server_handshake_timeout_ms": 300}
    monkeypatch.setattr(grpc_health, "_OPTIONS", tuple(options.items()))
    monkeypatch.setattr(web, "TIME_LIMIT_S", 0.3)
    monkeypatch.setattr(web, "MAX_CONNECTIONS", 20)

    def ended(idle: socket.socket) -> bool:
        with contextlib.suppress(ConnectionError):
            while idle.recv(4096):  # what the server says first
                pass
        return True

    async def body(at: Serving) -> None:
        host, _, port = str(at.service.health_address).rpartition(":")
        connections = [socket.create_connection((host, int(port)), 10) for _ in range(50)]
        for idle in connections:
            with contextlib.suppress(ConnectionError):  # above the bound they are closed at once
                idle.sendall(said)
        assert all(await asyncio.gather(*(asyncio.to_thread(ended, idle) for idle in connections)))
        for idle in connections:
            idle.close()
        async with health_of(at) as stub:
            assert set((await states(stub)).values()) == {SERVING}

    run(body)


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
