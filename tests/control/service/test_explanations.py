"""ExplanationService over a real socket."""

import grpc

from framegate.control.v1 import explanation_service_pb2 as pb2
from framegate.control.v1.channel_service_pb2 import SIDE_DOWNSTREAM
from framegate.control.v1.explanation_service_pb2_grpc import ExplanationServiceStub
from tests.control.service.served import refused, served
from tests.fakes.plane import channel_row
from tests.fakes.rows import OPENED_NS
from tests.fakes.serving import Serving


@served()
async def test_a_wait_of_a_channel_and_of_its_listener_is_a_typed_message(at: Serving) -> None:
    at.plane.add(channel_row("0-1-7", muted_upstream_ns=OPENED_NS + 10**9, unsent={"request": 0, "response": 70_000}))
    stub = ExplanationServiceStub(at.channel)
    one = await stub.ExplainChannel(pb2.ExplainChannelRequest(id="0-1-7"))
    every = await stub.ExplainListener(pb2.ExplainListenerRequest(listener="kafka"))
    wait = one.waits[0]
    assert (wait.kind, wait.side, wait.channel_count, list(wait.channel_ids)) == (pb2.Wait.KIND_CLIENT, SIDE_DOWNSTREAM, 1, ["0-1-7"])
    assert (wait.unsent_bytes, wait.held_bytes, wait.since_time.ToNanoseconds()) == (70_000, 11, OPENED_NS + 10**9)
    assert (every.waits[0], every.summary) == (wait, "listener kafka: 1 channel open, 1 of them waits")


@served()
async def test_what_does_not_exist_is_refused_with_a_reason(at: Serving) -> None:
    stub = ExplanationServiceStub(at.channel)
    for call, answer in (
        (stub.ExplainChannel(pb2.ExplainChannelRequest(id="7")), (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT", ["id"])),
        (stub.ExplainChannel(pb2.ExplainChannelRequest(id="0-1-7")), (grpc.StatusCode.NOT_FOUND, "CHANNEL_NOT_FOUND", [])),
        (stub.ExplainListener(pb2.ExplainListenerRequest()), (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT", ["listener"])),
        (stub.ExplainListener(pb2.ExplainListenerRequest(listener="none")), (grpc.StatusCode.NOT_FOUND, "LISTENER_NOT_FOUND", [])),
    ):
        assert await refused(call) == answer
