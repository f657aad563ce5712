"""ExplanationService."""

from framegate.control.service.convert import channel_number, channel_texts, timestamp
from framegate.control.service.interceptor import Context
from framegate.control.service.validate import Violations, check_required
from framegate.control.steering import explanation
from framegate.control.v1 import explanation_service_pb2 as pb2
from framegate.control.v1.channel_service_pb2 import Side
from framegate.control.v1.explanation_service_pb2_grpc import ExplanationServiceServicer


class Explanations(ExplanationServiceServicer):
    """Says what connections wait for."""

    def __init__(self, explanations: explanation.Explanations) -> None:
        self._explanations = explanations

    async def ExplainChannel(self, request: pb2.ExplainChannelRequest, context: Context) -> pb2.ExplainChannelResponse:
        violations = Violations()
        number = channel_number(request.id, "id", violations.add)
        violations.check()
        assert number is not None, "a bad id is a violation"
        found = await self._explanations.channel(number)
        return pb2.ExplainChannelResponse(summary=found.summary, waits=map(_wait, found.waits))

    async def ExplainListener(self, request: pb2.ExplainListenerRequest, context: Context) -> pb2.ExplainListenerResponse:
        check_required(request.listener, "listener")
        found = await self._explanations.listener(request.listener)
        return pb2.ExplainListenerResponse(summary=found.summary, waits=map(_wait, found.waits))


def _wait(wait: explanation.Wait) -> pb2.Wait:
    return pb2.Wait(
        kind=pb2.Wait.Kind.Value(f"KIND_{wait.kind.upper()}"),
        side=Side.Value(f"SIDE_{wait.side.upper()}"),
        text=wait.text,
        since_time=timestamp(wait.since_ns) if wait.since_ns else None,
        endpoint=wait.endpoint,
        channel_count=wait.waiting,
        channel_ids=channel_texts(wait.channels),
        unsent_bytes=wait.unsent,
        held_bytes=wait.held,
    )
