"""Every call is measured; every change leaves an audit row; errors arrive with their details."""

import asyncio
import gc
import json
import logging
import math
import types
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from framegate.control.errors import AbortedError, ControlError, UnavailableError
from framegate.control.service import interceptor
from framegate.control.service.access import METHODS
from framegate.control.service.interceptor import CLIENT_KEY
from framegate.control.v1 import channel_service_pb2 as pb2
from framegate.control.v1.channel_service_pb2_grpc import ChannelServiceStub
from framegate.control.v1.limit_service_pb2 import Limit, UpdateLimitRequest
from framegate.control.v1.limit_service_pb2_grpc import LimitServiceStub
from tests.control.service.served import failure_of, refused, served
from tests.fakes.plane import channel_row
from tests.fakes.serving import Serving, run

MUTE = pb2.MuteChannelsRequest(selector=pb2.ChannelSelector(filter="listener=kafka"), reason="incident 7")
METHOD = "framegate.control.v1.ChannelService/MuteChannels"


@served()
async def test_a_change_leaves_an_audit_row_and_a_look_does_not(at: Serving) -> None:
    at.plane.add(channel_row("0-1-7"))
    stub = ChannelServiceStub(at.channel)
    await stub.ListChannels(pb2.ListChannelsRequest())
    await stub.MuteChannels(MUTE, metadata=((CLIENT_KEY, "ada on a laptop"),))
    (row,) = at.plane.audits
    assert (row["event"], row["method"], row["client"], row["result"], row["error"]) == ("audit", METHOD, "ada on a laptop", "OK", "")
    assert row["request"] == {"selector": {"filter": "listener=kafka"}, "reason": "incident 7"}
    assert row["after"] == {"affected": ["0-1-7"], "affected_count": 1, "missing": []}
    assert row["who"]


@served()
async def test_an_error_of_the_plane_arrives_with_its_details_and_is_audited(at: Serving) -> None:
    at.plane.failure = AbortedError("processor 1 was silent", reason="PROCESSOR_SILENT", slot="1")
    failure = await failure_of(ChannelServiceStub(at.channel).MuteChannels(MUTE))
    info = error_details_pb2.ErrorInfo()
    assert rpc_status.from_call(failure).details[0].Unpack(info)
    assert (failure.code(), info.reason, dict(info.metadata)) == (grpc.StatusCode.ABORTED, "PROCESSOR_SILENT", {"slot": "1"})
    (row,) = at.plane.audits
    assert (row["result"], row["error"], at.plane.audit_places) == ("ABORTED", "PROCESSOR_SILENT", 0)


@served()
async def test_a_change_that_cannot_be_audited_is_refused_unless_it_is_urgent_while_looks_go_on(at: Serving) -> None:
    at.plane.add(channel_row("0-1-7"))
    stub, limits = ChannelServiceStub(at.channel), LimitServiceStub(at.channel)
    at.plane.audit_failure = UnavailableError("stdout is not read", reason="AUDIT_BLOCKED")
    blocked = (grpc.StatusCode.UNAVAILABLE, "AUDIT_BLOCKED", [])
    assert await refused(stub.CloseChannels(pb2.CloseChannelsRequest(selector=MUTE.selector))) == blocked
    for size in (4096, 4097):
        request = UpdateLimitRequest(limit=Limit(listener="kafka", max_receive_size_bytes=size))
        call = limits.UpdateLimit(request)
        if size == 4096:
            assert (await call).limit.max_receive_size_bytes == size, "it is lowered"
        else:
            assert await refused(call) == blocked
    assert len((await stub.ListChannels(pb2.ListChannelsRequest())).channels) == 1
    await stub.MuteChannels(MUTE)
    assert [(row["result"], row["after"] is not None) for row in at.plane.audits] == [("OK", True), ("UNAVAILABLE", False), ("OK", True)]
    at.plane.audit_failure = None
    await limits.UpdateLimit(request)
    assert (at.plane.limits["kafka"], at.plane.audit_places) == (4097, 0)


@served()
async def test_refused_and_cancelled_calls_leave_no_errors_and_no_frames_in_memory(at: Serving) -> None:
    stub = ChannelServiceStub(at.channel)

    def errors() -> list[object]:
        gc.collect()
        return [item for item in gc.get_objects() if isinstance(item, (ControlError, grpc.aio.AbortError))]

    before = errors()  # of other tests
    for number in range(60):
        call = stub.MuteChannels(pb2.MuteChannelsRequest()) if number % 3 else at.channel.unary_unary(f"/{METHOD}")(b"\xff\xff\xff")
        if number % 2:
            await failure_of(call)
        else:
            await asyncio.sleep(0.001)
            call.cancel()
    await asyncio.sleep(0.1)
    held = [item for item in errors() if not any(item is other for other in before)]
    frames = [item for item in gc.get_objects() if isinstance(item, types.FrameType) and item.f_code.co_filename == interceptor.__file__]
    assert (held, frames) == ([], [])


@pytest.mark.parametrize(("method", "audited"), [(METHOD, True), (METHOD.replace("MuteChannels", "ListChannels"), False)])
def test_bytes_that_are_no_request_are_an_invalid_argument_and_audited_like_any_other_call(method: str, audited: bool) -> None:
    seen: list[tuple[str, str]] = []

    async def body(at: Serving) -> None:
        answer = await refused(at.channel.unary_unary(f"/{method}")(b"\xff\xff\xff"))
        assert answer == (grpc.StatusCode.INVALID_ARGUMENT, "REQUEST_MALFORMED", [])
        told = [(row["method"], row["request"], row["result"], row["error"]) for row in at.plane.audits]
        assert told == [(METHOD, None, "INVALID_ARGUMENT", "REQUEST_MALFORMED")] * audited
        assert (at.plane.asked, at.plane.audit_places) == ([], 0)

    run(body, lambda method, code, seconds: seen.append((method, code)))
    assert seen == [(method, "INVALID_ARGUMENT")]


def test_unknown_methods_are_measured_as_one() -> None:
    seen: list[tuple[str, str]] = []

    async def body(at: Serving) -> None:
        for method in ("framegate.control.v1.ChannelService/Nothing", "a.B/C", "x"):
            error = await failure_of(at.channel.unary_unary(f"/{method}")(b"anything"))
            assert error.code() is grpc.StatusCode.UNIMPLEMENTED
            assert str(error.details()).startswith("there is no method")
        call = at.channel.stream_stream("/a.B/Stream")()
        with pytest.raises(grpc.aio.AioRpcError):
            await call.read()
        assert at.plane.audits == []

    run(body, lambda method, code, seconds: seen.append((method, code)))
    assert seen == [("_OTHER", "UNIMPLEMENTED")] * 4


def test_a_bug_is_internal_audited_and_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async def body(at: Serving) -> None:
        at.plane.failure = ZeroDivisionError("secret")
        failure = await failure_of(ChannelServiceStub(at.channel).MuteChannels(MUTE))
        assert failure.code() is grpc.StatusCode.INTERNAL
        assert "secret" not in str(failure.details())
        assert ([row["result"] for row in at.plane.audits], at.plane.audit_places) == (["INTERNAL"], 0)

    with caplog.at_level(logging.ERROR, "framegate.control.service.interceptor"):
        run(body)
    assert "secret" in caplog.text


def test_every_call_is_measured_by_method_and_code() -> None:
    seen: list[tuple[str, str]] = []

    async def body(at: Serving) -> None:
        await ChannelServiceStub(at.channel).ListChannels(pb2.ListChannelsRequest())
        with pytest.raises(grpc.aio.AioRpcError):
            await ChannelServiceStub(at.channel).GetChannel(pb2.GetChannelRequest(id="0-1-1"))

    run(body, lambda method, code, seconds: seen.append((method, code)) if 0 <= seconds < 5 else None)
    prefix = "framegate.control.v1.ChannelService"
    assert seen == [(f"{prefix}/ListChannels", "OK"), (f"{prefix}/GetChannel", "NOT_FOUND")]


_ENDS: dict[int, tuple[Any, Any]] = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_DOUBLE: (math.nan, math.inf),
    FieldDescriptor.CPPTYPE_BOOL: (False, True),
    FieldDescriptor.CPPTYPE_ENUM: (-(2**31), 2**31 - 1),
}


def fill(message: Message, end: int, only: str = "") -> Message:
    """Set every field of a message, and of those in it, to its least (0) or greatest (1) value; ``only``: one field of it."""
    for field in message.DESCRIPTOR.fields:
        if only and field.name != only:
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            getattr(message, field.name)["maxReceiveSize\0\u2028"] = _ENDS[field.message_type.fields_by_name["value"].cpp_type][end]
        elif field.message_type is not None:
            inner = getattr(message, field.name)
            fill(inner.add() if field.is_repeated else inner, end)
        else:
            texts = ("maxReceiveSizeBytes", "\0\u2028\U0010ffff")
            value = _ENDS[field.cpp_type][end] if field.cpp_type in _ENDS else texts[end] if field.type == field.TYPE_STRING else b"\xff"
            if field.is_repeated:
                getattr(message, field.name).append(value)
            else:
                setattr(message, field.name, value)
    return message


def streams(method: str) -> bool:
    service, _, name = method.partition("/")
    return bool(descriptor_pool.Default().FindServiceByName(service).methods_by_name[name].server_streaming)


def extremes(method: str) -> Iterator[Message]:
    """Requests of a method at the ends of what its fields can say."""
    service, _, name = method.partition("/")
    described = descriptor_pool.Default().FindServiceByName(service).methods_by_name[name].input_type
    kind = message_factory.GetMessageClass(described)
    for end in (0, 1):
        yield fill(kind(), end)
        yield from (fill(kind(), end, field.name) for field in described.fields)
        for field in described.fields:
            if field.message_type is not None and not field.is_repeated:
                for inner in field.message_type.fields:
                    request = kind()
                    fill(getattr(request, field.name), end, inner.name)
                    yield request


@pytest.mark.slow
@served()
async def test_whatever_a_request_says_its_call_has_an_answer_and_its_audit_row_a_place(at: Serving) -> None:
    for method, access in METHODS.items():
        for request in extremes(method):
            at.plane.audits.clear()
            try:
                if streams(method):
                    await at.channel.unary_stream(f"/{method}")(request.SerializeToString()).read()
                else:
                    await at.channel.unary_unary(f"/{method}")(request.SerializeToString())
                code = grpc.StatusCode.OK
            except grpc.aio.AioRpcError as error:
                code = error.code()
            assert code not in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN), f"{method}: {request}"
            assert [row["result"] for row in at.plane.audits] == [code.name] * access.audited, f"{method}: {request}"
            assert at.plane.audit_places == 0, method
            json.dumps(at.plane.audits, allow_nan=False)


def test_a_failure_of_the_measuring_does_not_fail_the_call() -> None:
    def observe(method: str, code: str, seconds: float) -> None:
        raise ZeroDivisionError

    async def body(at: Serving) -> None:
        at.plane.add(channel_row("0-1-7"))
        await ChannelServiceStub(at.channel).MuteChannels(MUTE)
        assert ([row["result"] for row in at.plane.audits], at.plane.audit_places) == (["OK"], 0)

    run(body, observe)
