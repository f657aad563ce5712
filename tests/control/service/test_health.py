"""Probes over gRPC show startup, liveness and readiness, on a port that serves nothing else."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from framegate.control import web
from framegate.control.service import health as grpc_health
from framegate.control.service.health import SERVICES
from framegate.control.status import Health
from framegate.control.v1 import proxy_service_pb2, proxy_service_pb2_grpc
from tests.control.service.served import served
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
