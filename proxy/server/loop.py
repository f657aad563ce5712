"""The loop of a processor: one thread that polls the selector and, between polls, does what is not a channel's.

After each poll: jobs of control for at most 1 ms, blocks of the tap that are due, and the cells, at most once a millisecond; a poll that
follows one whose counts are not published yet waits no longer than what is left of that millisecond. Idle, the loop wakes ten times a
second for the heartbeat.

How it ends: ``stop``, SIGTERM after its drain, or the end of the link. What was received is written for a second more, every connection gets its
row, the tap is flushed, the cells are published, and the link has what was queued for it. No way takes longer than 5 s, but for the drain that
SIGTERM begins. A second SIGTERM does without the rest of the drain, and a third, or a second ``stop``, without the second of courtesy.

What raises costs the connection, timer or command that it happened to (``network.faults``), and is logged, at most once a second for each place.
Only an error of the selector itself ends the loop, in the same order as any other end, and the process with code 1.

A link whose replies do not drain stops being read, and so does the hand-over: closed notices are never dropped, so no more may arise.
"""

import gc
import os
import select
import socket
import time
from typing import Any, Final

from mypy_extensions import i64

from proxy.cells import CellWriter, State
from proxy.network.cause import Cause
from proxy.network.listener import FdHandler
from proxy.network.selector import Selector
from proxy.network.timer import Timer
from proxy.relay.counters import Publisher
from proxy.relay.drain import Drain
from proxy.relay.pair import Pair
from proxy.relay.relay import Relay
from proxy.relay.route import Route
from proxy.relay.rows import closed_row, endpoint_row, refused_row
from proxy.relay.upstream import Endpoint, Upstream
from proxy.relay.watcher import PairWatcher
from proxy.server.commands import Commands
from proxy.server.heap import Heap
from proxy.server.link import Handover, LinkError, LinkReader, LinkWriter, encode_closed, receive_handover
from proxy.server.settings import Settings
from proxy.tap.writer import TapWriter

__all__ = ["Loop"]

Message = dict[str, Any]
PUBLISH_NS: Final = 1_000_000
SLICE_NS: Final = 1_000_000
BEAT_MS: Final = 100
OFFSET_NS: Final = 1_000_000_000
HEAP_NS: Final = 250_000_000
READ_BYTES: Final = 65536
MAX_REPLY_BYTES: Final = 1 << 20
MAX_JOBS: Final = 64
MAX_ROWS: Final = 128  # closed rows in one message
FAULTS_NS: Final = 1_000_000_000
END_NS: Final = 1_500_000_000  # these three, and what a stuck disk takes more, are the 5 s
TAP_CLOSE_MS: Final = 2_000
LINK_CLOSE_MS: Final = 1_000
GC_THRESHOLD: Final = 50_000
READABLE: Final = select.EPOLLIN
WRITABLE: Final = select.EPOLLOUT
SIGTERM: Final = 15


class _CommandSocket(FdHandler):
    """The command socket is ready."""

    def __init__(self, loop: "Loop") -> None:
        self._loop: Final = loop

    def on_event(self, events: i64) -> None:
        self._loop.on_command(events)


class _HandoverSocket(FdHandler):
    """Connections wait."""

    def __init__(self, loop: "Loop") -> None:
        self._loop: Final = loop

    def on_event(self, events: i64) -> None:
        self._loop.on_handover()


class _Wakeup(FdHandler):
    """A signal came."""

    def __init__(self, loop: "Loop", sock: socket.socket) -> None:
        self._loop: Final = loop
        self._socket: Final = sock

    def on_event(self, events: i64) -> None:
        for number in self._socket.recv(256):
            if number == SIGTERM:
                self._loop.on_sigterm()


class _TapWakeup(FdHandler):
    """The tap's log may accept again."""

    def __init__(self, loop: "Loop", fd: int) -> None:
        self._loop: Final = loop
        self._fd: Final = fd

    def on_event(self, events: i64) -> None:
        os.read(self._fd, 8)
        self._loop.on_tap()


class _EndTimer(Timer):
    """The courtesy of the end is over."""

    def __init__(self, loop: "Loop") -> None:
        super().__init__()
        self._loop: Final = loop

    def fire(self, now_ns: i64) -> None:
        self._loop.finished = True


class Watcher(PairWatcher):
    """Tells the loop of pairs; made before it."""

    def __init__(self) -> None:
        self.loop: Loop | None = None

    def pair_closed(self, pair: Pair) -> None:
        if self.loop is not None:
            self.loop.on_pair_closed(pair)

    def pair_muted(self, pair: Pair) -> None:
        if self.loop is not None:
            self.loop.on_pair_muted()

    def drained(self, cut_off: int) -> None:
        if self.loop is not None:
            self.loop.on_drained(cut_off)

    def endpoint_changed(self, upstream: Upstream, endpoint: Endpoint) -> None:
        if self.loop is not None:
            self.loop.on_endpoint_changed(upstream, endpoint)


class Loop:
    """One processor at work.

    Args:
        relay, selector, settings: the data path.
        cells, publisher: the shared counters.
        tap: the tap's writer, or None; ``tap_fd`` is the eventfd it wakes us with, or -1.
        command, handover: the link's sockets, non-blocking.
        wakeup: the read end of the signal wake-up.
        reader: may hold the beginning of messages already.
        heap: is told what is held.

    Attributes:
        finished: the loop is to end.
    """

    def __init__(
        self,
        *,
        relay: Relay,
        selector: Selector,
        settings: Settings,
        watcher: Watcher,
        drain: Drain,
        cells: CellWriter,
        publisher: Publisher,
        tap: TapWriter | None,
        tap_fd: int,
        command: socket.socket,
        handover: socket.socket,
        wakeup: socket.socket,
        reader: LinkReader,
        heap: Heap,
    ) -> None:
        self.finished: bool = False
        self._relay: Final = relay
        self._selector: Final = selector
        self._settings: Final = settings
        self._drain: Final = drain
        self._cells: Final = cells
        self._publisher: Final = publisher
        self._tap: Final = tap
        self._tap_fd: Final = tap_fd
        self._command: Final = command
        self._handover: Final = handover
        self._wakeup: Final = wakeup
        self._reader: Final = reader
        self._heap: Final = heap
        self._pool: Final = settings.pool
        self._most_held: i64 = 0
        self._heap_ns: i64 = 0
        self._writer: Final = LinkWriter(command)
        self._commands: Final = Commands(relay, settings, self.begin_drain, self.reply, self.stop)
        self._published_ns: i64 = 0
        self._offset_ns: i64 = 0
        self._busy_ns: i64 = 0
        self._interest: int = 0
        self._working: bool = False
        self._link_up: bool = True
        self._replied: bool = False
        self._closed: Final[list[str]] = []
        self._handing: bool = False
        self._ending: bool = False
        self._finishing: bool = False
        self._terminations: int = 0
        self._told_ns: i64 = 0
        self._tap_failures: i64 = 0
        watcher.loop = self
        self._set_clock()

    def announce(self, message: Message) -> None:
        """Say that this processor is ready."""
        self._cells.state(State.SERVING)
        self._publish(self._selector.now_ns)
        self.reply(message)
        self._send_replies()

    def run(self, early: list[Message]) -> bool:
        """Serve until the end.

        Args:
            early: messages that came along with ``start``.

        Returns:
            Whether the end was asked for; False: an error ended it.
        """
        orderly = True
        try:
            self._serve(early)
        except Exception as error:
            orderly = False
            self._selector.faults.note("loop", error)
        self._finish()
        return orderly

    def _serve(self, early: list[Message]) -> None:
        selector = self._selector
        selector.watch(self._wakeup.fileno(), _Wakeup(self, self._wakeup))
        if self._tap_fd >= 0:
            selector.watch(self._tap_fd, _TapWakeup(self, self._tap_fd))
        self._watch_link()
        for message in early:
            self._commands.handle(message)
        gc.collect()
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD, 20, 20)
        timeout_ms: i64 = 0
        while not self.finished:
            selector.poll(timeout_ms)
            timeout_ms = self._between(selector.now_ns)

    def _between(self, now_ns: i64) -> i64:
        """What is done between two polls; how long the next one may wait, in ms."""
        timeout_ms: i64 = BEAT_MS
        busy_ns = self._selector.busy_ns
        self._relay.pairs.loop.lag.observe(busy_ns - self._busy_ns)
        self._busy_ns = busy_ns
        if self._working:
            self._commands.work(time.monotonic_ns() + SLICE_NS, time.monotonic_ns)
            self._watch_link()
            if self._working:
                timeout_ms = 0
        self._most_held = max(self._most_held, self._pool.used)
        if now_ns - self._heap_ns >= HEAP_NS:
            self._heap_ns = now_ns
            self._heap.look(self._most_held, self._selector.channel_count)
            self._most_held = 0
        if now_ns - self._offset_ns >= OFFSET_NS:
            self._offset_ns = now_ns
            self._set_clock()
            if self._tap is not None:
                self._tap.revive()
        if self._tap is not None:
            timeout_ms = self._look_at_tap(self._tap, now_ns, timeout_ms)
        if now_ns - self._published_ns >= PUBLISH_NS:
            self._publish(now_ns)
            self._queue_closed()
        else:
            timeout_ms = min(timeout_ms, 1)
        if self._replied:
            self._send_replies()
        return timeout_ms

    def _look_at_tap(self, tap: TapWriter, now_ns: i64, timeout_ms: i64) -> i64:
        """Have the tap do what is due; how long the next poll may wait, in ms."""
        try:
            due_ns = tap.poll_due(now_ns)
        except Exception as error:
            self._selector.faults.note("tap", error)
            return timeout_ms
        self._look_at_rules(now_ns + self._relay.pairs.wall_offset_ns)
        return timeout_ms if due_ns == 0 else min(timeout_ms, max((due_ns - now_ns) // 1_000_000, 0))

    def _look_at_rules(self, wall_ns: i64) -> None:
        """Say which rules turned themselves off; what waited for the log by a rule that is over goes on."""
        rules = self._relay.pairs.rules
        if rules is None:
            return
        over = rules.expire(wall_ns)
        for off in rules.take_turned_off(wall_ns):
            over = True
            self.tell("warning", "tap_rule_off", rule=off.rule, cause=off.cause, percent=round(off.percent, 1), limit=off.limit)
        if over:
            self._relay.pairs.ask_again()

    def _set_clock(self) -> None:
        self._relay.pairs.wall_offset_ns = i64(time.time_ns()) - i64(time.monotonic_ns())

    def _publish(self, now_ns: i64) -> None:
        self._published_ns = now_ns
        loop = self._relay.pairs.loop
        loop.busy_ns = self._selector.busy_ns
        loop.idle_ns = self._selector.idle_ns
        loop.link_dropped = self._writer.dropped_count
        faults = self._selector.faults
        tap = self._tap
        if tap is not None and tap.thread.failures != self._tap_failures:
            self._tap_failures = tap.thread.failures
            faults.note_text("tap", tap.thread.failure)
        if tap is not None:
            tap.tallies.settle(now_ns)
        loop.faults = faults.counts
        if faults.untold and now_ns - self._told_ns >= FAULTS_NS:
            self._told_ns = now_ns
            self._tell_faults()
        try:
            self._publisher.publish()
        except Exception as error:
            faults.note("loop", error)
        self._cells.beat(int(now_ns))

    def _tell_faults(self) -> None:
        for fault in self._selector.faults.take():
            self.log("error", "internal_error", place=fault.place, count=fault.times, error=fault.error, at=fault.at)

    # The link.

    def reply(self, message: Message) -> None:
        """Send a message that must arrive, together with all others of this turn of the loop, and after the connections that have closed."""
        if self._link_up:
            self._queue_closed()
            self._writer.queue(message)
            self._replied = True

    def _queue_closed(self) -> None:
        """Send the closed rows: as often as the counts are published, since a message and a wake-up of control for each would cost more than they."""
        rows = self._closed
        while rows:
            self._writer.queue({"type": "closed"}, rows[:MAX_ROWS])
            del rows[:MAX_ROWS]
            self._replied = True

    def _send_replies(self) -> None:
        """Write what this turn of the loop had to tell."""
        self._replied = False
        if not self._link_up:
            return
        try:
            self._writer.flush()
        except OSError:
            self._link_lost()
            return
        self._watch_link()

    def tell(self, level: str, event: str, **fields: Any) -> None:
        """Send a log row that control keeps as state, or that stands for what is lost: it must arrive. For what cannot come often."""
        self.reply(_log_row(level, event, fields))

    def log(self, level: str, event: str, **fields: Any) -> None:
        """Send a log row; lost, and counted, when the link is behind."""
        if not self._link_up:
            return
        try:
            self._writer.offer(_log_row(level, event, fields))
        except OSError:
            self._link_lost()
            return
        self._watch_link()

    def on_command(self, events: i64) -> None:
        """The command socket is writable, or readable."""
        try:
            if events & WRITABLE:
                self._writer.flush()
            if events & ~WRITABLE:
                data = self._command.recv(READ_BYTES)
                if not data:
                    self._link_lost()
                    return
                for message in self._reader.feed(data):
                    self._commands.handle(message)
        except BlockingIOError:
            return
        except (OSError, LinkError):
            self._link_lost()
            return
        self._watch_link()

    def _watch_link(self) -> None:
        """Wait for what the link's sockets may be used for now."""
        self._working = self._commands.busy
        if not self._link_up or self._finishing:
            return
        pending: i64 = self._writer.pending
        behind = pending > MAX_REPLY_BYTES or self._commands.backlog > MAX_JOBS
        interest = (0 if behind else READABLE) | (WRITABLE if pending > 0 else 0)
        if interest != self._interest:
            self._interest = interest
            self._selector.watch(self._command.fileno(), _CommandSocket(self), interest)
        handing = not behind and not self._ending
        if handing != self._handing:
            self._handing = handing
            if handing:
                self._selector.watch(self._handover.fileno(), _HandoverSocket(self))
            else:
                self._selector.unwatch(self._handover.fileno())

    def _link_lost(self) -> None:
        """Control is gone."""
        if self._link_up:
            self._link_up = False
            self._selector.unwatch(self._command.fileno())
            if self._handing:
                self._handing = False
                self._selector.unwatch(self._handover.fileno())
            self._begin_end("control is gone")

    def on_handover(self) -> None:
        """Take over what waits, at most what the selector wants in one poll."""
        try:
            while self._selector.register_budget > 0:
                found = receive_handover(self._handover)
                if found is None:
                    return
                self._take_over(found[0], found[1])
        except (EOFError, OSError):
            self._link_lost()
        except LinkError as error:
            self.log("error", "handover_failed", error=str(error))

    def _take_over(self, handover: Handover, descriptor: int) -> None:
        route = self._settings.routes.get(handover.listener)
        if route is None:
            if descriptor >= 0:
                os.close(descriptor)
            self.log("error", "handover_failed", error=f"no listener {handover.listener}")
            return
        if descriptor < 0:
            self._refuse(handover, route, Cause.LIMIT, "no descriptor to be had")
            return
        sock = None
        try:
            sock = socket.socket(handover.family, socket.SOCK_STREAM, 0, descriptor)  # said, so that nobody asks the system
            self._relay.take_over(sock, route, handover.peer, handover.accepted_ns)
        except OSError as error:
            if sock is None:
                os.close(descriptor)
            else:
                sock.close()
            self._refuse(handover, route, Cause.INTERNAL, str(error))

    def _refuse(self, handover: Handover, route: Route, cause: Cause, detail: str) -> None:
        """A connection that cannot be taken over ends with its row, like every other."""
        number = self._relay.refuse(route, cause)
        offset_ns = self._relay.pairs.wall_offset_ns
        row = refused_row(number, route, handover.peer, handover.accepted_ns + offset_ns, self._selector.now_ns + offset_ns, cause, detail)
        self._tell_closed(row, handover.accepted_ns)

    def _tell_closed(self, row: dict[str, Any], accepted_ns: int) -> None:
        if self._link_up:
            self._closed.append(encode_closed(row, accepted_ns))

    # What is told.

    def on_pair_closed(self, pair: Pair) -> None:
        """A pair is over."""
        if self._ending and not self._relay.pairs.open:
            self.finished = True
        self._tell_closed(closed_row(pair, self._relay.pairs.wall_offset_ns), pair.opened_ns)
        self._commands.pair_changed()

    def on_pair_muted(self) -> None:
        """A mute is in force."""
        self._commands.pair_changed()

    def on_drained(self, cut_off: int) -> None:
        """No pair is left."""
        self.reply({"type": "drained", "open": len(self._relay.pairs.open), "cut_off": cut_off})
        if self._terminations:
            self.stop()

    def on_endpoint_changed(self, upstream: Upstream, endpoint: Endpoint) -> None:
        """An endpoint is left out, or used again."""
        if endpoint.down:
            self.log("warning", "endpoint_down", **endpoint_row(upstream, endpoint))
        else:
            self.log("info", "endpoint_up", **endpoint_row(upstream, endpoint))

    def on_tap(self) -> None:
        """The tap's log may accept again."""
        self._relay.pairs.tap_accepts()

    # The end.

    def on_sigterm(self) -> None:
        """Drain, then exit; the second time, exit; the third time, at once."""
        self._terminations += 1
        if self._terminations > 1:
            self.stop()
        elif not self._ending:
            self.begin_drain(self._settings.config.drain.timeout_ms)

    def begin_drain(self, timeout_ms: int) -> None:
        """No new pairs; end those that are open when they are quiet."""
        self._relay.pairs.draining = True
        self._relay.pairs.loop.draining = 1
        self._cells.state(State.DRAINING)
        self._drain.start(timeout_ms * 1_000_000)

    def stop(self) -> None:
        """Write what was received, flush, exit; the second time, without what was received."""
        if self._ending:
            self.finished = True
        self._begin_end("")

    def _begin_end(self, detail: str) -> None:
        if self._ending:
            return
        self._ending = True
        self._watch_link()
        pairs = self._relay.pairs
        pairs.draining = True
        for pair in list(pairs.open.values()):
            pair.end(Cause.DRAINED, detail, "internal")
        if pairs.open:
            self._selector.call_at(self._selector.now_ns + END_NS, _EndTimer(self))
        else:
            self.finished = True

    def _finish(self) -> None:
        """Every step is taken whatever became of the one before. The selector is asked to wait for nothing any more; the link is written here."""
        self._finishing = True
        for step in (self._commands.end, self._close_pairs, self._close_tap, self._close_cells, self._close_link, self._selector.close):
            try:
                step()
            except Exception as error:
                self._selector.faults.note("loop", error)

    def _close_pairs(self) -> None:
        """End those that are left; what is to be told of them goes out before the tap may take its time."""
        self._selector.close_channels(Cause.DRAINED)
        self._queue_closed()
        self._publish(self._selector.now_ns)
        self._send_replies()

    def _close_tap(self) -> None:
        if self._tap is not None and not self._tap.flush_and_close(TAP_CLOSE_MS):
            self.tell("error", "tap_incomplete", error=self._tap.error)

    def _close_cells(self) -> None:
        self._publish(self._selector.read_clock())
        self._cells.state(State.STOPPED)

    def _close_link(self) -> None:
        """Write what is queued, for as long as control takes it, and a second at most."""
        self._tell_faults()
        self._queue_closed()
        if not self._link_up:
            return
        room = select.poll()
        room.register(self._command.fileno(), select.POLLOUT)
        until_ns: i64 = time.monotonic_ns() + LINK_CLOSE_MS * 1_000_000
        try:
            while not self._writer.flush():
                left_ms = (until_ns - i64(time.monotonic_ns())) // 1_000_000
                if left_ms <= 0 or not room.poll(int(left_ms)):
                    return
        except OSError:  # control is gone
            self._link_up = False


def _log_row(level: str, event: str, fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "log", "level": level, "event": event, "fields": fields}
