"""Runs around every call: errors become a Status, the duration a metric and, if spans are exported, a span; a change leaves an audit row (``access``
has the methods that do).

The audit row has the request, the values before and after, and the result; it is written for failed changes, too. The handler of a change passes the
values to ``note``. A change whose row cannot be kept is refused. A change whose call has ended is taken back or completed, and has its row then; so
rows chain: each ``before`` is the last ``after``. A repeated request id gets the first answer.

grpc does not know the peer of a Unix socket, but its mode lets in only the user that runs framegate (and root), so ``who`` is that user; ``client``
is the name that the client sends.
"""

import asyncio
import contextlib
import contextvars
import getpass
import logging
import os
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import grpc
from google.protobuf.message import DecodeError, Message
from grpc_status import rpc_status

from framegate.control.errors import ControlError, ExhaustedError, MalformedRequestError, UnknownMethodError
from framegate.control.events import Row
from framegate.control.service.access import access_of
from framegate.control.service.quoting import shown
from framegate.control.service.request_ids import RequestIds
from framegate.control.service.status import code_of, status_of
from framegate.control.service.validate import Violations
from framegate.control.service.validate import reason as check_reason
from framegate.control.steering.rows import Audit

if TYPE_CHECKING:
    from framegate.control.telemetry.traces import CallSpan, CallSpans

__all__ = ["CLIENT_KEY", "MAX_CALLS", "MAX_REQUEST", "MAX_WATCHERS", "CallInterceptor", "CallObserver", "Context", "caller", "note"]

Context = grpc.aio.ServicerContext[Any, Any]
CallObserver = Callable[[str, str, float], None]
"""Called for every call that ended: ``package.Service/Method``, the code's name, seconds."""

MAX_CALLS: Final = 64
"""Calls in progress at once, including those that wait for a drain; others are refused before their request is read."""
MAX_WATCHERS: Final = 100
"""Calls in progress at once whose answer is a stream."""
MAX_REQUEST: Final = 256 * 1024
"""Bytes. The largest useful requests are a thousand overrides, or a tap rule with a thousand principals."""
CLIENT_KEY: Final = "framegate-client"
"""Metadata with the client's name for itself; at most 256 characters are kept."""
_CLIENT_LIMIT: Final = 256
OTHER: Final = "_OTHER"
"""The conventions' name for every unknown method: callers must not choose values of a metric's attribute."""
_METHOD_LIMIT: Final = 256

_log = logging.getLogger(__name__)
_notes: contextvars.ContextVar[Row] = contextvars.ContextVar("framegate_audit")


def note(before: Any = None, after: Any = None) -> None:
    """Set the values before and after a change in the audit row of the current call."""
    _notes.get().update(before=before, after=after)


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
        self._request_ids = RequestIds()
        self._running = self._watchers = 0
        self._changes: set[asyncio.Task[Any]] = set()

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]], handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        """Wrap the handler; an unknown method gets a handler that refuses the call."""
        handler = await continuation(handler_call_details)
        method = str(handler_call_details.method).lstrip("/")
        if handler is None:
            return grpc.stream_unary_rpc_method_handler(self._refused(OTHER, UnknownMethodError(method[:_METHOD_LIMIT]), method[:_METHOD_LIMIT]))
        if handler.unary_unary is not None and self._running >= MAX_CALLS:
            error = ExhaustedError(f"{MAX_CALLS} calls are in progress", reason="TOO_MANY_CALLS", limit=str(MAX_CALLS))
            return grpc.stream_unary_rpc_method_handler(self._refused(method, error))
        if handler.unary_unary is not None:
            inner = self._unary(method, handler.unary_unary, handler.request_deserializer)
            return grpc.unary_unary_rpc_method_handler(inner, None, handler.response_serializer)
        if handler.unary_stream is not None and self._watchers >= MAX_WATCHERS:
            error = ExhaustedError(f"{MAX_WATCHERS} watchers are connected", reason="TOO_MANY_WATCHERS", limit=str(MAX_WATCHERS))
            return grpc.stream_unary_rpc_method_handler(self._refused(method, error))
        if handler.unary_stream is not None:
            parse = handler.request_deserializer
            watch = self._stream(method, lambda data, context: handler.unary_stream(_parsed(data, parse), context), watches=1)
            return grpc.unary_stream_rpc_method_handler(watch, None, handler.response_serializer)
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
            code, failure, answer = grpc.StatusCode.OK, None, None
            span = self._span(method, context, current=True)
            self._running += 1
            try:
                if audited:
                    row: Row = {"who": self._user, "client": caller(context), "method": method, **({} if span is None else span.fields)}
                    work = asyncio.create_task(self._change(row, data, parse, lambda request: inner(request, context)))
                    self._changes.add(work)
                    work.add_done_callback(self._changed)
                    try:
                        answer = await asyncio.shield(work)
                    except asyncio.CancelledError:
                        work.cancel()
                        raise
                else:
                    answer = await inner(_parsed(data, parse), context)
            except asyncio.CancelledError:
                code = grpc.StatusCode.CANCELLED
                raise
            except Exception as error:
                if not audited and not isinstance(error, ControlError):
                    _log.exception("a call failed", extra={"method": method})
                code, failure = _code(error), error.with_traceback(None)  # it would keep this frame, and so the request, in memory
            finally:
                self._running -= 1
                self._ended(method, code, started, span, getattr(failure, "reason", ""))
            if failure is not None:  # sent last: a client that has the answer finds the row
                await context.abort_with_status(rpc_status.to_status(status_of(failure)))
            return answer

        return call

    async def _change(self, row: Row, data: bytes, parse: Callable[[bytes], Message], inner: Callable[[Any], Awaitable[Any]]) -> Any:
        """Make a change, and write its audit row. When its call ends before, it goes on until the change is taken back or in force."""
        self._audit.reserve()
        noted: Row = {"request": None, "before": None, "after": None}
        _notes.set(noted)
        code, reason = grpc.StatusCode.OK, ""
        try:
            request = _parsed(data, parse)
            noted["request"] = shown(request)
            _check(request)
            request_id = getattr(request, "request_id", "")
            return await (self._request_ids.once(row["method"], request_id, data, lambda: inner(request)) if request_id else inner(request))
        except BaseException as error:
            code, reason = _code(error), getattr(error, "reason", type(error).__name__)
            raise
        finally:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                code, reason = grpc.StatusCode.CANCELLED, ""
            self._audit.publish({"event": "audit", **row, **noted, "result": code.name, "error": reason})

    def _changed(self, work: asyncio.Task[Any]) -> None:
        self._changes.discard(work)
        error = None if work.cancelled() else work.exception()
        if error is not None and not isinstance(error, ControlError):
            _log.error("a change failed", exc_info=error)

    def _stream(self, method: str, inner: Callable[[Any, Any], AsyncGenerator[Any]], watches: int = 0) -> Callable[[Any, Any], AsyncIterator[Any]]:
        """A handler whose answer is a stream. ``watches``: what the call adds to the number of watchers."""

        async def call(requests: Any, context: Context) -> AsyncIterator[Any]:
            started = time.perf_counter()
            code, failure = grpc.StatusCode.OK, None
            span = self._span(method, context, current=False)  # a generator's steps may run in other contexts
            self._watchers += watches
            try:
                async with contextlib.aclosing(inner(requests, context)) as responses:
                    async for response in responses:
                        yield response
            except BaseException as error:
                code = _code(error)
                if not isinstance(error, ControlError):
                    raise
                failure = error.with_traceback(None)
            finally:
                self._watchers -= watches
                self._ended(method, code, started, span, getattr(failure, "reason", ""))
            if failure is not None:
                await context.abort_with_status(rpc_status.to_status(status_of(failure)))

        return call

    def _refused(self, method: str, error: ControlError, original: str = "") -> Callable[[Any, Any], Awaitable[Any]]:
        """A handler that refuses a call, and does not read its request."""

        async def call(requests: Any, context: Context) -> None:
            started = time.perf_counter()
            self._ended(method, code_of(error), started, self._span(method, context, current=False, original=original), error.reason)
            await context.abort_with_status(rpc_status.to_status(status_of(error)))

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


def _check(request: Message) -> None:
    """Check the fields that requests of many methods have."""
    violations, fields = Violations(), request.DESCRIPTOR.fields_by_name
    if "reason" in fields:
        check_reason(request.reason, violations)  # type: ignore[attr-defined]
    if "request_id" in fields and (given := request.request_id):  # type: ignore[attr-defined]
        try:
            uuid.UUID(given)
        except ValueError:
            violations.add("request_id", "must be a UUID, as in 7f1e8a52-0b3c-4d7e-9a66-0d5f4c1b2a39")
    violations.check()


def _parsed(data: bytes, parse: Callable[[bytes], Message]) -> Message:
    if len(data) > MAX_REQUEST:
        text = f"the request has {len(data)} bytes, and the API takes {MAX_REQUEST}"
        raise ExhaustedError(text, reason="REQUEST_TOO_LARGE", size=str(len(data)), limit=str(MAX_REQUEST))
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
