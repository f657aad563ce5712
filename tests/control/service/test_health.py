"""Probes see startup, liveness and readiness, on a port that serves nothing else."""

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from control.gen.framegate.control.v1 import proxy_service_pb2, proxy_service_pb2_grpc
from control.service.health import SERVICES
from tests.fakes.serving import Serving, run

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


async def states(stub: health_pb2_grpc.HealthStub) -> dict[str, int]:
    return {name: (await stub.Check(health_pb2.HealthCheckRequest(service=name))).status for name in SERVICES}


def test_a_drain_ends_readiness_but_not_liveness() -> None:
    async def body(at: Serving) -> None:
        async with grpc.aio.insecure_channel(str(at.service.health_address)) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            assert set((await states(stub)).values()) == {SERVING}
            at.plane.accepting = False
            assert await states(stub) == {
                "": SERVING,
                "framegate-startup": SERVING,
                "framegate-liveness": SERVING,
                "framegate-readiness": NOT_SERVING,
            }
            at.plane.alive = False
            assert (await states(stub))["framegate-liveness"] == NOT_SERVING

    run(body)


def test_a_watch_tells_every_change() -> None:
    async def body(at: Serving) -> None:
        async with grpc.aio.insecure_channel(str(at.service.health_address)) as channel:
            seen = []
            async for answer in health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service="framegate-readiness")):
                seen.append(answer.status)
                at.plane.accepting = False
                if len(seen) == 2:
                    break
            assert seen == [SERVING, NOT_SERVING]

    run(body)


def test_an_unknown_name_is_not_found_and_no_other_service_is_there() -> None:
    async def body(at: Serving) -> None:
        async with grpc.aio.insecure_channel(str(at.service.health_address)) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as unknown:
                await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service="nobody"))
            with pytest.raises(grpc.aio.AioRpcError) as foreign:
                await proxy_service_pb2_grpc.ProxyServiceStub(channel).GetProxy(proxy_service_pb2.GetProxyRequest())
            assert unknown.value.code() is grpc.StatusCode.NOT_FOUND
            assert foreign.value.code() is grpc.StatusCode.UNIMPLEMENTED

    run(body)
