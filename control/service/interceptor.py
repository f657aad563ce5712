"""Runs around every call: errors become a Status, the duration a metric and, if spans are exported, a span; a change leaves an audit row (``access``
has the methods that do).

The audit row has the request, the values before and after, and the result; it is written for failed changes, too. The handler of a change passes the
values to ``note``. A change whose row cannot be kept is refused. A change whose call has ended is taken back or completed, and has its row then. A
repeated request id gets the first answer.

Who calls, and with which role, ``peers`` knows by the connection; ``client`` is the name that the client sends. A caller that is not known, or has
too low a role, is refused, and so is one above the bound of calls in progress of its role. Their requests are not read. After a few of them, and of
requests that are too large, each refusal is delayed, and its connection is not read meanwhile, so that a flood of refused calls takes no time from
other calls and from traffic.
"""

import asyncio
import contextlib
import contextvars
import logging
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import grpc
from google.protobuf.message import DecodeError, Message
from grpc_status import rpc_status

from framegate.control.errors import ControlError, DeniedError, ExhaustedError, MalformedRequestError, UnavailableError, UnknownMethodError
from framegate.control.events import Row
from framegate.control.service.access import access_of
from framegate.control.service.peers import NO_ROLE, ROLES, Peer, Peers, role_name
from framegate.control.service.quoting import bounded, cut, shown
from framegate.control.service.request_ids import RequestIds
from framegate.control.service.status import code_of, status_of
from framegate.control.service.validate import MAX_REASON, Violations
from framegate.control.service.validate import reason as check_reason
from framegate.control.steering.rows import Audit
from framegate.proxy.config.model import AdminConfig

if TYPE_CHECKING:
    from framegate.control.telemetry.traces import CallSpan, CallSpans

Context = grpc.aio.ServicerContext[Any, Any]
CallObserver = Callable[[str, str, float], None]
Tracer = Callable[[], "CallSpans | None"]  # Returns what makes spans of calls now
"""Called for every call that ended: ``package.Service/Method``, the code's name, seconds."""

MAX_CALLS: Final = 64  # Calls of one role in progress at once, including those that wait for a drain; others are refused before their request is read
MAX_WATCHERS: Final = 50  # Calls of one role in progress at once whose answer is a stream of rows; they are not counted among the others
_READS: Final = 4
"""Requests of one role that are received at once. gRPC has one in memory while its bytes arrive, so this bounds the memory of large ones."""
_REQUEST_S: Final = 10.0  # the time in which a request must arrive
_REFUSALS: Final = 10  # Refusals of a role that are answered at once; after them one each ``_REFUSAL_S``, in their order
_REFUSAL_S: Final = 0.1
_MAX_COST: Final = 10.0  # of one refusal, counted as so many: a request that was received to be refused costs one for each ``MAX_REQUEST``
MAX_REQUEST: Final = 256 * 1024  # Bytes. The largest useful requests are a thousand overrides, or a tap rule with a thousand principals.
CLIENT_KEY: Final = "framegate-client"  # Metadata with the client's name for itself; at most 256 characters are kept
_CLIENT_LIMIT: Final = 256
_ID_LIMIT: Final = 64
OTHER: Final = "_OTHER"  # the conventions' name for every unknown method: callers must not choose values of a metric's attribute
_METHOD_LIMIT: Final = 256

_log = logging.getLogger(__name__)
_notes: contextvars.ContextVar[Row] = contextvars.ContextVar("framegate_audit")
_blocked: contextvars.ContextVar[UnavailableError | None] = contextvars.ContextVar("framegate_audit_blocked", default=None)
_peer: contextvars.ContextVar[Peer] = contextvars.ContextVar("framegate_peer")


def blocked() -> UnavailableError | None:
    """Why the audit row of the current call, whose method is urgent, will be written later; None if it can be written."""
    return _blocked.get()


def note(before: Any = None, after: Any = None) -> None:
    """Set the values before and after a change in the audit row of the current call."""
    _notes.get().update(before=bounded(before), after=bounded(after))


def peer() -> Peer:
    """The caller of the current call, whose method is audited."""
    return _peer.get()


class _Calls:
    """The calls of one role, or its watchers. Attributes: ``running``: in progress; ``reads``: of their requests."""

    def __init__(self) -> None:
        self.running = 0
        self.reads = asyncio.Semaphore(_READS)
        self._free_s = 0.0
        self._refusing = asyncio.Lock()

    async def wait(self, cost: float) -> None:
        """Wait until a call may be refused. ``cost``: for how many it counts."""
        async with self._refusing:
            now_s = time.monotonic()
            self._free_s = max(self._free_s, now_s - _REFUSALS * _REFUSAL_S)
            await asyncio.sleep(max(self._free_s - now_s, 0.0))
            self._free_s += _REFUSAL_S * cost


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Wraps every handler.

    Args:
        audit: reserves a place for the audit row of a change, and writes the row.
        observe: called for every call that ended; None: not needed.
        tracer: returns what makes a span of each call; None: spans are not exported.
    """

    def __init__(self, audit: Audit, peers: Peers, config: AdminConfig, observe: CallObserver | None, tracer: Tracer = lambda: None) -> None:
        self._audit = audit
        self._peers = peers
        self._addresses = {ROLES[name]: item.address for name, item in config.sockets.items()}
        self._observe = observe
        self._tracer = tracer
        self._request_ids = RequestIds()
        self._calls = {role: _Calls() for role in (*ROLES.values(), NO_ROLE)}
        self._watchers = {role: _Calls() for role in ROLES.values()}
        self._changes: set[asyncio.Task[Any]] = set()

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]], handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        """Wrap the handler; an unknown method gets a handler that refuses the call."""
        handler = await continuation(handler_call_details)
        method = str(handler_call_details.method).lstrip("/")
        if handler is None:
            return grpc.stream_stream_rpc_method_handler(self._unknown(method[:_METHOD_LIMIT]))
        if handler.unary_unary is not None:  # as streams: the request is read when the call is allowed, and a refusal sends no message
            inner = self._unary(method, handler.unary_unary, handler.request_deserializer)
            return grpc.stream_stream_rpc_method_handler(inner, None, handler.response_serializer)
        if handler.unary_stream is not None:
            watch = self._stream(method, handler.unary_stream, handler.request_deserializer)
            return grpc.stream_stream_rpc_method_handler(watch, None, handler.response_serializer)
        if handler.stream_stream is not None:
            stream = self._stream(method, handler.stream_stream)
            return grpc.stream_stream_rpc_method_handler(stream, handler.request_deserializer, handler.response_serializer)
        raise AssertionError(f"no service here has a method of the kind of {method}")

    def _allowed(self, method: str, peer: Peer | None, *, watches: bool = False) -> "_Calls":
        """The calls, or the watchers, of the caller's role; or the error with which a call is refused."""
        needed = access_of(method).role
        if peer is None or peer.role < needed:
            raise self._role_needed(method, needed, peer)
        calls = (self._watchers if watches else self._calls)[peer.role]
        most, what, reason = (MAX_WATCHERS, "watchers", "TOO_MANY_WATCHERS") if watches else (MAX_CALLS, "calls", "TOO_MANY_CALLS")
        if calls.running >= most:
            raise ExhaustedError(f"{most} {what} of the role {role_name(peer.role)} are in progress", reason=reason, limit=str(most))
        return calls

    async def _refuse(self, context: Context, failure: Exception, *, held: bool) -> None:
        """End a call with an error; its handler returns then. An abort would be an exception that gRPC keeps for a while, with the frames and so the
        request of the call. ``held``: refusals like it are answered slowly.
        """
        if held:
            caller = self._peers.find(context.peer())
            size = int(failure.metadata.get("size", 0)) if isinstance(failure, ExhaustedError) else 0
            with self._peers.held(context.peer()):
                await self._calls[NO_ROLE if caller is None else caller.role].wait(min(max(size / MAX_REQUEST, 1.0), _MAX_COST))
        status = rpc_status.to_status(status_of(failure))
        context.set_trailing_metadata(status.trailing_metadata)
        context.set_details(status.details)
        context.set_code(status.code)

    def _role_needed(self, method: str, needed: int, peer: Peer | None) -> DeniedError:
        own = "no role" if peer is None or not peer.role else f"the role {role_name(peer.role)}"
        address = next((address for role, address in reversed(self._addresses.items()) if role >= needed), "")
        name = method.rpartition("/")[2]
        text = f"{name} needs the role {role_name(needed)}, and this caller has {own}; the socket {address} has it"
        return DeniedError(text, reason="ROLE_NEEDED", method=name, role=role_name(needed), address=address)

    def _unary(
        self, method: str, inner: Callable[[Any, Any], Awaitable[Any]], parse: Callable[[bytes], Message]
    ) -> Callable[[Any, Any], AsyncIterator[Any]]:
        audited = access_of(method).audited

        async def call(requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[Any]:
            started = time.perf_counter()
            code, failure, answer = grpc.StatusCode.OK, None, None
            span = self._span(method, context, current=True)
            peer = self._peers.find(context.peer())
            calls: _Calls | None = None
            try:
                calls = self._allowed(method, peer)
                calls.running += 1
                if audited:
                    assert peer is not None, "who is not known is not allowed anything"
                    row: Row = {**peer.fields, "role": role_name(peer.role), "client": _client(context), "method": method}
                    row |= {} if span is None else span.fields
                    work = asyncio.create_task(
                        self._change(peer, row, await _received(requests, calls), parse, lambda request: inner(request, context))
                    )
                    self._changes.add(work)
                    work.add_done_callback(self._changed)
                    try:
                        answer = await asyncio.shield(work)
                    except asyncio.CancelledError:
                        work.cancel()
                        raise
                else:
                    answer = await inner(_parsed(await _received(requests, calls), parse), context)
            except asyncio.CancelledError:
                code = grpc.StatusCode.CANCELLED
                raise
            except Exception as error:
                if not audited and not isinstance(error, ControlError):
                    _log.exception("a call failed", extra={"method": method})
                code, failure = _code(error), _bare(error)
            finally:
                if calls is not None:
                    calls.running -= 1
                self._ended(method, code, started, span, getattr(failure, "reason", ""))
            if failure is None:  # sent last: a client that has the answer finds the row
                yield answer
            else:
                await self._refuse(context, failure, held=calls is None or isinstance(failure, ExhaustedError))

        return call

    async def _change(
        self, caller: Peer, row: Row, data: bytes | ExhaustedError, parse: Callable[[bytes], Message], inner: Callable[[Any], Awaitable[Any]]
    ) -> Any:
        """Make a change, and write its audit row. When its call ends before, it goes on until the change is taken back or in force."""
        place = await self._audit.reserve(urgent=access_of(row["method"]).urgent)
        noted: Row = {"request": None, "before": None, "after": None}
        _notes.set(noted)
        _blocked.set(place.blocked)
        _peer.set(caller)
        code, reason = grpc.StatusCode.OK, ""
        try:
            request = _parsed(data, parse)
            request_id = getattr(request, "request_id", "")
            given = {"reason": cut(getattr(request, "reason", ""), MAX_REASON), "request_id": cut(request_id, _ID_LIMIT)}
            noted |= {"request": shown(request), **given}
            _check(request)
            assert isinstance(data, bytes), "another one has no request"
            return await (self._request_ids.once(row["method"], request_id, data, lambda: inner(request)) if request_id else inner(request))
        except BaseException as error:
            code, reason = _code(error), getattr(error, "reason", type(error).__name__)
            raise
        finally:
            if _cancelling():
                code, reason = grpc.StatusCode.CANCELLED, ""
            self._audit.publish({"event": "audit", **row, **noted, "result": code.name, "error": reason}, place)
            await self._audit.written()

    def _changed(self, work: asyncio.Task[Any]) -> None:
        self._changes.discard(work)
        error = None if work.cancelled() else work.exception()
        if error is not None and not isinstance(error, ControlError):
            _log.error("a change failed", exc_info=error)

    def _stream(
        self, method: str, inner: Callable[[Any, Any], AsyncGenerator[Any]], parse: Callable[[bytes], Message] | None = None
    ) -> Callable[[Any, Any], AsyncIterator[Any]]:
        """A handler whose answer is a stream. ``parse``: it has one request, and counts among the watchers; None: its requests are a stream, too."""

        async def call(requests: Any, context: Context) -> AsyncIterator[Any]:
            started = time.perf_counter()
            code, failure = grpc.StatusCode.OK, None
            span = self._span(method, context, current=False)  # a generator's steps may run in other contexts
            peer = self._peers.find(context.peer())
            calls: _Calls | None = None
            try:
                calls = self._allowed(method, peer, watches=parse is not None)
                calls.running += 1
                if parse is not None:
                    requests = _parsed(await _received(requests, calls), parse)
                async with contextlib.aclosing(inner(requests, context)) as responses:
                    async for response in responses:
                        yield response
            except BaseException as error:
                code = _code(error)
                if not isinstance(error, ControlError):
                    raise
                failure = _bare(error)
            finally:
                if calls is not None:
                    calls.running -= 1
                self._ended(method, code, started, span, getattr(failure, "reason", ""))
            if failure is not None:
                await self._refuse(context, failure, held=calls is None or isinstance(failure, ExhaustedError))

        return call

    def _unknown(self, name: str) -> Callable[[Any, Any], AsyncIterator[Any]]:
        """A handler that refuses a call of an unknown method, and does not read its request."""

        async def call(requests: Any, context: Context) -> AsyncIterator[Any]:
            started, error = time.perf_counter(), UnknownMethodError(name)
            self._ended(OTHER, code_of(error), started, self._span(OTHER, context, current=False, original=name), error.reason)
            await self._refuse(context, error, held=True)
            answers: tuple[Any, ...] = ()
            for answer in answers:
                yield answer

        return call

    def _span(self, method: str, context: Context, *, current: bool, original: str = "") -> "CallSpan | None":
        """The span of a call, if there is one; if the tracer fails, the call goes on without."""
        spans = self._tracer()
        if spans is None:
            return None
        try:
            return spans.begin(method, tuple(context.invocation_metadata() or ()), current=current, original=original)
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


def _bare(error: Exception) -> Exception:
    """An error without what else it keeps in memory: frames, and so the request."""
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


def _cancelling() -> bool:
    """Whether the current task is cancelled. A frame that has the task would be kept by its exception, and keep the request, until cycles are looked
    for.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


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


async def _received(requests: AsyncIterator[bytes], calls: _Calls) -> bytes | ExhaustedError:
    """The bytes of a request, which is a stream of one message, or that they are too many."""
    async with calls.reads:
        try:
            async with asyncio.timeout(_REQUEST_S):
                async for data in requests:
                    if len(data) <= MAX_REQUEST:
                        return data
                    text = f"the request has {len(data)} bytes, and the API takes {MAX_REQUEST}"
                    return ExhaustedError(text, reason="REQUEST_TOO_LARGE", size=str(len(data)), limit=str(MAX_REQUEST))
        except TimeoutError as error:
            raise ExhaustedError(f"the request did not arrive within {_REQUEST_S:g} s", reason="REQUEST_TOO_SLOW") from error
        except grpc.aio.BaseError as error:
            raise UnavailableError("framegate stops", reason="STOPPING") from error
    raise MalformedRequestError


def _parsed(data: bytes | ExhaustedError, parse: Callable[[bytes], Message]) -> Message:
    if isinstance(data, ExhaustedError):
        raise data
    try:
        return parse(data)
    except DecodeError as error:
        raise MalformedRequestError from error


def _client(context: Context) -> str:
    metadata = dict(context.invocation_metadata() or ())
    return str(metadata.get(CLIENT_KEY, metadata.get("user-agent", "")))[:_CLIENT_LIMIT]


def _code(error: BaseException) -> grpc.StatusCode:
    if isinstance(error, ControlError):
        return code_of(error)
    return grpc.StatusCode.CANCELLED if isinstance(error, (asyncio.CancelledError, GeneratorExit)) else grpc.StatusCode.INTERNAL
