"""The loop of a processor: one thread that polls the selector and, between polls, does everything that does not belong to a channel.

After each poll: jobs of control for at most 1 ms, blocks of the tap that are due, and the cells, at most once a millisecond; while counts are not
published, the next poll waits no longer than the rest of that millisecond. An idle loop wakes ten times a second for the heartbeat.

It ends on ``stop``, on SIGTERM after a drain, or when the link ends. Then received frames are written for 1.5 s at most, every connection gets its
closed row, the tap is flushed, the cells are published, and the link's queue is written. All of this takes 5 s at most, without the drain. A second
SIGTERM ends the drain; a third, or a second ``stop``, ends the writing of received frames.

An exception costs the connection, timer or command in which it is raised (``network.faults``). It is logged, at most once a second for each place.
Only an exception of the selector itself ends the loop: in the same order as any other end, and the process exits with code 1.

The link to control is in ``control_link``.
"""

import gc
import os
import socket
import time
from typing import Any, Final

from mypy_extensions import i64

from framegate.proxy.cause import Cause
from framegate.proxy.cells import PROCESSOR_BLOCK, CellWriter, State
from framegate.proxy.network.selector import Selector
from framegate.proxy.network.timer import CallbackTimer
from framegate.proxy.relay import ending
from framegate.proxy.relay.drain import NO_LEAD_IN, Drain
from framegate.proxy.relay.in_flight import InFlight
from framegate.proxy.relay.pair import Pair, PairWatcher
from framegate.proxy.relay.publisher import Publisher
from framegate.proxy.relay.relay import Relay
from framegate.proxy.relay.request_sampler import RequestSpan
from framegate.proxy.relay.upstream import Endpoint, Upstream
from framegate.proxy.server.control_link import CallbackHandler, ControlLink
from framegate.proxy.server.heap import Heap
from framegate.proxy.server.link import LinkReader
from framegate.proxy.server.messages import DrainedNotice, ReadyMessage
from framegate.proxy.server.pair_rows import endpoint_down_row, endpoint_up_row
from framegate.proxy.server.rows import InternalErrorRow, TapIncompleteRow, TapRuleOffRow, TapSegmentDeletedRow
from framegate.proxy.server.settings import Settings
from framegate.proxy.tap.writer import TapWriter

Message = dict[str, Any]
PUBLISH_NS: Final = 1_000_000
SLICE_NS: Final = 1_000_000
BEAT_MS: Final = 100
OFFSET_NS: Final = 1_000_000_000
HEAP_NS: Final = 250_000_000
FAULTS_NS: Final = 1_000_000_000
END_NS: Final = 1_500_000_000  # with TAP_CLOSE_MS, LINK_CLOSE_MS and the delay of a stuck disk: 5 s
TAP_CLOSE_MS: Final = 2_000
GC_THRESHOLD: Final = 50_000
SIGTERM: Final = 15

BUSY: Final = PROCESSOR_BLOCK.at("framegate.event_loop.time", "busy")
POLLS: Final = PROCESSOR_BLOCK.at("framegate.event_loop.polls")
IDLE: Final = PROCESSOR_BLOCK.at("framegate.event_loop.time", "idle")
LINK_DROPPED: Final = PROCESSOR_BLOCK.at("framegate.link.dropped")
FAULTS: Final = PROCESSOR_BLOCK.at("framegate.processor.errors")
DRAINING: Final = PROCESSOR_BLOCK.at("framegate.draining")


class Watcher(PairWatcher):
    """Reports events of pairs to the loop, which is made after it."""

    def __init__(self) -> None:
        self.loop: Loop | None = None

    def pair_opened(self, pair: Pair) -> None:
        if self.loop is not None:
            self.loop.link.pair_opened(pair)

    def pair_closed(self, pair: Pair) -> None:
        if self.loop is not None:
            self.loop.on_pair_closed(pair)

    def pair_muted(self, pair: Pair) -> None:
        if self.loop is not None:
            self.loop.on_pair_muted()

    def frame_reported(self, pair: Pair, size: i64, head: bytes) -> None:
        if self.loop is not None:
            self.loop.link.frame_reported(pair, size, head)

    def request_ended(self, pair: Pair, span: RequestSpan) -> None:
        if self.loop is not None:
            self.loop.link.request_ended(pair, span)

    def drained(self, cut_off: int) -> None:
        if self.loop is not None:
            self.loop.on_drained(cut_off)

    def endpoint_changed(self, upstream: Upstream, endpoint: Endpoint) -> None:
        if self.loop is not None:
            self.loop.on_endpoint_changed(upstream, endpoint)


class Loop:
    """One processor at work.

    Args:
        tap: the tap's writer, or None; ``tap_fd`` is the eventfd with which it wakes the loop, or -1.
        command, handover: the link's sockets, non-blocking.
        wakeup: the read end of the signal wake-up.
        reader: may hold the beginning of messages already.
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
        self.finished: bool = False  # the loop is to end
        self._relay: Final = relay
        self._selector: Final = selector
        self._settings: Final = settings
        self._drain: Final = drain
        self._cells: Final = cells
        self._publisher: Final = publisher
        self._tap: Final = tap
        self._tap_fd: Final = tap_fd
        self._wakeup: Final = wakeup
        self._heap: Final = heap
        self._pool: Final = settings.pool
        self._most_held: i64 = 0
        self._heap_ns: i64 = 0
        self._lag: Final = relay.pairs.loop.lag
        self._in_flight: Final = InFlight(relay.pairs.open, settings.counters, selector)
        # to control
        self.link: Final = ControlLink(
            command=command,
            handover=handover,
            reader=reader,
            selector=selector,
            relay=relay,
            settings=settings,
            drain=self.begin_drain,
            stop=self.stop,
            lost=self._link_lost,
        )
        self._published_ns: i64 = 0
        self._offset_ns: i64 = 0
        self._busy_ns: i64 = 0
        self._ending: bool = False
        self._terminations: int = 0
        self._told_ns: i64 = 0
        self._tap_failures: i64 = 0
        self._tap_deleted: i64 = 0
        watcher.loop = self
        self._set_clock()

    def announce(self, message: ReadyMessage) -> None:
        self._cells.state(State.SERVING)
        self._publish(self._selector.now_ns)
        self.link.reply(message)
        self.link.flush()

    def run(self, early: list[Message]) -> bool:
        """Serve until the end. ``early``: messages that came with ``start``. Returns whether the end was asked for; False: an error ended it."""
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
        selector.watch(self._wakeup.fileno(), CallbackHandler(self._on_signals))
        if self._tap_fd >= 0:
            selector.watch(self._tap_fd, CallbackHandler(self._on_tap))
        self.link.watch()
        for message in early:
            self.link.commands.handle(message)
        gc.collect()
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD, 20, 20)
        timeout_ms: i64 = 0
        while not self.finished:
            selector.poll(timeout_ms)
            timeout_ms = self._between(selector.now_ns)

    def _between(self, now_ns: i64) -> i64:
        """Do the work between two polls; returns how long the next one may wait, in ms."""
        timeout_ms: i64 = BEAT_MS
        busy_ns = self._selector.busy_ns
        self._lag.observe(busy_ns - self._busy_ns)
        self._busy_ns = busy_ns
        link = self.link
        if link.working:
            link.work(time.monotonic_ns() + SLICE_NS)
            if link.working:
                timeout_ms = 0
        self._most_held = max(self._most_held, self._pool.used)
        if now_ns - self._heap_ns >= HEAP_NS:
            self._heap_ns = now_ns
            self._heap.look(self._most_held, self._selector.channel_count)
            self._most_held = 0
        if now_ns - self._offset_ns >= OFFSET_NS:
            self._offset_ns = now_ns
            self._set_clock()
            self._judge_endpoints(now_ns)
            self._report_refusals()
            self._relay.pairs.sampler.refill()
            self.link.report_requests()
            if self._tap is not None:
                self._tap.revive()
        if self._in_flight.look(now_ns):
            timeout_ms = 0
        if self._tap is not None:
            timeout_ms = self._look_at_tap(self._tap, now_ns, timeout_ms)
        if now_ns - self._published_ns >= PUBLISH_NS:
            self._publish(now_ns)
        else:
            timeout_ms = min(timeout_ms, 1)
        timeout_ms = link.queue_due(now_ns, timeout_ms)
        if link.replied:
            link.flush()
        return timeout_ms

    def _judge_endpoints(self, now_ns: i64) -> None:
        for upstream in self._settings.in_force.upstreams.values():
            try:
                for endpoint in upstream.look(now_ns):
                    self.on_endpoint_changed(upstream, endpoint)
            except Exception as error:  # the others are to be looked at
                self._selector.faults.note("loop", error)

    def _look_at_tap(self, tap: TapWriter, now_ns: i64, timeout_ms: i64) -> i64:
        """Let the tap write the blocks that are due; returns how long the next poll may wait, in ms."""
        try:
            due_ns = tap.poll_due(now_ns)
        except Exception as error:
            self._selector.faults.note("tap", error)
            return timeout_ms
        self._look_at_rules(now_ns + self._relay.pairs.wall_offset_ns)
        return timeout_ms if due_ns == 0 else min(timeout_ms, max((due_ns - now_ns) // 1_000_000, 0))

    def _look_at_rules(self, wall_ns: i64) -> None:
        """Report the rules that turned themselves off; connections that waited for the log because of a rule that is over go on."""
        rules = self._relay.pairs.rules
        if rules is None:
            return
        over = rules.expire(wall_ns)
        for off in rules.take_turned_off(wall_ns):
            over = True
            self.link.notify("tap_rule_off", TapRuleOffRow(rule=off.rule, cause=off.cause, percent=round(off.percent, 1), limit=off.limit))
        if over:
            self._relay.pairs.ask_again()

    def _report_refusals(self) -> None:
        for refusals in self._settings.refusals:
            row = refusals.take()
            if row is not None:
                self.link.log("kafka_refused", row)

    def _set_clock(self) -> None:
        self._relay.pairs.wall_offset_ns = i64(time.time_ns()) - i64(time.monotonic_ns())

    def _publish(self, now_ns: i64) -> None:
        self._published_ns = now_ns
        self._selector.settle_runs()  # before the work of publishing
        cells = self._relay.pairs.loop.counts.cells
        cells[BUSY] = self._selector.busy_ns
        cells[IDLE] = self._selector.idle_ns
        cells[POLLS] = self._selector.polls
        cells[LINK_DROPPED] = self.link.writer.dropped_count
        faults = self._selector.faults
        tap = self._tap
        if tap is not None and tap.thread.failures != self._tap_failures:
            self._tap_failures = tap.thread.failures
            faults.note_text("tap", tap.thread.failure)
        if tap is not None:
            tap.tallies.update_reserves(now_ns)
            self._report_deleted(tap)
        for place in range(i64(len(faults.counts))):
            cells[FAULTS + place] = faults.counts[place]
        if faults.untold and now_ns - self._told_ns >= FAULTS_NS:
            self._told_ns = now_ns
            self._report_faults()
        try:
            self._publisher.publish()
        except Exception as error:
            faults.note("loop", error)
        self._cells.heartbeat(int(now_ns))

    def _report_deleted(self, tap: TapWriter) -> None:
        deleted = tap.thread.deleted
        if deleted != self._tap_deleted:
            row = TapSegmentDeletedRow(segments=int(deleted - self._tap_deleted), path=tap.thread.deleted_path)
            self._tap_deleted = deleted
            self.link.notify("tap_segment_deleted", row)

    def _report_faults(self) -> None:
        for fault in self._selector.faults.take():
            self.link.log("internal_error", InternalErrorRow(place=fault.place, count=fault.times, error=fault.error, at=fault.at))

    # Events.

    def on_pair_closed(self, pair: Pair) -> None:
        if self._ending and not self._relay.pairs.open:
            self.finished = True
        self.link.pair_closed(pair)

    def on_pair_muted(self) -> None:
        self.link.commands.pair_changed()

    def on_drained(self, cut_off: int) -> None:
        self.link.reply(DrainedNotice(type="drained", open=len(self._relay.pairs.open), cut_off=cut_off))
        if self._terminations:
            self.stop()

    def on_endpoint_changed(self, upstream: Upstream, endpoint: Endpoint) -> None:
        """An endpoint is left out, or used again."""
        if endpoint.down:
            self.link.log("endpoint_down", endpoint_down_row(upstream, endpoint))
        else:
            self.link.log("endpoint_up", endpoint_up_row(upstream, endpoint))

    def _on_tap(self, events: int) -> None:
        """The tap's log may accept again."""
        del events
        os.read(self._tap_fd, 8)
        self._relay.pairs.tap_accepts()

    # The end.

    def _on_signals(self, events: int) -> None:
        del events
        for number in self._wakeup.recv(256):
            if number == SIGTERM:
                self._on_sigterm()

    def _on_sigterm(self) -> None:
        """Drain, then exit; the second time, exit without a drain; the third time, at once."""
        self._terminations += 1
        if self._terminations > 1:
            self.stop()
        elif not self._ending:
            self.begin_drain(self._settings.config.drain.timeout_ms)

    def begin_drain(self, timeout_ms: int, delay_ms: int = NO_LEAD_IN) -> None:
        """No new pairs; end those that are open when they are quiet. With a delay: begin a lead-in."""
        if delay_ms != NO_LEAD_IN:
            self._drain.lead_in(delay_ms * 1_000_000, timeout_ms * 1_000_000)
            return
        self._relay.pairs.draining = True
        self._relay.pairs.loop.counts.cells[DRAINING] = 1
        self._cells.state(State.DRAINING)
        self._drain.start(timeout_ms * 1_000_000)

    def stop(self) -> None:
        """Write received frames, flush, exit; the second time, without the frames."""
        if self._ending:
            self._end_writing()
        self._begin_end("")

    def _link_lost(self) -> None:
        self._begin_end("control is gone")

    def _end_writing(self) -> None:
        self.finished = True

    def _begin_end(self, detail: str) -> None:
        if self._ending:
            return
        self._ending = True
        self.link.take_no_more()
        pairs = self._relay.pairs
        pairs.draining = True
        for pair in list(pairs.open.values()):
            ending.end(pair, Cause.DRAINED, detail, "internal")
        if pairs.open:
            self._selector.call_at(self._selector.now_ns + END_NS, CallbackTimer(self._end_writing))
        else:
            self.finished = True

    def _finish(self) -> None:
        """Take every step, even if the one before failed."""
        self.link.finish()
        for step in (self.link.commands.end, self._close_pairs, self._close_tap, self._close_cells, self._close_link, self._selector.close):
            try:
                step()
            except Exception as error:
                self._selector.faults.note("loop", error)

    def _close_pairs(self) -> None:
        """End the pairs that are left; their rows are sent before the tap is flushed, which may take long."""
        self._selector.close_channels(Cause.DRAINED)
        self.link.queue_rows()
        self._publish(self._selector.now_ns)
        self.link.flush()

    def _close_tap(self) -> None:
        if self._tap is not None and not self._tap.flush_and_close(TAP_CLOSE_MS):
            self.link.notify("tap_incomplete", TapIncompleteRow(error=self._tap.error))
        if self._tap is not None:
            self._report_deleted(self._tap)

    def _close_cells(self) -> None:
        self._publish(self._selector.read_clock())
        self._cells.state(State.STOPPED)

    def _close_link(self) -> None:
        self._report_faults()
        self.link.report_requests()
        self.link.close()
