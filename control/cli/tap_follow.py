"""Shows what is appended to the tap's log, until the reader of the output closes it.

The log is polled every ``POLL_MS``, and a line is written before the next record is read: a slow terminal waits for nobody but holds the reading up.
When the log is more than ``MAX_BEHIND`` ahead, whole blocks are skipped by their headers, and a line reports how many frames they have. Records from
before the start (``--since``) are not skipped.
"""

import contextlib
import os
import select
from collections.abc import Iterable, Sequence
from typing import Final

from framegate.control.cli.output import exit_unwritten
from framegate.control.cli.tap_cursor import Cursor, matching, merged, start_offset
from framegate.control.cli.tap_records import Entry, Trouble, Wanted, entry_line, frame_line, frames_of, not_shown_line, trouble_line
from framegate.proxy.tap.log_reader import LogError, Segment, end_offset, first_offset, segments, streams
from framegate.proxy.tap.record import KIND_FRAMES, SEGMENT_HEADER_BYTES

POLL_MS: Final = 40
MAX_BEHIND: Final = 4 << 20  # most bytes that one poll reads, all streams together
_LISTINGS: Final = 50
"""Listings after a folder changed: the clock of a file system is coarse, and a second change within one tick does not change mtime."""


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
        self, root: str, wanted: Wanted, patterns: Sequence[str], since_ns: int | None, payload: int, limit: int | None, output: int, encoding: str
    ) -> None:
        """Start at the end of all streams, or at the first record since a time.

        Args:
            patterns: shell patterns of streams; empty: all.
            since_ns: wall clock; None: from now on.
            payload: body bytes to show.
            limit: number of frames after which ``run`` returns; None: no limit.
            output: the descriptor that lines are written to, and polled to see whether its reader has closed it.
            encoding: of lines.
        """
        self._root = root
        self._wanted = wanted
        self._bound = wanted != Wanted(since_ns=wanted.since_ns, totals=wanted.totals)
        self._patterns = patterns
        self._payload = payload
        self._left = limit
        self._output = output
        self._encoding = encoding
        self._gone = False
        self._poll = select.poll()
        self._poll.register(output, 0)
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
        """Show records until the reader has closed the output, or the limit is reached. Exits the process when the output cannot be written."""
        if any(watch.cursor.offset < self._start[stream] for stream, watch in self._watches.items()):
            self._show(merged((watch.cursor for watch in self._watches.values()), self._wanted, self._start))
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
                self._show([trouble])
        due = [watch for watch in self._watches.values() if watch.due()]
        skipped = [self._pass_over(watch, MAX_BEHIND // len(due)) for watch in due]
        frames, lost = sum(frames for frames, _ in skipped), sum(lost for _, lost in skipped)
        if frames or lost:
            self._put(not_shown_line(frames, lost, bound=self._bound))
        self._show(merged([watch.cursor for watch in due], self._wanted))
        for watch in due:
            watch.mark_read()

    def _done(self) -> bool:
        return self._left == 0 or self._gone

    def _put(self, line: str) -> None:
        """Write a line, and wait for a reader that is slow."""
        rest = memoryview(line.encode(self._encoding, "backslashreplace") + b"\n")
        try:
            while rest:
                rest = rest[os.write(self._output, rest) :]
        except BrokenPipeError:
            self._gone = True
        except OSError as error:
            exit_unwritten(error)

    def _pass_over(self, watch: _Watch, most: int) -> tuple[int, int]:
        """Skip the oldest blocks of a stream that has more than ``most`` unread bytes; how many frames they have, and how many their gaps."""
        frames = lost = 0
        if watch.behind() > most:
            for ref in watch.cursor.blocks():
                if watch.behind() <= most:
                    break  # before the cursor is behind this block
                if isinstance(ref, Trouble):
                    self._show([ref])
                else:
                    frames += ref.header.request_frames + ref.header.response_frames
                    lost += ref.header.lost_frames
        return frames, lost

    def _show(self, items: Iterable[Entry | Trouble]) -> None:
        for item in items:
            if isinstance(item, Trouble):
                self._put(trouble_line(item))
            elif item.row.kind != KIND_FRAMES:
                self._put(entry_line(item))
            else:
                for frame in frames_of(item.block, item.row, self._wanted):
                    self._put(frame_line(frame, self._payload))
                    if self._left is not None:
                        self._left -= 1
                    if self._done():
                        return
            if self._done():
                return
