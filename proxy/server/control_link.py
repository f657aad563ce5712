"""A processor's end of the link: it reads commands, takes connections over, and sends replies, notices and rows.

``link`` is the codec; here are the sockets and the events that they are watched for. A message that must arrive is queued (``reply``) and written
after the poll (``flush``). Rows of connections that opened or closed are collected for a few milliseconds; every later message is sent after them.

While control does not read the replies, neither commands nor connections are read: closed notices are never dropped, so no more may arise.
"""

import os
import select
import socket
import time
from collections.abc import Callable, Mapping
from typing import Final

from mypy_extensions import i64

from framegate.proxy.cause import Cause
from framegate.proxy.kafka.addresses import SeenBroker
from framegate.proxy.network.connection_socket import adopt_socket
from framegate.proxy.network.epoll import FdHandler
from framegate.proxy.network.selector import Selector
from framegate.proxy.relay.pair import Pair
from framegate.proxy.relay.quotas import DemandWatcher, KeyDemand
from framegate.proxy.relay.relay import Relay
from framegate.proxy.relay.request_sampler import RequestSpan
from framegate.proxy.relay.route import Route
from framegate.proxy.server.commands import Commands
from framegate.proxy.server.link import HANDLER_PROCESS, MAX_TOGETHER, Handover, LinkError, LinkReader, LinkWriter, receive_handovers, row_of
from framegate.proxy.server.messages import BrokersSeenNotice, DemandNotice, FrameRefusedNotice, PartedNotice, RequestSpansNotice, RowsNotice
from framegate.proxy.server.pair_rows import (
    closed_line,
    demand_row,
    opened_line,
    refused_frame_row,
    refused_line,
    reported_frame_row,
    request_span_row,
)
from framegate.proxy.server.protocol import event_notice
from framegate.proxy.server.rows import EventRow, HandoverFailedRow, RefusedFrameRow, RequestSpanRow, SeenBrokerRow
from framegate.proxy.server.settings import Settings

FRAME_TOO_LARGE: Final = Cause.FRAME_TOO_LARGE  # an attribute of an enumeration costs a Python call
NEGATIVE_SIZE: Final = Cause.NEGATIVE_SIZE
READ_BYTES: Final = 65536
MAX_REPLY_BYTES: Final = 1 << 20
MAX_JOBS: Final = 64
MAX_ROWS: Final = 128  # rows of connections in one message
MAX_REQUESTS: Final = 32  # likewise of requests that have a span
ROWS_WAIT_NS: Final = 4_000_000  # for others, of the first of them
LINK_CLOSE_MS: Final = 1_000
READABLE: Final = select.EPOLLIN
WRITABLE: Final = select.EPOLLOUT


class CallbackHandler(FdHandler):
    """Calls a function with the events of a descriptor."""

    def __init__(self, callback: Callable[[int], None]) -> None:
        self._callback: Final = callback

    def on_event(self, events: i64) -> None:
        self._callback(int(events))


class ControlLink(DemandWatcher):
    """The link, as a processor has it.

    Args:
        command, handover: the sockets, non-blocking.
        reader: may hold the beginning of messages already.
        drain: begins a drain; takes its timeout in ms, and the delay of a lead-in, or ``NO_LEAD_IN``.
    """

    def __init__(
        self,
        *,
        command: socket.socket,
        handover: socket.socket,
        reader: LinkReader,
        selector: Selector,
        relay: Relay,
        settings: Settings,
        drain: Callable[[int, int], None],
        stop: Callable[[], None],
        lost: Callable[[], None],
    ) -> None:
        self._command: Final = command
        self._handover: Final = handover
        self._reader: Final = reader
        self.writer: Final = LinkWriter(command)  # holds the bytes that wait to be written, and counts the log rows that it dropped
        self._selector: Final = selector
        self._relay: Final = relay
        self._settings: Final = settings
        self._lost: Final = lost
        self.commands: Final = Commands(relay, settings, drain, self.reply, self._report_access, stop)  # carries out control's commands
        self.working: bool = False  # a job has further steps
        self.replied: bool = False  # something is queued that ``flush`` has not written
        self._opened: Final[list[str]] = []
        self._closed: Final[list[str]] = []
        self._requests: list[RequestSpanRow] = []
        self._rows_ns: i64 = 0  # when the first of these was made
        self._command_handler: Final = CallbackHandler(self._on_command)
        self._handover_handler: Final = CallbackHandler(self._on_handover)
        self._interest: int = 0
        self._up: bool = True
        self._handing: bool = False
        self._takes_over: bool = True
        self._finishing: bool = False
        relay.pairs.quotas.watcher = self
        settings.attach_link(self._report_brokers, self.reply)

    # What is sent.

    def reply(self, message: Mapping[str, object]) -> None:
        """Queue a message that must arrive, after the rows of connections; ``flush`` writes it."""
        if self._up:
            self.queue_rows()
            self.writer.queue(message)
            self.replied = True

    def queue_due(self, now_ns: i64, timeout_ms: i64) -> i64:
        """Queue the rows of connections if they are many, or have waited long enough: one message for each would cost more than the rows. Returns:
        How long the next poll may wait, in ms: at most ``timeout_ms``.
        """
        if not self._closed and not self._opened:
            return timeout_ms
        left_ns = self._rows_ns + ROWS_WAIT_NS - now_ns
        if left_ns <= 0 or len(self._closed) >= MAX_ROWS or len(self._opened) >= MAX_ROWS:
            self.queue_rows()
            return timeout_ms
        return min(timeout_ms, (left_ns + 999_999) // 1_000_000)

    def queue_rows(self) -> None:
        """Queue the rows of connections now; those of opened ones first, because some of them may have closed since."""
        self._queue_all(RowsNotice(type="opened"), self._opened)
        self._queue_all(RowsNotice(type="closed"), self._closed)

    def _queue_all(self, notice: RowsNotice, rows: list[str]) -> None:
        while rows:
            self.writer.queue(notice, rows[:MAX_ROWS])
            del rows[:MAX_ROWS]
            self.replied = True

    def flush(self) -> None:
        self.replied = False
        if not self._up:
            return
        try:
            self.writer.flush()
        except OSError:
            self._end()
            return
        self.watch()

    def notify(self, event: str, row: EventRow) -> None:
        """Send a row (``protocol.EVENTS``) that must arrive, because control keeps it as state or it reports a loss. For rare events."""
        self.reply(event_notice(event, row))

    def log(self, event: str, row: EventRow) -> None:
        """Send a row (``protocol.EVENTS``); while too much waits to be written it is dropped and counted."""
        if not self._up:
            return
        try:
            self.writer.offer(event_notice(event, row))
        except OSError:
            self._end()
            return
        self.watch()

    def demanded(self, demands: list[KeyDemand]) -> None:
        """Send the demand, unless other bytes wait: it is sent again soon."""
        if self.writer.pending == 0:
            self.reply(DemandNotice(type="demand", demands=[demand_row(each) for each in demands]))

    def pair_opened(self, pair: Pair) -> None:
        if self._up:
            self._collect(self._opened, opened_line(pair, self._relay.pairs.wall_offset_ns))

    def pair_closed(self, pair: Pair) -> None:
        client, line = pair.client.channel, closed_line(pair, self._relay.pairs.wall_offset_ns)
        principal, peer = ("", "") if client is None else (client.principal, client.peer)
        self._relay.note_end(row_of(line), pair.route, pair.id, principal, peer, pair.opened_ns, pair.closed_ns)
        if self._up:
            self._collect(self._closed, line)
            if pair.cause is FRAME_TOO_LARGE or pair.cause is NEGATIVE_SIZE:
                self._report_refused(pair)
        self.commands.pair_changed()

    def _report_refused(self, pair: Pair) -> None:
        """Send the frame for whose size a pair was closed; while too much waits to be written it is dropped."""
        for leg in (pair.client, pair.upstream):
            row = refused_frame_row(pair, leg, self._relay.pairs.wall_offset_ns)
            if row is not None:
                self._offer_refused(row)

    def frame_reported(self, pair: Pair, size: i64, head: bytes) -> None:
        if self._up:
            self._offer_refused(reported_frame_row(pair, size, head, self._relay.pairs.wall_offset_ns))

    def request_ended(self, pair: Pair, span: RequestSpan) -> None:
        """A Kafka request with a span is over: collect its row."""
        if self._up:
            self._requests.append(request_span_row(pair, span, self._relay.pairs.wall_offset_ns))
        if len(self._requests) >= MAX_REQUESTS:
            self.report_requests()

    def report_requests(self) -> None:
        """Send the requests that have a span; while too much waits to be written they are skipped, and counted in the next report."""
        sampler, spans = self._relay.pairs.sampler, self._requests
        if not self._up or (not spans and sampler.skipped == 0):
            return
        self._requests = []
        try:
            if self.writer.offer(RequestSpansNotice(type="request_spans", spans=spans, skipped=int(sampler.skipped))):
                sampler.skipped = 0
            else:
                sampler.skipped += len(spans)
        except OSError:
            self._end()
        else:
            self.watch()

    def _offer_refused(self, row: RefusedFrameRow) -> None:
        try:
            self.writer.offer(FrameRefusedNotice(type="frame_refused", row=row))
        except OSError:
            self._end()
        else:
            self.watch()

    def _collect(self, rows: list[str], line: str) -> None:
        if not self._closed and not self._opened:
            self._rows_ns = self._selector.now_ns
        rows.append(line)

    def _report_brokers(self, upstream: str, seen: list[SeenBroker]) -> None:
        rows = [SeenBrokerRow(id=each.node, host=each.host, port=each.port, rack=each.rack or "") for each in seen]
        self.reply(BrokersSeenNotice(type="brokers_seen", upstream=upstream, brokers=rows))

    def _report_access(self, lines: list[str]) -> None:
        """Queue the rows of pairs that are open, before every later message."""
        if self._up:
            self.queue_rows()
            self.writer.queue(RowsNotice(type="access"), lines)
            self.replied = True

    # Commands.

    def work(self, until_ns: int) -> None:
        self._selector.close_lanes()
        self.commands.work(until_ns, time.monotonic_ns)
        self.watch()

    def _on_command(self, events: int) -> None:
        try:
            if events & WRITABLE:
                self.writer.flush()
            if events & ~WRITABLE:
                self._selector.close_lanes()  # limits, taps and quotas may change
                data = self._command.recv(READ_BYTES)
                if not data:
                    self._end()
                    return
                for message in self._reader.feed(data):
                    self.commands.handle(message)
        except BlockingIOError:
            return
        except (OSError, LinkError):
            self._end()
            return
        self.watch()

    # Connections.

    def _on_handover(self, events: int) -> None:
        """Take over the connections that wait, at most as many as the selector accepts in one poll."""
        del events
        try:
            while self._selector.register_budget >= MAX_TOGETHER:
                found = receive_handovers(self._handover)
                if not found:
                    return
                for handover, descriptor in found:
                    self._take_over_safely(handover, descriptor)
        except (EOFError, OSError):
            self._end()
        except LinkError as error:
            self.log("handover_failed", HandoverFailedRow(error=str(error)))

    def _take_over_safely(self, handover: Handover, descriptor: int) -> None:
        """An exception costs this connection; those that came with it are taken over."""
        try:
            self._take_over(handover, descriptor)
        except Exception as error:
            self._selector.faults.note("descriptor", error)

    def _take_over(self, handover: Handover, descriptor: int) -> None:
        if handover.listener == HANDLER_PROCESS:
            self._take_over_process(handover, descriptor)
            return
        route = self._settings.routes.get(handover.listener)
        if route is None:
            if descriptor >= 0:
                os.close(descriptor)
            self.log("handover_failed", HandoverFailedRow(error=f"no listener {handover.listener}"))
            return
        if descriptor < 0:
            self._refuse(handover, route, Cause.LIMIT, "no descriptor to be had")
            return
        sock = None
        try:
            sock = adopt_socket(handover.family, descriptor)
            pair = self._relay.take_over(sock, route, handover.peer, handover.accepted_ns, handover.broker)
            if handover.listener in self._settings.leaving:
                self._settings.drain_pair(pair)
        except OSError as error:
            if sock is None:
                os.close(descriptor)
            else:
                sock.close()
            self._refuse(handover, route, Cause.INTERNAL, str(error))

    def _take_over_process(self, handover: Handover, descriptor: int) -> None:
        """A socket to a handler process; ``handover.peer`` is its slot and generation."""
        requests = self._settings.in_force.requests
        if requests is None:
            if descriptor >= 0:
                os.close(descriptor)
            self.log("handover_failed", HandoverFailedRow(error=f"handler process {handover.peer}: no listener has a handler"))
            return
        if descriptor < 0:
            self._not_joined(handover, "no descriptor to be had")
            return
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, descriptor)
        try:
            process = requests.take_over(sock, handover.peer)
        except OSError as error:
            sock.close()
            self._not_joined(handover, str(error))
        else:
            process.on_parted = lambda why: self._parted(handover, why)

    def _not_joined(self, handover: Handover, reason: str) -> None:
        self.log("handover_failed", HandoverFailedRow(error=f"handler process {handover.peer}: {reason}"))
        self._parted(handover, reason)

    def _parted(self, handover: Handover, error: str) -> None:
        """Report that this processor has no socket to a handler process, so that control makes another; not while this processor ends."""
        if self._takes_over and not self._finishing:
            self.reply(PartedNotice(type="parted", pair=handover.accepted_ns, error=error))

    def _refuse(self, handover: Handover, route: Route, cause: Cause, detail: str) -> None:
        """A connection that cannot be taken over has a closed row, like every other."""
        number, accepted_ns, now_ns = self._relay.refuse(route, cause), handover.accepted_ns, self._selector.now_ns
        line = refused_line(number, route, handover.peer, handover.broker, accepted_ns, now_ns, self._relay.pairs.wall_offset_ns, cause, detail)
        self._relay.note_end(row_of(line), route, number, "", handover.peer, accepted_ns, now_ns)
        if self._up:
            self._collect(self._closed, line)

    # The events that are watched, and the end.

    def watch(self) -> None:
        self.working = self.commands.busy
        if not self._up or self._finishing:
            return
        pending: i64 = self.writer.pending
        behind = pending > MAX_REPLY_BYTES or self.commands.backlog > MAX_JOBS
        interest = (0 if behind else READABLE) | (WRITABLE if pending > 0 else 0)
        if interest != self._interest:
            self._interest = interest
            self._selector.watch(self._command.fileno(), self._command_handler, interest)
        handing = not behind and self._takes_over
        if handing != self._handing:
            self._handing = handing
            if handing:
                self._selector.watch(self._handover.fileno(), self._handover_handler)
            else:
                self._selector.unwatch(self._handover.fileno())

    def take_no_more(self) -> None:
        """Take no further connections over: those that wait stay in the socket."""
        self._takes_over = False
        self.watch()

    def finish(self) -> None:
        """Watch no events any more; only ``flush`` and ``close`` write from now on."""
        self._finishing = True

    def close(self) -> None:
        """Write what is queued while control reads it, for ``LINK_CLOSE_MS`` at most."""
        self.queue_rows()
        if not self._up:
            return
        room = select.poll()
        room.register(self._command.fileno(), select.POLLOUT)
        until_ns: i64 = time.monotonic_ns() + LINK_CLOSE_MS * 1_000_000
        try:
            while not self.writer.flush():
                left_ms = (until_ns - i64(time.monotonic_ns())) // 1_000_000
                if left_ms <= 0 or not room.poll(int(left_ms)):
                    return
        except OSError:  # control is gone
            self._up = False

    def _end(self) -> None:
        if self._up:
            self._up = False
            self._selector.unwatch(self._command.fileno())
            if self._handing:
                self._handing = False
                self._selector.unwatch(self._handover.fileno())
            if self._settings.in_force.credentials is not None:
                self._settings.in_force.credentials.lose()
            self._lost()
