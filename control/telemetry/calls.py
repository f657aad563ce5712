"""A span for each call of the control plane, beneath the caller's. ``framegate.control.service.interceptor`` asks for them."""

from collections.abc import Sequence
from contextvars import Token
from typing import Final

from opentelemetry import context as contexts
from opentelemetry import propagate
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.util.types import AnyValue

from framegate.control.telemetry.traces import Traces
from framegate.proxy.cells.standard_metrics import RPC_STATUS

__all__ = ["CallSpan", "CallSpans"]

_FAULTS: Final = frozenset({"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"})
"""The codes that are errors of the server's, as the conventions for spans of gRPC servers have it: what the caller asked wrong is none."""


class CallSpan:
    """The span of one call.

    Attributes:
        fields: its ids, as rows have them; empty when nobody exports it.
    """

    def __init__(self, span: Span, *, current: bool) -> None:
        found = span.get_span_context()
        self.fields: Final = {"trace_id": f"{found.trace_id:032x}", "span_id": f"{found.span_id:016x}"} if span.is_recording() else {}
        self._span = span
        self._token: Token[Context] | None = contexts.attach(set_span_in_context(span)) if current else None

    def end(self, code: str, reason: str = "") -> None:
        """The call is over.

        Args:
            code: the name of its gRPC code.
            reason: of an error, as its ErrorInfo names it.
        """
        if self._token is not None:
            contexts.detach(self._token)
        self._span.set_attribute(RPC_STATUS, code)
        if reason:
            self._span.set_attribute("framegate.reason", reason)
        if code in _FAULTS:
            self._span.set_attribute("error.type", code)
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()


class CallSpans:
    """Makes them."""

    def __init__(self, traces: Traces) -> None:
        self._traces = traces

    def begin(self, method: str, metadata: Sequence[tuple[str, str | bytes]], *, current: bool, original: str = "") -> CallSpan:
        """The span of a call that begins.

        Args:
            method: ``package.Service/Method``.
            metadata: of the caller; names its span if it has one. What is damaged is taken for none.
            current: whether what the call does in this task belongs to the span until it ends.
            original: what the caller asked for, where ``method`` stands for all that there are not.
        """
        parent = propagate.extract(_carrier(metadata), Context())
        attributes: dict[str, AnyValue] = {"rpc.system.name": "grpc", "rpc.method": method}
        if original:
            attributes["rpc.method_original"] = original
        return CallSpan(self._traces.begin(method, SpanKind.SERVER, attributes, parent), current=current)


def _carrier(metadata: Sequence[tuple[str, str | bytes]]) -> dict[str, str]:
    """The caller's headers: those that come more than once are one list, as HTTP has it. No list is a ``traceparent``: two are as good as none
    (which gRPC's core does not let us see today: it keeps the last).
    """
    found: dict[str, str] = {}
    for key, value in metadata:
        if isinstance(value, str):
            found[key] = f"{found[key]},{value}" if key in found else value
    return found
