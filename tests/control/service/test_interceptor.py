"""Every call is measured; every change leaves an audit row; errors arrive with their details."""

import contextlib
import logging

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from control.errors import AbortedError, UnavailableError
from control.gen.framegate.control.v1 import channel_service_pb2 as pb2
from control.gen.framegate.control.v1 import (
    limit_service_pb2,
    listener_service_pb2,
    pool_service_pb2,
    proxy_service_pb2,
    upstream_service_pb2,
    user_service_pb2,
)
from control.gen.framegate.control.v1.channel_service_pb2_grpc import ChannelServiceStub
from control.service.interceptor import CLIENT_KEY, shown
from tests.fakes.plane import channel_row
from tests.fakes.serving import Serving, run

MUTE = pb2.MuteChannelsRequest(selector=pb2.ChannelSelector(listener="kafka"), reason="incident 7")
METHOD = "framegate.control.v1.ChannelService/MuteChannels"


def test_a_change_leaves_an_audit_row_and_a_look_does_not() -> None:
    async def body(at: Serving) -> None:
        at.plane.add(channel_row("0-1-7"))
        stub = ChannelServiceStub(at.channel)
        await stub.ListChannels(pb2.ListChannelsRequest())
        await stub.MuteChannels(MUTE, metadata=((CLIENT_KEY, "ada on a laptop"),))
        (row,) = at.plane.audits
        assert (row["event"], row["method"], row["client"], row["result"], row["error"]) == ("audit", METHOD, "ada on a laptop", "OK", "")
        assert row["request"] == {"selector": {"listener": "kafka"}, "reason": "incident 7"}
        assert row["after"] == {"affected": ["0-1-7"], "missing": []}
        assert row["who"]

    run(body)


def test_an_error_of_the_plane_arrives_with_its_details_and_is_audited() -> None:
    async def body(at: Serving) -> None:
        at.plane.failure = AbortedError("processor 1 was silent", reason="PROCESSOR_SILENT", slot="1")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await ChannelServiceStub(at.channel).MuteChannels(MUTE)
        info = error_details_pb2.ErrorInfo()
        assert rpc_status.from_call(caught.value).details[0].Unpack(info)
        assert (caught.value.code(), info.reason, dict(info.metadata)) == (grpc.StatusCode.ABORTED, "PROCESSOR_SILENT", {"slot": "1"})
        (row,) = at.plane.audits
        assert (row["result"], row["error"]) == ("ABORTED", "PROCESSOR_SILENT")

    run(body)


def test_a_change_that_cannot_be_audited_is_refused_and_not_made_while_looks_go_on() -> None:
    async def body(at: Serving) -> None:
        at.plane.add(channel_row("0-1-7"))
        stub = ChannelServiceStub(at.channel)
        at.plane.audit_failure = UnavailableError("stdout is not read", reason="AUDIT_BLOCKED")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.MuteChannels(MUTE)
        assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.UNAVAILABLE, "stdout is not read")
        assert (at.plane.asked, at.plane.audits) == ([], [])
        assert len((await stub.ListChannels(pb2.ListChannelsRequest())).channels) == 1
        at.plane.audit_failure = None
        await stub.MuteChannels(MUTE)
        assert (len(at.plane.audits), at.plane.audit_places) == (1, 0)

    run(body)


async def refused(at: Serving, method: str, data: bytes = b"") -> grpc.aio.AioRpcError:
    """The end of a call with those bytes."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await at.channel.unary_unary(f"/{method}")(data)
    return caught.value


@pytest.mark.parametrize(("method", "audited"), [(METHOD, True), (METHOD.replace("MuteChannels", "ListChannels"), False)])
def test_bytes_that_are_no_request_are_an_invalid_argument_and_audited_like_any_other_call(method: str, audited: bool) -> None:
    seen: list[tuple[str, str]] = []

    async def body(at: Serving) -> None:
        error = await refused(at, method, b"\xff\xff\xff")
        info = error_details_pb2.ErrorInfo()
        assert rpc_status.from_call(error).details[0].Unpack(info)
        assert (error.code(), info.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "REQUEST_MALFORMED")
        told = [(row["method"], row["request"], row["result"], row["error"]) for row in at.plane.audits]
        assert told == [(METHOD, None, "INVALID_ARGUMENT", "REQUEST_MALFORMED")] * audited
        assert (at.plane.asked, at.plane.audit_places) == ([], 0)

    run(body, lambda method, code, seconds: seen.append((method, code)))
    assert seen == [(method, "INVALID_ARGUMENT")]


def test_methods_that_there_are_not_are_measured_as_one() -> None:
    seen: list[tuple[str, str]] = []

    async def body(at: Serving) -> None:
        for method in ("framegate.control.v1.ChannelService/Nothing", "a.B/C", "x"):
            error = await refused(at, method, b"anything")
            assert (error.code(), error.details()) == (grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
        call = at.channel.stream_stream("/a.B/Stream")()
        with pytest.raises(grpc.aio.AioRpcError):
            await call.read()
        assert at.plane.audits == []

    run(body, lambda method, code, seconds: seen.append((method, code)))
    assert seen == [("_OTHER", "UNIMPLEMENTED")] * 4


def test_each_place_for_an_audit_row_is_used_however_the_call_ends() -> None:
    async def body(at: Serving) -> None:
        stub = ChannelServiceStub(at.channel)
        for failure in (AbortedError("no", reason="NO"), ZeroDivisionError()):
            at.plane.failure = failure
            with pytest.raises(grpc.aio.AioRpcError):
                await stub.MuteChannels(MUTE)
        assert ([row["result"] for row in at.plane.audits], at.plane.audit_places) == (["ABORTED", "INTERNAL"], 0)

    run(body)


def test_a_bug_is_internal_and_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async def body(at: Serving) -> None:
        at.plane.failure = ZeroDivisionError("secret")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await ChannelServiceStub(at.channel).MuteChannels(MUTE)
        assert caught.value.code() is grpc.StatusCode.INTERNAL
        assert "secret" not in str(caught.value.details())

    with caplog.at_level(logging.ERROR, "control.service.interceptor"):
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


def rpcs() -> list[str]:
    """Every method of the API, ``package.Service/Method``."""
    modules = (pb2, limit_service_pb2, listener_service_pb2, pool_service_pb2, proxy_service_pb2, upstream_service_pb2)
    services = [service for module in modules for service in module.DESCRIPTOR.services_by_name.values()]
    return [f"{service.full_name}/{method.name}" for service in services for method in service.methods]


def test_each_call_that_changes_something_is_audited_whatever_came_of_it() -> None:
    """Sent empty, most are refused; a row says that, too."""

    async def body(at: Serving) -> None:
        for method in rpcs():
            with contextlib.suppress(grpc.aio.AioRpcError):
                await at.channel.unary_unary(f"/{method}")(b"")
        assert [row["method"].rpartition("/")[2] for row in at.plane.audits] == [
            "MuteChannels",
            "UnmuteChannels",
            "CloseChannels",
            "UpdateLimit",
            "UpdateNodeLimits",
            "UpdateMemoryPool",
            "UpdateProcessorPool",
            "DrainProxy",
        ]
        assert {row["method"]: row["result"] for row in at.plane.audits}["framegate.control.v1.ProxyService/DrainProxy"] == "OK"
        assert len(rpcs()) == 21  # a new one has to be put in the list above, or not

    run(body)


def test_what_is_marked_is_left_out_wherever_it_is() -> None:
    one = user_service_pb2.Credential(mechanism="m", iterations=1, salt=b"x", stored_key=b"y", server_key=b"z")
    request = user_service_pb2.CreateUserRequest(listener="a", user=user_service_pb2.User(name="n", credentials=[one, one]))
    shown_one = {"mechanism": "m", "iterations": 1}
    assert shown(request) == {"listener": "a", "user": {"name": "n", "credentials": [shown_one, shown_one]}}
    assert request.user.credentials[1].server_key == b"z", "the request itself is as it was"


def test_what_is_marked_is_left_out_of_maps_as_well() -> None:
    of = descriptor_pb2.FieldDescriptorProto
    secret = descriptor_pb2.FieldOptions(debug_redact=True)
    entry = descriptor_pb2.MessageOptions(map_entry=True)
    kept = of(name="kept", number=1, type=of.TYPE_STRING, label=of.LABEL_OPTIONAL)
    inner = descriptor_pb2.DescriptorProto(
        name="Inner", field=[kept, of(name="lost", number=2, type=of.TYPE_STRING, label=of.LABEL_OPTIONAL, options=secret)]
    )
    key = of(name="key", number=1, type=of.TYPE_STRING, label=of.LABEL_OPTIONAL)
    entries = [
        descriptor_pb2.DescriptorProto(name=name, field=[key, of(name="value", number=2, label=of.LABEL_OPTIONAL, **kind)], options=entry)
        for name, kind in (("TextsEntry", {"type": of.TYPE_STRING}), ("InnersEntry", {"type": of.TYPE_MESSAGE, "type_name": ".audit.Inner"}))
    ]
    maps = [
        of(name=name, number=number, type=of.TYPE_MESSAGE, label=of.LABEL_REPEATED, type_name=f".audit.Outer.{name.title()}Entry")
        for number, name in enumerate(("texts", "inners"), 1)
    ]
    outer = descriptor_pb2.DescriptorProto(name="Outer", field=maps, nested_type=entries)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(descriptor_pb2.FileDescriptorProto(name="audit.proto", package="audit", syntax="proto3", message_type=[inner, outer]))
    request = message_factory.GetMessageClass(pool.FindMessageTypeByName("audit.Outer"))()
    request.texts["a"] = "b"
    request.inners["c"].kept, request.inners["c"].lost = "d", "canary"
    assert shown(request) == {"texts": {"a": "b"}, "inners": {"c": {"kept": "d"}}}
