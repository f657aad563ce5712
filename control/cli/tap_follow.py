"""Lives beside the tap's log: shows what is appended, as long as somebody reads it.

One thread polls the log every ``POLL_MS`` and makes lines, another writes them. What waits between the two is bounded in bytes; when there is no
room, frames are counted and not made lines of, and when the log is further ahead than ``MAX_BEHIND``, blocks are passed over by their headers. The
count is a line as soon as there is room. Only what was there at the start and was asked for (``--since``) waits for the reader instead.
"""

import contextlib
import os
import select
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Final

from control.cli.tap_cursor import Cursor, merged, start_offset
from control.cli.tap_lines import entry_line, frame_line, not_shown_line, trouble_line
from control.cli.tap_records import Entry, Trouble, Wanted, frames_of
from proxy.tap.log_reader import LogError, Segment, end_offset, first_offset, segments, streams
from proxy.tap.record import KIND_FRAMES, KIND_GAP, SEGMENT_HEADER_BYTES

__all__ = ["Follower", "Sink"]

POLL_MS: Final = 40
MAX_BEHIND: Final = 16 << 20
"""Bytes of the log, of all streams, that one poll reads."""
MAX_WAITING: Final = 1 << 20
"""Bytes of lines that wait for whoever reads them."""
_LISTINGS: Final = 50
"""After a folder changed: a file system's clock is coarse, and a second change within one tick of it does not show."""


class Sink:
    """Writes lines to a descriptor on a thread of its own, which a terminal may hold up for ever.

    Attributes:
        gone: nobody reads any more, or it cannot be written.
        trouble: why it cannot be written; empty when it can, or nobody reads.
    """

    def __init__(self, descriptor: int, encoding: str = "utf-8") -> None:
        self.gone = threading.Event()
        self.trouble = ""
        self._descriptor = descriptor
        self._encoding = encoding
        self._lines: deque[bytes] = deque()
        self._size = 0
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True)  # a daemon: it must not keep a process whose terminal stands still
        self._thread.start()

    def full(self) -> bool:
        """Whether lines that may be left out should be."""
        return self._size >= MAX_WAITING

    def put(self, line: str) -> None:
        """Have a line written; room was asked for."""
        data = line.encode(self._encoding, "backslashreplace") + b"\n"
        with self._changed:
            self._lines.append(data)
            self._size += len(data)
            self._changed.notify_all()

    def wait_for_room(self) -> None:
        """Until a line would be taken, or nobody reads any more."""
        with self._changed:
            self._changed.wait_for(lambda: not self.full() or self.gone.is_set())

    def close(self) -> None:
        """Write what waits, and end; waits for that."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines or self._closing)
                data = b"".join(self._lines)
                self._lines.clear()
            if not data:
                return
            try:
                self._write(data)
            except BrokenPipeError:
                self.gone.set()
            except OSError as error:
                self.trouble = error.strerror or str(error)
                self.gone.set()
            with self._changed:
                self._size -= len(data)
                self._changed.notify_all()
            if self.gone.is_set():
                return

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]


class _Watch:
    """One stream: where its reader stands, and whether there may be something to read."""

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
        """Whether there may be something to read. Asks for the status of the folder and of the open file; lists only when the folder changed."""
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
        """What is there was read. A tail that is no block is read again when the file has another size, and not each time."""
        self._tried = self._limit if self.cursor.tail else -1

    def behind(self) -> int:
        """Bytes that were not read yet, as far as is known."""
        return max(0, self._limit - self.cursor.offset)

    def ended(self) -> Trouble | None:
        """The stream's folder is gone: what may have gone with it unread."""
        if self._last is None or (self._last.sealed and not self.behind()):
            return None
        return Trouble(self.cursor.stream, self.cursor.offset, None, True, "it was deleted before all of it was read", self.cursor.is_taken(None))

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
        """Stands at the end of all streams, or where what was captured since a time begins.

        Args:
            root: the tap's directory.
            wanted: which records to show.
            patterns: which streams, of the shell; none: all.
            since_ns: wall clock; None: from now on.
            payload: bytes of each body to show.
            limit: frames to show, then ``run`` returns; None: no limit.
            sink: takes the lines.
            descriptor: what the sink writes to; asked whether somebody reads it.
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
        self._watches: dict[str, _Watch] = {}
        self._start: dict[str, int] = {}
        for stream in self._streams():
            end = _end(root, stream)
            self._start[stream] = end
            self._watches[stream] = _Watch(root, Cursor(root, stream, end if since_ns is None else start_offset(root, stream, since_ns)))

    def run(self) -> None:
        """Returns when nobody reads any more, or at the limit."""
        if any(watch.cursor.offset < self._start[stream] for stream, watch in self._watches.items()):
            self._show(merged((watch.cursor for watch in self._watches.values()), self._wanted, self._start), live=False)
        while not self._done() and not self._poll.poll(POLL_MS):
            self.show_appended()

    def show_appended(self) -> None:
        """Show what was appended since the last call."""
        names = self._streams()
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

    def _streams(self) -> list[str]:
        return [name for name in streams(self._root) if not self._patterns or any(fnmatchcase(name, pattern) for pattern in self._patterns)]

    def _pass_over(self, watch: _Watch, most: int) -> None:
        """Leave out the oldest blocks of a stream that is further ahead than that."""
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
        """Whether there is no room for a line; when there is, a line about what was left out comes first."""
        if self._sink.full():
            return True
        self._report_skipped()
        return False

    def _report_skipped(self) -> None:
        if (self._skipped or self._skipped_lost) and not self._sink.full():
            self._sink.put(not_shown_line(self._skipped, self._skipped_lost, bound=self._bound))
            self._skipped = self._skipped_lost = 0


def _end(root: str, stream: str) -> int:
    """Where a stream ends now, by its headers."""
    try:
        return end_offset(root, stream)
    except LogError:
        return max((segment.limit for segment in segments(root, stream)), default=0)
