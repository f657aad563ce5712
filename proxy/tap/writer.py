"""The tap's log of a processor, for the loop thread. Blocks are gathered here and written by a thread of their own (``writer_thread``).

Theory of operation. The loop thread fills a ``BlockBuilder`` and hands each finished block over through one queue. ``queue_size`` bounds the memory
of the blocks handed over and not yet written, and of the block being built (``Block.weight``). A chunk is accepted while the level is below it, so
one run may exceed it: one read, and the frame begun in earlier reads; a buffer's unused room may add ``COPY_BELOW``. In addition, three buffers of
``flush_size`` are kept, at most twice ``MAX_PENDING_GAPS`` gaps, and ``MAX_PENDING_ENDS`` ends of connections, of about 1 KB each.

When the log cannot take a chunk, because the queue is full or the last write failed, a rule with ``on_full: drop`` counts the frames in a ``Gap``,
which goes into the next block that is written. Chunks of a rule with ``on_full: mute`` are always taken, and a block with such chunks is written
again until that succeeds. To keep the bound, their sources call ``has_capacity`` before each read, and the source whose chunk exceeded the bound is
muted at once.

A frame that is cut through goes into the blocks piece by piece, and counts with its last piece. When the log refuses one of its pieces, or cannot
write the block of one, the frame is lost: no further piece is copied, and a gap is added at its end (``Part.lost``). If its end was handed over
already, its chunk is written and counts as flushed; readers then report the missing pieces.

Frames seen are counted independently (``tallies``), and stated as totals rows, once for each window of capture time.

The accounting, exact once the queue is empty::

    frames_matched = frames_flushed + frames_dropped           what the rules matched, request and response
    frames_dropped = frames_gapped + frames of pending gaps    what the log states as missing, or will state
    frames_matched = frames of totals rows                     once the stream has ended
"""

import os
from collections import deque
from typing import Final

from librt.strings import read_i32_le, read_i64_le
from mypy_extensions import i64

from framegate.proxy.config.model import TapConfig
from framegate.proxy.tap.block import Block
from framegate.proxy.tap.block_builder import COPY_BELOW, BlockBuilder
from framegate.proxy.tap.gap import MAX_PENDING_ENDS, NO_CONNECTION, Gap, PendingGaps
from framegate.proxy.tap.record import (
    CHUNK_ROW_BYTES,
    DIRECTION_REQUEST,
    DIRECTION_RESPONSE,
    KIND_CLOCK,
    KIND_CONNECTION,
    KIND_FRAMES,
    KIND_GAP,
    KIND_RULES,
    KIND_TOTALS,
    REASON_DISK_ERROR,
    REASON_DISK_FULL,
    REASON_QUEUE_FULL,
    REASON_SAMPLED,
    REASON_UNDELIVERED,
    WINDOW_NS,
    stream_name,
)
from framegate.proxy.tap.rule_use import RuleUse
from framegate.proxy.tap.segment import SegmentFiles, SegmentLog
from framegate.proxy.tap.tallies import Reserve, Tallies
from framegate.proxy.tap.writer_thread import RETRY_NS, WriterThread

NS_PER_MS: Final = 1_000_000
# Gaps of connections that a rule's sampling left out are written this often.
SAMPLED_GAPS_NS: Final = 1000 * NS_PER_MS
# When the wall clock is set back by less than this, capture time stands still.
CLOCK_STEP_NS: Final = 1000 * NS_PER_MS
# Without a run in the next window, totals are stated this long after the end of a window.
STATE_AFTER_NS: Final = 100 * NS_PER_MS


class TapWriter:
    """One processor's stream. The loop thread reads its counters, and those of the thread, and publishes them as cells."""

    def __init__(
        self,
        config: TapConfig,
        node: str,
        slot: str,
        boot_id: str,
        files: SegmentFiles | None = None,
        wakeup_fd: int = -1,
        reserve: Reserve | None = None,
    ) -> None:
        """Nothing runs before ``start``; nothing is created before the first block. ``files``: the system calls; tests replace them by a failing
        disk. ``wakeup_fd``: an eventfd (or a non-blocking socket) that gets 8 bytes from the writer thread when a log that refused accepts again; -1:
        none.
        """
        self.stream = stream_name(node, slot, boot_id)
        header: dict[str, str | int] = {"node": node, "slot": slot, "stream": self.stream, "boot_id": boot_id}
        folder = os.path.join(config.directory, self.stream)
        log = SegmentLog(folder, header, config.segment_size, config.segment_age_ms * NS_PER_MS, files)
        self.builder = BlockBuilder(config.flush_size + COPY_BELOW)  # the block being built; ``TapPoint`` adds to it
        self.thread = WriterThread(log, self.builder, config.queue_size, wakeup_fd)  # writes the blocks, and counts what it wrote
        self.tallies = Tallies(reserve)  # frames matched, by listener and direction
        self.window_end_ns: i64 = 0  # end of the present window of capture time; wall clock
        # dropped_queue_full, dropped_disk_full, dropped_disk_error, dropped_sampled, dropped_closed, dropped_undelivered: matched frames that are, or
        # will be, in the log as a gap only, by reason
        self.dropped_queue_full: i64 = 0
        self.dropped_disk_full: i64 = 0
        self.dropped_disk_error: i64 = 0
        self.dropped_sampled: i64 = 0
        self.dropped_closed: i64 = 0
        self.dropped_undelivered: i64 = 0
        self.dropped_ends: i64 = 0  # ends of connections that are, or will be, in the log as a number only
        self.blocks_handed: i64 = 0  # blocks given to the thread
        self.watched: dict[str, RuleUse] = {}  # rules that are turned off above a limit of losses, by name
        self._flush_size: i64 = config.flush_size
        self._flush_ns: i64 = config.flush_ms * NS_PER_MS
        self._queue_size: i64 = config.queue_size
        self._failed: deque[Block] = self.thread.failed
        self._gaps = PendingGaps()
        self._sampled = PendingGaps()
        self._totals = PendingGaps()
        self._ends: list[Gap] = []
        self._lost_ends = PendingGaps()
        self._window_from_ns: i64 = 0
        self._state_due_ns: i64 = 0
        self._state_in_ns: i64 = 0  # time until ``_state_due_ns``, which the next poll sets
        self._clock_from_ns: i64 = 0
        self._sampled_due_ns: i64 = 0
        self._due_ns: i64 = 0
        self._rules = ""
        self._rules_due = False

    def start(self) -> None:
        self.thread.start()

    def revive(self) -> None:
        """Start the thread again if it died of an exception."""
        self.thread.revive()

    @property
    def frames_matched(self) -> i64:
        return self.frames_matched_request + self.frames_matched_response

    @property
    def frames_matched_request(self) -> i64:
        return self.tallies.frames(DIRECTION_REQUEST)

    @property
    def frames_matched_response(self) -> i64:
        return self.tallies.frames(DIRECTION_RESPONSE)

    @property
    def bytes_matched(self) -> i64:
        """Bytes of the frames matched, headers included."""
        return self.tallies.bytes()

    def turn(self, capture_ns: i64) -> i64:
        """Begin a window, or handle a clock that was set back, for a capture time before the last one or outside of the present window. Returns the
        time for the next chunks: the given one, or the last one when the clock was set back by less than ``CLOCK_STEP_NS``.
        """
        builder = self.builder
        if capture_ns < builder.last_ns - CLOCK_STEP_NS:
            self._state_totals()
            self._queue_block()
            builder.add_clock(builder.last_ns, capture_ns)
        elif capture_ns < builder.last_ns:
            capture_ns = builder.last_ns
            if capture_ns < self.window_end_ns:
                return capture_ns
        self._state_totals()
        builder.last_ns = capture_ns
        self._window_from_ns = capture_ns
        self.window_end_ns = (capture_ns // WINDOW_NS + 1) * WINDOW_NS
        self._state_in_ns = self.window_end_ns - capture_ns + STATE_AFTER_NS
        return capture_ns

    def _state_totals(self) -> None:
        """Make totals of the frames that every tally saw since its last statement; all of them are in the present window."""
        self._state_due_ns = self._state_in_ns = 0
        until_ns = self.builder.last_ns
        if until_ns >= self.window_end_ns:
            until_ns = self.window_end_ns - 1
        for tally in self.tallies.all:
            totals = tally.statement(self._window_from_ns, until_ns)
            if totals is not None:
                self._totals.remember(totals)

    @property
    def queued_bytes(self) -> i64:
        """Memory of the block being built and of the blocks handed over."""
        return self.thread.weight + self.builder.weight

    @property
    def error(self) -> str:
        """The last failed write, in words; see ``WriterThread``."""
        return self.thread.error

    @property
    def frames_dropped(self) -> i64:
        """Matched frames that the log has as a gap only, for whatever reason."""
        return (
            self.dropped_queue_full
            + self.dropped_disk_full
            + self.dropped_disk_error
            + self.dropped_sampled
            + self.dropped_closed
            + self.dropped_undelivered
        )

    def refusal(self) -> i64:
        """Why the log takes no chunk now: a reason code, or 0 when it does."""
        thread = self.thread
        if thread.failing != 0:
            return thread.failing
        if thread.handed_weight - thread.settled_weight + self.builder.weight >= self._queue_size:
            return REASON_QUEUE_FULL
        return 0

    def accepts(self) -> bool:
        """Whether a source that was muted for the tap may continue: the queue is half empty and the disk writes. After False here, or from
        ``TapPoint.append``, the writer thread writes to ``wakeup_fd`` when it has become True.
        """
        thread = self.thread
        if thread.has_room():
            return True
        # The thread settles a block, then reads ``starved``. So set it first, then check again.
        thread.starved = True
        return thread.has_room()

    def has_capacity(self) -> bool:
        """Whether a source whose rule mutes may be read, or continue after a chunk; False: mute it until ``accepts``."""
        if self.refusal() == 0:
            return True
        self.thread.starved = True
        return self.refusal() == 0

    def added(self) -> None:
        """A chunk was added to ``builder``: hand the block over when it is large enough."""
        if self.builder.weight >= self._flush_size:
            self._queue_block()

    def joined(self) -> None:
        """A frame with pieces in the log was completed: end the block, so that joined blocks do not become much larger."""
        self._queue_block()

    def lose(self, gap: Gap, frames: i64, size: i64, until_ns: i64) -> Gap:
        """Count frames in a gap; a new gap is kept until it can be written.

        Args:
            gap: not ``written``.
            frames: whole frames; 0 for bytes of a frame that never became whole.
            size: their bytes, headers included.
            until_ns: when the last of them was received, wall clock.

        Returns the gap for further losses of this kind, while it is not ``written``, and in its window.
        """
        fresh = gap.frames == 0 and gap.bytes == 0
        gap.add(frames, size, until_ns)
        self._count_dropped(gap.reason, frames)
        if self.watched:
            use = self.watched.get(gap.rule or "")
            if use is not None:
                use.note_loss(gap.reason, frames)
        return self._remember(gap) if fresh else gap

    def note_end(self, end: Gap) -> None:
        """Take the end of a connection, for the next block. While the log takes none, ends wait; those beyond ``MAX_PENDING_ENDS`` are counted."""
        now_ns = end.until_ns
        if now_ns < self.builder.last_ns or now_ns >= self.window_end_ns:
            self.turn(now_ns)
        if len(self._ends) >= MAX_PENDING_ENDS and self.refusal() == 0:
            self._queue_block()
        self._keep_end(end, self.refusal())

    def _keep_end(self, end: Gap, reason: i64) -> None:
        """Keep an end for the next block, or count it as lost for a reason."""
        if len(self._ends) < MAX_PENDING_ENDS:
            self._ends.append(end)
            return
        lost = Gap(connection=NO_CONNECTION, direction=end.direction, reason=reason, listener=end.listener, from_ns=end.until_ns)
        lost.add(1, 0, end.until_ns)
        self.dropped_ends += 1
        self._lost_ends.remember(lost)

    def _unsaid(self) -> int:
        """How many gaps, totals and ends of connections wait for a block."""
        return len(self._gaps) + len(self._totals) + len(self._ends) + len(self._lost_ends)

    def set_rules(self, text: str, now_ns: i64) -> None:
        """Record the rules for the following chunks before the next of them, and first in a new stream. ``text``: the rules in force, JSON.
        ``now_ns``: wall clock.
        """
        self._rules = text
        self._rules_due = True
        builder = self.builder
        if self.blocks_handed > 0 or builder.chunk_count > 0:
            if now_ns < builder.last_ns or now_ns >= self.window_end_ns:
                now_ns = self.turn(now_ns)
            builder.last_ns = now_ns
            self.add_rules()

    def add_rules(self) -> None:
        """Add the rules in force to the block being built, when that is due. To be called before a first row of a block."""
        if self._rules_due:
            self._rules_due = False
            self.builder.add_rules(self._rules)

    def poll_due(self, now_ns: i64) -> i64:
        """Do what is due; the loop calls this once a poll, after the events. ``now_ns``: monotonic. Returns: When to call again at the latest,
        monotonic; 0: nothing waits.
        """
        if self._failed:
            self._settle_failed()
        if len(self._sampled) > 0 and now_ns >= self._sampled_due_ns:
            self._release_sampled()
            self._sampled_due_ns = now_ns + SAMPLED_GAPS_NS
        if self._state_in_ns != 0:
            self._state_due_ns = now_ns + self._state_in_ns
            self._state_in_ns = 0
        if self._state_due_ns != 0 and now_ns >= self._state_due_ns:
            self._state_totals()
        unsaid = self._unsaid()
        waiting = self.builder.chunk_count > 0 or (unsaid > 0 and self.refusal() != REASON_QUEUE_FULL)
        if not waiting:
            self._due_ns = 0
        elif self._due_ns == 0:
            self._due_ns = now_ns + (self._flush_ns if self.thread.failing == 0 else RETRY_NS)
        elif now_ns >= self._due_ns:
            self._queue_block()
        if self._due_ns == 0 and unsaid > 0:
            return now_ns + self._flush_ns
        if self._due_ns == 0 and len(self._sampled) > 0:
            return self._sampled_due_ns
        return self._due_ns if self._due_ns != 0 else self._state_due_ns

    def flush_and_close(self, timeout_ms: int) -> bool:
        """Write what waits, seal the segment, end the thread. Blocks the caller. ``timeout_ms``: how long to wait for a disk that does not take the
        blocks. Returns whether the log accounts for every matched frame, as a frame or in a gap, and for every end of a connection. If not,
        ``error`` says why; of frames, the thread's ``frames_gapped`` is below ``frames_dropped``.
        """
        self._release_sampled()
        self.tallies.release()
        self._state_totals()
        self._queue_block()
        if not self.thread.end(timeout_ms):
            self.thread.abandon_queue()
            self._settle_failed()
            return False
        # Failed blocks become gaps; a block with gaps only is small, and may fit into the open segment of a full disk.
        self._settle_failed()
        self._queue_block()
        self.write_queued()
        self._settle_failed()
        whole = self._unsaid() == 0 and self.thread.frames_gapped == self.frames_dropped
        self.thread.seal(whole)
        return whole

    def write_queued(self) -> None:
        """Write the blocks handed over, in the caller's thread; for a writer that was never started."""
        self.thread.write_queued()

    def _release_sampled(self) -> None:
        for gap in self._sampled.take():
            self._gaps.remember(gap)

    def _queue_block(self) -> None:
        self._due_ns = 0
        builder = self.builder
        if self._clock_from_ns != 0:
            builder.add_clock(self._clock_from_ns, builder.last_ns)
            self._clock_from_ns = 0
        if self._unsaid() > 0:
            self.add_rules()
        for gap in self._gaps.take():
            builder.add_gap(gap)
        for totals in self._totals.take():
            builder.add_totals(totals)
        for end in self._ends + self._lost_ends.take():
            builder.add_end(end)
        self._ends.clear()
        if builder.chunk_count == 0:
            return
        self.blocks_handed += 1
        self.thread.put(builder.finish())

    def _remember(self, gap: Gap) -> Gap:
        return self._sampled.remember(gap) if gap.reason == REASON_SAMPLED else self._gaps.remember(gap)

    def _count_dropped(self, reason: i64, frames: i64) -> None:
        if reason == REASON_QUEUE_FULL:
            self.dropped_queue_full += frames
        elif reason == REASON_DISK_FULL:
            self.dropped_disk_full += frames
        elif reason == REASON_DISK_ERROR:
            self.dropped_disk_error += frames
        elif reason == REASON_SAMPLED:
            self.dropped_sampled += frames
        elif reason == REASON_UNDELIVERED:
            self.dropped_undelivered += frames
        else:
            self.dropped_closed += frames

    def _settle_failed(self) -> None:
        """Turn blocks that were not written into gaps."""
        while self._failed:
            block = self._failed.popleft()
            gaps: dict[tuple[int, int, int], Gap] = {}
            for index in range(block.chunk_count):
                self._settle_row(block, index * CHUNK_ROW_BYTES, gaps)

    def _settle_row(self, block: Block, at: i64, gaps: dict[tuple[int, int, int], Gap]) -> None:
        rows = block.rows
        codes = read_i64_le(rows, at + 96)
        connection = read_i64_le(rows, at + 8)
        kind = (codes >> 8) & 0xFF
        if kind == KIND_FRAMES:
            capture_ns = read_i64_le(rows, at)
            key = (int(connection), int(codes & 0xFF), int(capture_ns // WINDOW_NS))
            gap = gaps.get(key)
            if gap is None:
                gap = block.gap(at, block.failure)
            gaps[key] = self.lose(gap, i64(read_i32_le(rows, at + 64)), read_i64_le(rows, at + 24), capture_ns)
        elif kind == KIND_CLOCK:
            self._clock_from_ns = read_i64_le(rows, at + 48)
        elif kind == KIND_RULES:
            self._rules_due = True
        elif kind in (KIND_GAP, KIND_TOTALS, KIND_CONNECTION):
            gap = block.gap(at, (codes >> 24) & 0xFF)
            gap.from_ns = read_i64_le(rows, at + 48)
            gap.until_ns = gap.from_ns
            gap.add(read_i64_le(rows, at + 32), read_i64_le(rows, at + 40), read_i64_le(rows, at + 24))
            if kind == KIND_GAP:
                self._gaps.remember(gap)
            elif kind == KIND_TOTALS:
                self._totals.remember(gap)
            elif connection == NO_CONNECTION:
                self._lost_ends.remember(gap)
            else:
                self._keep_end(gap, block.failure)
        # a piece: its frame counts when it is completed, or as a partial frame
