"""Runs around every call: errors become a Status, the duration a metric and, if spans are exported, a span; a change leaves an audit row (``access``
has the methods that do).

The audit row has the request, the values before and after, and the result; it is written for failed changes, too. The handler of a change passes the
values to ``note``. A change whose row cannot be kept is refused. grpc does not know the peer of a Unix socket, but its mode lets in only the user
that runs framegate (and root), so ``who`` is that user; ``client`` is the name that the client sends.
"""

import asyncio
import contextvars
import getpass
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import grpc
from google.protobuf.message import DecodeError, Message
from grpc_status import rpc_status

from framegate.control.errors import ControlError, MalformedRequestError
from framegate.control.events import Row
from framegate.control.service.access import access_of
from framegate.control.service.quoting import shown
from framegate.control.service.status import code_of, status_of
from framegate.control.steering.rows import Audit

if TYPE_CHECKING:
    from framegate.control.telemetry.traces import CallSpan, CallSpans

__all__ = ["CLIENT_KEY", "CallInterceptor", "CallObserver", "Context", "caller", "note"]

Context = grpc.aio.ServicerContext[Any, Any]
CallObserver = Callable[[str, str, float], None]
"""Called for every call that ended: ``package.Service/Method``, the code's name, seconds."""

CLIENT_KEY: Final = "framegate-client"
"""Metadata with the client's name for itself; at most 256 characters are kept."""
_CLIENT_LIMIT: Final = 256
OTHER: Final = "_OTHER"
"""The conventions' name for every unknown method: callers must not choose values of a metric's attribute."""
_METHOD_LIMIT: Final = 256

_log = logging.getLogger(__name__)
_notes: contextvars.ContextVar[Row] = contextvars.ContextVar("framegate_audit")


def note(before: Any = None, after: Any = None) -> None:
    """Set the values before and after a change in the audit row of the current call, in one call or two."""
    row = _notes.get()
    if before is not None:
        row["before"] = before
    if after is not None:
        row["after"] = after


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Wraps every handler.

    Args:
        audit: reserves a place for the audit row of a change, and writes the row.
        observe: called for every call that ended; None: not needed.
        tracer: makes a span of each call; None: spans are not exported.
    """

    def __init__(self, audit: Audit, observe: CallObserver | None, tracer: "CallSpans | None" = None) -> None:
        self._audit = audit
        self._observe = observe
        self._tracer = tracer
        self._user = _user()

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]], handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        """Wrap the handler; an unknown method gets a handler that refuses the call."""
        handler = await continuation(handler_call_details)
        method = str(handler_call_details.method).lstrip("/")
        if handler is None:
            return grpc.stream_unary_rpc_method_handler(self._unknown(method))
        if handler.unary_unary is not None:
            inner = self._unary(method, handler.unary_unary, handler.request_deserializer)
            return grpc.unary_unary_rpc_method_handler(inner, None, handler.response_serializer)
        if handler.stream_stream is not None:
            stream = self._stream(method, handler.stream_stream)
            return grpc.stream_stream_rpc_method_handler(stream, handler.request_deserializer, handler.response_serializer)
        raise AssertionError(f"no service here has a method of the kind of {method}")

    def _unary(
        self, method: str, inner: Callable[[Any, Any], Awaitable[Any]], parse: Callable[[bytes], Message]
    ) -> Callable[[Any, Any], Awaitable[Any]]:
        audited = access_of(method).audited

        async def call(data: bytes, context: Context) -> Any:
            started = time.perf_counter()
            code, failure = grpc.StatusCode.OK, None
            row: Row = {}
            reserved = False
            answer = request = None
            _notes.set(row)
            span = self._span(method, context, current=True)
            try:
                if audited:
                    self._audit.reserve()
                    reserved = True
                request = _parsed(data, parse)
                answer = await inner(request, context)
            except asyncio.CancelledError:
                code = grpc.StatusCode.CANCELLED
                raise
            except Exception as error:
                if not isinstance(error, ControlError):
                    _log.exception("a call failed", extra={"method": method})
                code, failure = _code(error), error.with_traceback(None)  # it would keep this frame, and so the request, in memory
            finally:
                if reserved:
                    self._audit.publish({**self._row(method, request, context, row, code, failure), **({} if span is None else span.fields)})
                self._ended(method, code, started, span, getattr(failure, "reason", ""))
            if failure is not None:  # sent last: a client that has the answer finds the row
                await context.abort_with_status(rpc_status.to_status(status_of(failure)))
            return answer

        return call

    def _stream(self, method: str, inner: Callable[[Any, Any], AsyncIterator[Any]]) -> Callable[[Any, Any], AsyncIterator[Any]]:
        async def call(requests: Any, context: Context) -> AsyncIterator[Any]:
            started = time.perf_counter()
            code = grpc.StatusCode.OK
            span = self._span(method, context, current=False)  # a generator's steps may run in other contexts
            try:
                async for response in inner(requests, context):
                    yield response
            except BaseException as error:
                code = _code(error)
                raise
            finally:
                self._ended(method, code, started, span)

        return call

    def _unknown(self, method: str) -> Callable[[Any, Any], Awaitable[Any]]:
        async def call(requests: Any, context: Context) -> None:
            started = time.perf_counter()
            span = self._span(OTHER, context, current=False, original=method[:_METHOD_LIMIT])
            self._ended(OTHER, grpc.StatusCode.UNIMPLEMENTED, started, span)
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")  # gRPC's own text

        return call

    def _span(self, method: str, context: Context, *, current: bool, original: str = "") -> "CallSpan | None":
        """The span of a call, if there is one; if the tracer fails, the call goes on without."""
        if self._tracer is None:
            return None
        try:
            return self._tracer.begin(method, tuple(context.invocation_metadata() or ()), current=current, original=original)
        except Exception:
            _log.exception("a call has no span", extra={"method": method})
            return None

    def _ended(self, method: str, code: grpc.StatusCode, started: float, span: "CallSpan | None", reason: str = "") -> None:
        """Measure a call. An exception here does not fail the call: a change that is in force is answered with OK."""
        try:
            if self._observe is not None:
                self._observe(method, code.name, time.perf_counter() - started)
            if span is not None:
                span.end(code.name, reason)
        except Exception:
            _log.exception("a call was not measured", extra={"method": method})

    def _row(
        self,
        method: str,
        request: Message | None,
        context: Context,
        noted: Row,
        code: grpc.StatusCode,
        failure: Exception | None,
    ) -> Row:
        return {
            "event": "audit",
            "who": self._user,
            "client": caller(context),
            "method": method,
            "request": None if request is None else shown(request),
            "before": noted.get("before"),
            "after": noted.get("after"),
            "result": code.name,
            "error": "" if failure is None else getattr(failure, "reason", type(failure).__name__),
        }


def _parsed(data: bytes, parse: Callable[[bytes], Message]) -> Message:
    try:
        return parse(data)
    except DecodeError as error:
        raise MalformedRequestError from error


def caller(context: Context) -> str:
    """The client's name for itself."""
    metadata = dict(context.invocation_metadata() or ())
    return str(metadata.get(CLIENT_KEY, metadata.get("user-agent", "")))[:_CLIENT_LIMIT]


def _code(error: BaseException) -> grpc.StatusCode:
    if isinstance(error, ControlError):
        return code_of(error)
    return grpc.StatusCode.CANCELLED if isinstance(error, (asyncio.CancelledError, GeneratorExit)) else grpc.StatusCode.INTERNAL


def _user() -> str:
    """The user of this process; its number if it has no name, as in containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid:{os.getuid()}"
