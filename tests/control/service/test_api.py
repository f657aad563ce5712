"""The gRPC server of the API: reflection over it, and its bounds."""

import asyncio
import contextlib

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from framegate.control.service import interceptor
from framegate.control.service.api import SERVICE_NAMES
from framegate.control.service.interceptor import MAX_CALLS, MAX_REQUEST
from framegate.control.status import UpstreamStatus
from framegate.control.v1.limit_service_pb2 import Limit, UpdateLimitRequest
from framegate.control.v1.limit_service_pb2_grpc import LimitServiceStub
from framegate.control.v1.upstream_service_pb2 import ListUpstreamsRequest
from framegate.control.v1.upstream_service_pb2_grpc import UpstreamServiceStub
from tests.control.service.served import refused, served
from tests.fakes.serving import Serving


async def reflect(channel: grpc.aio.Channel, request: reflection_pb2.ServerReflectionRequest) -> reflection_pb2.ServerReflectionResponse:
    call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo()
    await call.write(request)
    answer = await call.read()
    await call.done_writing()
    return answer


async def reflected_services(channel: grpc.aio.Channel) -> list[str]:
    answer = await reflect(channel, reflection_pb2.ServerReflectionRequest(list_services=""))
    return [service.name for service in answer.list_services_response.service]


@served()
async def test_a_reflection_client_finds_every_service_with_its_files(at: Serving) -> None:
    assert {name.rpartition(".")[2] for name in SERVICE_NAMES} == {
        "CertificateService", "ChannelService", "ConfigurationService", "EventService", "ExplanationService", "HandlerService",
        "KafkaRuleService", "LimitService", "ListenerService", "LogService", "PoolService", "ProxyService",
        "TapService", "UpstreamService", "UserService",
    }  # fmt: skip
    for name in SERVICE_NAMES:
        answer = await reflect(at.channel, reflection_pb2.ServerReflectionRequest(file_containing_symbol=name))
        file = FileDescriptorProto.FromString(answer.file_descriptor_response.file_descriptor_proto[0])
        assert name in [f"{file.package}.{service.name}" for service in file.service]


@served()
async def test_no_more_calls_than_the_bound_are_in_progress_and_who_is_refused_may_ask_again(at: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, inside = asyncio.Event(), 0

    async def wait() -> list[UpstreamStatus]:
        nonlocal inside
        inside += 1
        await gate.wait()
        return []

    monkeypatch.setattr(at.plane.parts.upstreams, "statuses", wait)
    async with contextlib.AsyncExitStack() as stack:
        options = (("grpc.use_local_subchannel_pool", 1),)  # a connection for each
        channels = [await stack.enter_async_context(grpc.aio.insecure_channel(at.service.address, options)) for _ in range(2)]
        stubs = [UpstreamServiceStub(channel) for channel in channels]
        calls = [asyncio.ensure_future(stubs[number % 2].ListUpstreams(ListUpstreamsRequest())) for number in range(MAX_CALLS)]
        while inside < MAX_CALLS:
            await asyncio.sleep(0.005)
        assert await refused(stubs[0].ListUpstreams(ListUpstreamsRequest())) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_CALLS", [])
        assert inside == MAX_CALLS
        gate.set()
        await asyncio.gather(*calls)
        await stubs[0].ListUpstreams(ListUpstreamsRequest())


@served()
async def test_a_request_above_the_bound_is_refused_by_its_size_and_one_at_it_has_a_short_row(at: Serving) -> None:
    reasons = []
    for excess in (0, 1):
        request = UpdateLimitRequest(limit=Limit(listener="kafka", max_receive_size_bytes=1))
        request.update_mask.paths.append("x" * 250_000)
        request.update_mask.paths.append("y" * (MAX_REQUEST - request.ByteSize() - 3 + excess))
        assert request.ByteSize() == MAX_REQUEST + excess
        reasons.append(await refused(LimitServiceStub(at.channel).UpdateLimit(request)))
    invalid, exhausted = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED
    assert reasons == [(invalid, "INVALID_ARGUMENT", ["update_mask"] * 2), (exhausted, "REQUEST_TOO_LARGE", [])]
    row, refusal = at.plane.audits
    assert (refusal["error"], refusal["request"]) == ("REQUEST_TOO_LARGE", None)
    assert row["request"]["update_mask"].endswith(" characters)")
    assert len(str(row)) < 20_000


@pytest.mark.parametrize("size", [MAX_REQUEST + 1, (1 << 20) + 1, 7 << 20])
@served()
async def test_a_request_that_is_far_too_large_is_refused_with_a_reason_whatever_its_method(at: Serving, *, size: int) -> None:
    exhausted = (grpc.StatusCode.RESOURCE_EXHAUSTED, "REQUEST_TOO_LARGE", [])
    for name in ("ListLimits", "UpdateLimit"):
        assert await refused(at.channel.unary_unary(f"/framegate.control.v1.LimitService/{name}")(bytes(size))) == exhausted
    assert await refused(at.channel.unary_stream("/framegate.control.v1.EventService/WatchEvents")(bytes(size)).read()) == exhausted
    assert [row["error"] for row in at.plane.audits] == ["REQUEST_TOO_LARGE"]


@served()
async def test_few_requests_are_received_at_once_and_one_that_does_not_arrive_makes_room(at: Serving, *, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interceptor, "_REQUEST_S", 0.2)
    slow = [at.channel.stream_unary("/framegate.control.v1.LimitService/ListLimits")() for _ in range(interceptor._READS)]
    await asyncio.sleep(0.1)
    quick = asyncio.ensure_future(at.channel.unary_unary("/framegate.control.v1.LimitService/ListLimits")(b""))
    await asyncio.sleep(0.05)
    assert not quick.done()
    await quick
    assert {(await refused(call))[1] for call in slow} == {"REQUEST_TOO_SLOW"}
