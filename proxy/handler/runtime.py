"""The handlers of a handler process, from start to stop, and its sockets to the processors.

The main thread runs one asyncio loop. Plain functions run in it one at a time (``processor``), ``async def`` handlers as tasks (``connection``).
``reporter`` is the only other thread of framegate.
"""

import asyncio
import contextlib
import gc
import inspect
import os
import socket
import time
from collections.abc import Mapping
from typing import Any, Final

from framegate.proxy.handler.activity import Activity, Interrupted
from framegate.proxy.handler.connection import Failures
from framegate.proxy.handler.load import LoadedHandler, error_line
from framegate.proxy.handler.processor import Processor
from framegate.proxy.handler.reply_buffer import ReplyBuffer
from framegate.proxy.handler.reporter import Reporter
from framegate.proxy.relay.handler_wire import WIRE, Hello, encode_hello
from framegate.proxy.server.link import HANDLER_PROCESS, Handover, LinkError, receive_handovers
from framegate.proxy.server.messages import FailedMessage, HandlerFacts, HandlerReadyMessage, PartedNotice
from framegate.proxy.server.protocol import WIRE_VERSION, event_notice
from framegate.proxy.server.rows import HandlerRaisedRow, HandoverFailedRow, InternalErrorRow

CANCEL_SECONDS: Final = 1.0  # how long cancelled calls have to end
STOP_SECONDS: Final = 3.0  # how long all stops together have


class Runtime:
    """One handler process. ``handover``: non-blocking."""

    def __init__(self, slot: int, handlers: Mapping[str, LoadedHandler], handover: socket.socket, reporter: Reporter, activity: Activity) -> None:
        self._handlers: Final = handlers
        self._handover: Final = handover
        self._reporter: Final = reporter
        self._activity: Final = activity
        self._failures: Final = Failures(activity, time.monotonic_ns, self._report_raised)
        self._hello: Final = encode_hello(Hello(wire=WIRE, slot=slot, handlers={name: handler.facts() for name, handler in handlers.items()}))
        self._processors: Final[set[Processor]] = set()
        self._started: Final[list[LoadedHandler]] = []
        self._loop: Final = asyncio.get_running_loop()
        self._answers: Final = ReplyBuffer(self._loop)
        self._end: Final = asyncio.Event()

    async def serve(self) -> int:
        """Run until the process is to end. Returns the exit code: 1 if a handler did not start."""
        self._reporter.at_end(self._call_end)
        starting = self._loop.create_task(self._start())
        ending = self._loop.create_task(self._end.wait())
        await asyncio.wait((starting, ending), return_when=asyncio.FIRST_COMPLETED)
        failure = starting.result() if starting.done() and not starting.cancelled() else ""
        if failure:
            self._reporter.notify(FailedMessage(type="failed", error=failure))
            self._reporter.begin_end()
        elif starting.done() and not self._reporter.is_ending:
            gc.collect()
            gc.freeze()  # no collection looks at what is loaded now
            self._reporter.notify_ready(self._ready())
            self._loop.add_reader(self._handover.fileno(), self._on_handover)
            await ending
        starting.cancel()
        ending.cancel()
        await self._stop()
        return 1 if failure else 0

    def _call_end(self) -> None:
        """May be called from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed already
            self._loop.call_soon_threadsafe(self._begin_end)

    def _begin_end(self) -> None:
        self._reporter.is_interruptible = False
        self._end.set()

    def _ready(self) -> HandlerReadyMessage:
        facts = {name: HandlerFacts(**handler.facts(), description=handler.description) for name, handler in self._handlers.items()}
        return HandlerReadyMessage(type="ready", wire=WIRE_VERSION, pid=os.getpid(), handlers=facts)

    # The handlers.

    async def _start(self) -> str:
        """Start each handler once, in the order of the listeners. Returns what is wrong with the one that did not start; empty: nothing."""
        for listener, handler in self._handlers.items():
            if any(handler.target is started.target for started in self._started):
                continue
            try:
                await self._call(handler, "start")
            except BaseException as error:
                if isinstance(error, Interrupted | asyncio.CancelledError) and self._reporter.is_ending:
                    return ""
                return f"listener {listener}, handler {handler.name}: start: {error_line(error)}"
            self._started.append(handler)
        return ""

    async def _stop(self) -> None:
        """Cancel all calls, and stop each handler that was started, once, whatever the others do."""
        self._loop.remove_reader(self._handover.fileno())
        tasks = {task for processor in self._processors for task in processor.tasks.under_way}
        for processor in tuple(self._processors):
            processor.end()
        if tasks:
            await asyncio.wait(tasks, timeout=CANCEL_SECONDS)
        stops = [self._loop.create_task(self._stop_one(handler)) for handler in reversed(self._started)]
        if stops:
            await asyncio.wait(stops, timeout=STOP_SECONDS)

    async def _stop_one(self, handler: LoadedHandler) -> None:
        try:
            await self._call(handler, "stop")
        except BaseException as error:
            self._report_error(f"stop of the handler {handler.name}", error)

    async def _call(self, handler: LoadedHandler, name: str) -> None:
        """Call the start or stop of a handler that is an object, if it has one."""
        method: Any = getattr(handler.target, name, None)
        if method is None or handler.handle is handler.target:
            return
        self._reporter.is_interruptible = True
        try:
            result = method()
        finally:
            self._reporter.is_interruptible = not self._end.is_set()
        if inspect.isawaitable(result):
            await result

    # The processors.

    def _on_handover(self) -> None:
        while True:
            try:
                received = receive_handovers(self._handover)
            except (EOFError, OSError):  # the reporter notices it at the command socket, too
                self._loop.remove_reader(self._handover.fileno())
                return
            except LinkError as error:
                self._report_error("hand-over", error)
                return
            if not received:
                return
            for handover, descriptor in received:
                self._take(handover, descriptor)

    def _take(self, handover: Handover, descriptor: int) -> None:
        if descriptor < 0 or handover.listener != HANDLER_PROCESS:
            if descriptor >= 0:
                os.close(descriptor)
            lost = "its descriptor was lost" if descriptor < 0 else f"it is for {handover.listener}"
            self._reporter.notify(event_notice("handover_failed", HandoverFailedRow(error=f"the socket to processor {handover.peer}: {lost}")))
            if descriptor < 0:
                self._report_parted(handover, lost)
            return
        self._begin(socket.socket(fileno=descriptor), handover)

    def _begin(self, sock: socket.socket, handover: Handover) -> None:
        def broken(processor: Processor, error: Exception) -> None:
            self._report_error(f"socket to processor {processor.name}", error)
            self._report_parted(handover, str(error))

        processor = Processor(
            sock,
            handover.peer,
            self._handlers,
            self._loop,
            time.monotonic_ns,
            self._activity,
            self._failures,
            self._answers,
            broken,
            self._processors.discard,
        )
        self._processors.add(processor)
        try:
            processor.begin(self._hello)
        except OSError as error:  # the loop cannot wait for it
            processor.end()
            broken(processor, error)

    # Messages to control.

    def _report_raised(self, row: HandlerRaisedRow) -> None:
        self._reporter.notify(event_notice("handler_raised", row))

    def _report_parted(self, handover: Handover, error: str) -> None:
        """Ask control to connect the processor and this process again, unless this process ends."""
        if not self._end.is_set():
            self._reporter.notify(PartedNotice(type="parted", pair=handover.accepted_ns, error=error))

    def _report_error(self, place: str, error: BaseException) -> None:
        text, _, at = error_line(error).rpartition(" (")
        row = InternalErrorRow(place=place, count=1, error=text or at, at=at.rstrip(")") if text else "")
        self._reporter.notify(event_notice("internal_error", row))
