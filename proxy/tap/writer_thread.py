"""The tap's writer thread, and the queue of blocks from the loop thread.

Theory of operation. Only the queue and counters are shared, and each counter has one writer, so no lock is needed. The thread encodes a block,
computes its CRC and writes it. A block that cannot be written goes to ``failed``, and the loop thread turns it into gaps; a block that must be kept
is written again until that succeeds. An exception that is not an OSError costs one block, and not the thread.
"""

import os
import queue
import threading
import time
from collections import deque
from typing import Final

from mypy_extensions import i64

from framegate.proxy.cells import APPEND_BOUNDS, APPEND_ERRORS
from framegate.proxy.network.stats import Histogram
from framegate.proxy.tap.block import Block
from framegate.proxy.tap.block_builder import BlockBuilder
from framegate.proxy.tap.record import REASON_CLOSED, REASON_DISK_ERROR, REASON_DISK_FULL
from framegate.proxy.tap.segment import SegmentLog, reason_of

# After a failed write the disk is asked again this often.
RETRY_NS: Final = 100_000_000
# Indexes of failed writes in ``appends``.
DISK_FULL: Final = APPEND_ERRORS.index("disk_full")
DISK_ERROR: Final = APPEND_ERRORS.index("disk_error")
# How long the thread sleeps when no segment is open.
IDLE_S: Final = 3600.0
# A closing writer that was told to give up gets this long to leave its system call.
GIVE_UP_S: Final = 0.5


class WriterThread:
    """Writes blocks in the order of ``put``. Of the loop thread: Of the writer thread: Of both:"""

    def __init__(self, log: SegmentLog, builder: BlockBuilder, queue_size: i64, wakeup_fd: int) -> None:
        """Nothing runs before ``start``. ``queue_size``: bound of the memory that is handed over and not settled. ``wakeup_fd``: an eventfd (or a
        non-blocking socket) that gets 8 bytes when a log that refused has room again; -1: none.
        """
        # handed, handed_weight: number and weight of the blocks handed over (``Block.weight``)
        self.handed: i64 = 0
        # settled, settled_weight: the same of blocks that are written or given up
        self.settled: i64 = 0
        self.handed_weight: i64 = 0
        self.settled_weight: i64 = 0
        self.failing: i64 = 0  # reason code of the last write, if it failed; otherwise 0
        self.failed: deque[Block] = deque()  # blocks that were given up; the loop thread takes them
        self.starved = False  # a source waits for room: the loop thread sets it, the writer thread clears it when it wakes the loop
        # frames_flushed_request, frames_flushed_response: frames on disk
        self.frames_flushed_request: i64 = 0
        self.frames_flushed_response: i64 = 0
        self.frames_gapped: i64 = 0  # missing frames in gap chunks on disk
        self.bytes_flushed: i64 = 0  # bytes of blocks on disk
        self.write_errors: i64 = 0  # failed attempts to write a block
        # durations of attempts to encode and write a block, by result (``APPEND_ERRORS``)
        self.appends: Final = [Histogram(APPEND_BOUNDS) for _ in APPEND_ERRORS]
        self.error = ""  # the last failed write, in words; after a successful write empty, or why a finished file could not be renamed or removed
        # deleted, deleted_path: segments that another program deleted while they were written, and the path of the last
        self.deleted: i64 = 0
        self.deleted_path = ""
        # failures, failure: number of internal errors in the thread, and the last one in words; each cost one block, which becomes a gap
        self.failures: i64 = 0
        self.failure = ""
        self._log = log
        self._builder = builder
        self._queue_size: i64 = queue_size
        self._queue: queue.SimpleQueue[Block | None] = queue.SimpleQueue()
        self._wakeup_fd = wakeup_fd
        self._runner: threading.Thread | None = None
        self._current: Block | None = None
        self._give_up = threading.Event()

    # The loop thread

    def start(self) -> None:
        thread = threading.Thread(target=self._run, name="tap-writer", daemon=True)
        self._runner = thread
        thread.start()

    def revive(self) -> None:
        """Start the thread again if it died of an exception."""
        thread = self._runner
        if thread is not None and not thread.is_alive():
            self._fail_current(RuntimeError("the writer thread had ended"))
            self.start()

    @property
    def weight(self) -> i64:
        """Memory of the blocks handed over and not settled."""
        return self.handed_weight - self.settled_weight

    def has_room(self) -> bool:
        """Whether the queue is half empty and the disk writes. Either thread."""
        return self.failing == 0 and 2 * (self.handed_weight - self.settled_weight) <= self._queue_size

    def put(self, block: Block) -> None:
        """Hand a block over."""
        self.handed += 1
        self.handed_weight += block.weight
        self._queue.put(block)

    def write_queued(self) -> None:
        """Write the blocks handed over, in the caller's thread; while no thread runs."""
        while not self._queue.empty():
            block = self._queue.get_nowait()
            if block is not None:
                self._flush(block)

    def end(self, timeout_ms: int) -> bool:
        """Let the thread write what is queued and end; True when it has ended."""
        thread = self._runner
        if thread is None:
            return True
        self._queue.put(None)
        thread.join(timeout_ms / 1000)
        if thread.is_alive():
            self._give_up.set()
            thread.join(GIVE_UP_S)
        return not thread.is_alive()

    def abandon_queue(self) -> None:
        """Give up the blocks that a thread blocked in a system call will not write."""
        while not self._queue.empty():
            block = self._queue.get_nowait()
            if block is not None:
                self._fail(block, REASON_CLOSED)
        self.error = self.error or "the disk did not take the log in time"

    # The writer thread

    def _run(self) -> None:
        while True:
            try:
                self._serve()
                return
            except Exception as error:
                self._fail_current(error)

    def _fail_current(self, error: Exception) -> None:
        """Give up the present block after an internal error; the thread continues. The loop logs the error."""
        self.write_errors += 1
        self.error = self.failure = f"{type(error).__name__}: {error}"
        self.failures += 1
        self.failing = REASON_DISK_ERROR
        block = self._current
        if block is not None:
            self._current = None
            self._fail(block, REASON_DISK_ERROR)
            self._settle(block)

    def _serve(self) -> None:
        while True:
            block: Block | None = None
            try:
                block = self._queue.get(timeout=self._timeout_s())
            except queue.Empty:
                self.seal(False)
                continue
            if block is None:
                return
            self._current = block
            self._flush(block)

    def _timeout_s(self) -> float:
        """Seconds until the open segment is due."""
        due = self._log.due_ns()
        if due < 0:
            return IDLE_S
        return max(0.0, float(due - time.monotonic_ns()) / 1e9)

    def seal(self, final: bool) -> None:
        """Seal the open segment, if any; ``final``: the stream ends, and all frames are accounted for. Called by the thread, or after its end."""
        try:
            self._log.seal(final=final)
        except OSError as error:
            self.write_errors += 1
            self.error = str(error)
        self._look_for_deleted()

    def _flush(self, block: Block) -> None:
        written = self._append(block)
        while not written and block.must_keep and not self._give_up.wait(float(RETRY_NS) / 1e9):
            written = self._append(block)
        self._builder.reuse(block)
        if not written:
            self._fail(block, self.failing)
        self._settle(block)
        self._current = None
        if self.starved and self.has_room():
            self.starved = False
            self._wake()

    def _fail(self, block: Block, reason: i64) -> None:
        block.fail(reason)
        self.failed.append(block)

    def _settle(self, block: Block) -> None:
        self.settled += 1
        self.settled_weight += block.weight

    def _append(self, block: Block) -> bool:
        began: i64 = time.monotonic_ns()
        try:
            self._log.append(block, began)
        except OSError as error:
            self.write_errors += 1
            self.error = str(error)
            self.failing = reason_of(error)
            self.appends[DISK_FULL if self.failing == REASON_DISK_FULL else DISK_ERROR].observe(i64(time.monotonic_ns()) - began)
            return False
        self.appends[0].observe(i64(time.monotonic_ns()) - began)
        self.failing = 0
        self.error = self._log.error
        self._look_for_deleted()
        self.frames_flushed_request += block.request_frames
        self.frames_flushed_response += block.response_frames
        self.frames_gapped += block.lost_frames
        self.bytes_flushed = self._log.bytes_written
        return True

    def _look_for_deleted(self) -> None:
        self.deleted_path = self._log.deleted_path
        self.deleted = self._log.deleted

    def _wake(self) -> None:
        if self._wakeup_fd < 0:
            return
        try:
            os.write(self._wakeup_fd, (1).to_bytes(8, "little"))
        except BlockingIOError:
            return  # it is readable already
