"""Shows what is appended to the tap's log, until the reader of the output closes it.

One thread polls the log every ``POLL_MS`` and formats lines, another writes them; the queue between them is bounded in bytes. When it is full, frames
are only counted; when the log is more than ``MAX_BEHIND`` ahead, whole blocks are skipped by their headers. A line reports the count as soon as there
is room. Records from before the start (``--since``) are not skipped: they wait for the reader.
"""

import contextlib
import os
import select
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from framegate.control.cli.tap_cursor import Cursor, matching, merged, start_offset
from framegate.control.cli.tap_records import (
    Entry,
    Trouble,
    Wanted,
    entry_line,
    frame_line,
    frames_of,
    not_shown_line,
    trouble_line,
)
from framegate.proxy.tap.log_reader import LogError, Segment, end_offset, first_offset, segments, streams
from framegate.proxy.tap.record import KIND_CONNECTION, KIND_FRAMES, KIND_GAP, SEGMENT_HEADER_BYTES

POLL_MS: Final = 40
MAX_BEHIND: Final = 16 << 20  # most bytes that one poll reads, all streams together
MAX_WAITING: Final = 1 << 20  # most bytes of lines in the queue
_LISTINGS: Final = 50
"""Listings after a folder changed: the clock of a file system is coarse, and a second change within one tick does not change mtime."""


class Sink:
    """Writes lines to a descriptor on its own thread, which a stopped terminal may block forever."""

    def __init__(self, descriptor: int, encoding: str = "utf-8") -> None:
        self.gone = threading.Event()  # the reader has closed the output, or it cannot be written
        self.trouble = ""  # why the output cannot be written; otherwise empty
        self._descriptor = descriptor
        self._encoding = encoding
        self._lines: deque[bytes] = deque()
        self._size = 0
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True)  # a blocked terminal must not keep the process
        self._thread.start()

    def full(self) -> bool:
        """Whether the queue is full, so that optional lines are to be left out."""
        return self._size >= MAX_WAITING

    def put(self, line: str) -> None:
        """Queue a line, full or not."""
        data = line.encode(self._encoding, "backslashreplace") + b"\n"
        with self._changed:
            self._lines.append(data)
            self._size += len(data)
            self._changed.notify_all()

    def wait_for_room(self) -> None:
        """Wait until the queue has room, or the reader has closed the output."""
        with self._changed:
            self._changed.wait_for(lambda: not self.full() or self.gone.is_set())

    def close(self) -> None:
        """Write the queue, end the thread, and wait for it."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while not self.gone.is_set():
            with self._changed:
                self._changed.wait_for(lambda: self._lines or self._closing)
                data = b"".join(self._lines)
                self._lines.clear()
            if not data:
                return
            try:
                rest = memoryview(data)
                while rest:
                    rest = rest[os.write(self._descriptor, rest) :]
            except BrokenPipeError:
                self.gone.set()
            except OSError as error:
                self.trouble = error.strerror or str(error)
                self.gone.set()
            with self._changed:
                self._size -= len(data)
                self._changed.notify_all()


class _Watch:
    """One stream: its cursor, and whether there may be something to read."""

    def __init__(self, root: str, cursor: Cursor) -> None:
        self.cursor = cursor
        self._root = root
        self._folder = os.path.join(root, cursor.stream)
        self._folder_ns = -1
        self._listings = 0
        self._last: Segment | None = None
        self._limit = cursor.offset
        self._tried = -1

    def due(self) -> bool:
        """Whether there may be something to read. Calls stat for the folder and the open file; lists the folder only when it changed."""
        with contextlib.suppress(FileNotFoundError):  # the folder: ``ended``; the file: renamed, so the folder changed
            changed_ns = os.stat(self._folder).st_mtime_ns
            if changed_ns != self._folder_ns:
                self._folder_ns = changed_ns
                self._listings = _LISTINGS
            if self._listings:
                self._listings -= 1
                self._list()
            elif self._last is not None and not self._last.sealed:
                self._limit = self._last.base + os.stat(self._last.path).st_size - SEGMENT_HEADER_BYTES
        return (self.behind() > 0 and self._limit != self._tried) or self._listings > 0

    def mark_read(self) -> None:
        """Note that the stream was read to its end. An incomplete block is read again only when the file's size has changed."""
        self._tried = self._limit if self.cursor.tail else -1

    def behind(self) -> int:
        """Known bytes that were not read yet."""
        return max(0, self._limit - self.cursor.offset)

    def ended(self) -> Trouble | None:
        """The stream's folder was deleted: the unread part, or None."""
        if self._last is None or (self._last.sealed and not self.behind()):
            return None
        return Trouble(self.cursor.stream, self.cursor.offset, None, True, "it was deleted before it was read completely", self.cursor.is_taken(None))

    def _list(self) -> None:
        listed = segments(self._root, self.cursor.stream)
        if listed:
            self._last = listed[-1]
            self._limit = self._last.limit


class Follower:
    """Shows what is appended to the streams of a directory."""

    def __init__(
        self, root: str, wanted: Wanted, patterns: Sequence[str], since_ns: int | None, payload: int, limit: int | None, sink: Sink, descriptor: int
    ) -> None:
        """Start at the end of all streams, or at the first record since a time.

        Args:
            patterns: shell patterns of streams; empty: all.
            since_ns: wall clock; None: from now on.
            payload: body bytes to show.
            limit: number of frames after which ``run`` returns; None: no limit.
            descriptor: the output of the sink, polled to see whether its reader has closed it.
        """
        self._root = root
        self._wanted = wanted
        self._bound = wanted != Wanted(since_ns=wanted.since_ns, totals=wanted.totals)
        self._patterns = patterns
        self._payload = payload
        self._left = limit
        self._sink = sink
        self._poll = select.poll()
        self._poll.register(descriptor, 0)
        self._skipped = 0
        self._skipped_lost = 0
        self._skipped_ends = 0
        self._watches: dict[str, _Watch] = {}
        self._start: dict[str, int] = {}
        for stream in matching(streams(root), patterns):
            try:
                end = end_offset(root, stream)
            except LogError:
                end = max((segment.limit for segment in segments(root, stream)), default=0)
            self._start[stream] = end
            self._watches[stream] = _Watch(root, Cursor(root, stream, end if since_ns is None else start_offset(root, stream, since_ns)))

    def run(self) -> None:
        """Show records until the reader has closed the output, or the limit is reached."""
        if any(watch.cursor.offset < self._start[stream] for stream, watch in self._watches.items()):
            self._show(merged((watch.cursor for watch in self._watches.values()), self._wanted, self._start), live=False)
        while not self._done() and not self._poll.poll(POLL_MS):
            self.show_appended()

    def show_appended(self) -> None:
        """Show what was appended since the last call."""
        names = matching(streams(self._root), self._patterns)
        for stream in names:
            if stream not in self._watches:
                self._watches[stream] = _Watch(self._root, Cursor(self._root, stream, first_offset(self._root, stream)))
        for stream in self._watches.keys() - set(names):
            trouble = self._watches.pop(stream).ended()
            if trouble is not None:
                self._show([trouble], live=True)
        due = [watch for watch in self._watches.values() if watch.due()]
        for watch in due:
            self._pass_over(watch, MAX_BEHIND // len(due))
        self._show(merged([watch.cursor for watch in due], self._wanted), live=True)
        for watch in due:
            watch.mark_read()
        self._report_skipped()

    def _done(self) -> bool:
        return self._left == 0 or self._sink.gone.is_set()

    def _pass_over(self, watch: _Watch, most: int) -> None:
        """Skip the oldest blocks of a stream that has more than ``most`` unread bytes."""
        if watch.behind() <= most:
            return
        for ref in watch.cursor.blocks():
            if watch.behind() <= most:
                return  # before the cursor is behind this block
            if isinstance(ref, Trouble):
                self._show([ref], live=True)
            else:
                self._skipped += ref.header.request_frames + ref.header.response_frames
                self._skipped_lost += ref.header.lost_frames

    def _show(self, items: Iterable[Entry | Trouble], *, live: bool) -> None:
        for item in items:
            if self._done():
                return
            if not live:
                self._sink.wait_for_room()
            if isinstance(item, Entry) and item.row.kind == KIND_FRAMES:
                self._show_frames(item, live=live)
            elif isinstance(item, Entry) and item.row.kind == KIND_GAP and live and self._full():
                self._skipped_lost += item.row.lost_frames
            elif isinstance(item, Entry) and item.row.kind == KIND_CONNECTION and live and self._full():
                self._skipped_ends += 1
            else:
                self._sink.put(trouble_line(item) if isinstance(item, Trouble) else entry_line(item))

    def _show_frames(self, entry: Entry, *, live: bool) -> None:
        if live and self._full() and not self._bound:
            self._skipped += entry.row.frame_count
            return
        for frame in frames_of(entry.block, entry.row, self._wanted):
            if self._done():
                return
            if not live:
                self._sink.wait_for_room()
            if live and self._full():
                self._skipped += 1
                continue
            self._sink.put(frame_line(frame, self._payload))
            if self._left is not None:
                self._left -= 1

    def _full(self) -> bool:
        """Whether the queue is full. When it is not, a pending line about skipped frames is queued first."""
        if self._sink.full():
            return True
        self._report_skipped()
        return False

    def _report_skipped(self) -> None:
        if (self._skipped or self._skipped_lost or self._skipped_ends) and not self._sink.full():
            self._sink.put(not_shown_line(self._skipped, self._skipped_lost, self._skipped_ends, bound=self._bound))
            self._skipped = self._skipped_lost = self._skipped_ends = 0
