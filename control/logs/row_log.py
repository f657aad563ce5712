"""Rows for people and machines: one line each on stdout, written by a thread of its own.

Of what happens (``control.events``) the log is the first subscriber. A reader of stdout that stops must not stop the proxy: rows wait in memory
up to a bound, then they are dropped, counted, and the next row that is written says how many. A row that must not be lost (who changed what)
has a place of its own, taken before the change is made; when no place is free, or stdout is broken, the change is refused instead (``reserve``).
What is below the level, or silenced, is no row at all: it takes no room, and is not counted as dropped.
"""

import contextlib
import datetime
import functools
import os
import queue
import reprlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from framegate.control.events import Event, Subscriber
from framegate.control.logs.forms import Form, JsonForm, as_json
from framegate.control.logs.levels import Levels
from framegate.proxy.config.log import LogFormat

__all__ = ["RowCopy", "RowLog"]

_CAPACITY: Final = 100_000
_PLACES: Final = 1_000
_PLACE_BYTES: Final = 16 * 1024 * 1024
"""All rows that must not be lost together; what is under way when it is reached still gets in."""
_BATCH_BYTES: Final = 256 * 1024
_PAUSE_S: Final = 0.005
"""Between two batches: rows that come fast go out together, instead of one with each waking of the thread."""
_REPR: Final = reprlib.Repr()
"""Says anything at all, also what raises when it is asked for its own words."""
_REPR.maxdict, _REPR.maxstring, _REPR.maxother = 64, 1_024, 1_024

Failure = Callable[[BaseException], None]


class RowCopy(NamedTuple):
    """A row, or rows that happened together, for who wants them besides stdout.

    Attributes:
        time: seconds since 1970.
        level, event: of each.
        content: the fields of one row, or the JSON text of the fields of each.
    """

    time: float
    level: str
    event: str
    content: dict[str, Any] | Sequence[str]


class _Row(NamedTuple):
    time: float
    level: str
    event: str
    fields: dict[str, Any]


class _Lines(NamedTuple):
    """Rows that happened together, their fields as JSON; ``kept``: one, that has a place."""

    time: float
    level: str
    event: str
    texts: Sequence[str]
    kept: bool = False


@functools.lru_cache(maxsize=1)
def _moment(milliseconds: int) -> str:
    moment = datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class RowLog(Subscriber):
    """Writes rows in order. Any thread may call any method; only ``close`` blocks.

    Args:
        descriptor: where rows go; 1 is stdout.
        capacity: rows that may wait.
        places: rows that may wait and must not be lost.
        form: how they are written; None: as JSON.
        levels: which are; None: those from info on.

    Attributes:
        levels: which rows are written.
        dropped: rows that were not kept, since the start.
        on_failure: is told, in the writing thread, of a row that cannot be written as JSON; a row says so in its place.
        copy_to: gets a copy of each row as it is written, whether stdout has room for it or not; None: nobody. It must not block or raise.
        span_fields: gives the fields of the span in which a row is written.
    """

    def __init__(
        self, descriptor: int = 1, capacity: int = _CAPACITY, places: int = _PLACES, *, form: Form | None = None, levels: Levels | None = None
    ) -> None:
        self.levels = levels or Levels()
        self.dropped = 0
        self._form = form or JsonForm()
        self.on_failure: Failure = lambda error: None
        self.copy_to: Callable[[RowCopy], None] | None = None
        self.span_fields: Callable[[], dict[str, str]] = dict
        self._descriptor = descriptor
        self._capacity = capacity
        self._places = places
        self._queue: queue.SimpleQueue[_Row | _Lines | None] = queue.SimpleQueue()
        self._together = 0  # rows that wait with others, which count for one in the queue
        self._lock = threading.Lock()
        self._told = 0
        self._taken = 0
        self._taken_bytes = 0
        self._broken = False
        self._thread = threading.Thread(target=self._run, name="framegate-rows", daemon=True)
        self._thread.start()

    @property
    def format(self) -> LogFormat:
        """How rows are written."""
        return self._form.name

    @property
    def is_behind(self) -> bool:
        """Whether so much waits that what can be asked for later should be."""
        return self._queue.qsize() + self._together > self._capacity // 2

    def write(self, event: str, *, level: str = "info", **fields: Any) -> None:
        """Queue one row: ``time``, ``level``, ``event``, then the fields. Values that JSON does not know become text."""
        if self.levels.passes(event, level):
            fields.update(self.span_fields())
            self._copy(level, event, fields)
            if self._has_room():
                self._queue.put(_Row(time.time(), level, event, fields))

    def _copy(self, level: str, event: str, content: dict[str, Any] | Sequence[str]) -> None:
        if self.copy_to is not None:
            self.copy_to(RowCopy(time.time(), level, event, content))

    def write_encoded(self, event: str, text: str, *, level: str = "info") -> None:
        """Queue one row whose fields, at least one, are a JSON object already."""
        if self.levels.passes(event, level):
            self._copy(level, event, (text,))
            if self._has_room():
                self._queue.put(_Lines(time.time(), level, event, (text,)))

    def write_lines(self, event: str, texts: Sequence[str], *, level: str = "info") -> None:
        """Queue rows as ``write_encoded`` does, in their order, with one time."""
        if not self.levels.passes(event, level):
            return
        self._copy(level, event, texts)
        with self._lock:
            room = max(self._capacity - self._queue.qsize() - self._together, 0)
            kept = texts[:room]
            self.dropped += len(texts) - len(kept)
            self._together += max(len(kept) - 1, 0)
        if kept:
            self._queue.put(_Lines(time.time(), level, event, kept))

    def offer_lines(self, events: Sequence[Event], lines: Sequence[str]) -> None:
        """Queue the rows of events that happened together. See ``Subscriber``."""
        self.write_lines(events[0].name, lines, level=events[0].level)

    def offer(self, event: Event, line: dict[str, Any] | str, size: int) -> None:
        """Queue the row of an event, at the place that was taken for it if one was. See ``Subscriber``."""
        if isinstance(line, str):
            self.write_encoded(event.name, line, level=event.level)
        elif event.reserved:
            self.write_reserved(event.name, line)
        else:
            self.write(event.name, level=event.level, **line)

    def _has_room(self) -> bool:
        if self._queue.qsize() + self._together < self._capacity:
            return True
        with self._lock:
            self.dropped += 1
        return False

    def reserve(self) -> bool:
        """Take a place for a row that must not be lost; False when none is free, or rows can no longer be written at all. Exactly one
        ``write_reserved`` follows each place.
        """
        with self._lock:
            if self._broken or self._taken >= self._places or self._taken_bytes >= _PLACE_BYTES:
                return False
            self._taken += 1
            return True

    def write_reserved(self, event: str, fields: dict[str, Any]) -> None:
        """Queue the row that a place was taken for; at least one field, level info."""
        try:
            fields = {**fields, **self.span_fields()}
            self._copy("info", event, fields)
            text = as_json(fields)
        except Exception as error:  # a key or a value that JSON cannot say: the row stays, as far as that goes
            self.on_failure(error)
            text = as_json({"unreadable": _REPR.repr(fields)})
        with self._lock:
            self._taken_bytes += len(text)
        self._queue.put(_Lines(time.time(), "info", event, (text,), kept=True))

    def close(self, timeout: float = 2.0) -> None:
        """Write what waits, for at most ``timeout`` seconds; stderr says how much was lost."""
        self._queue.put(None)
        self._thread.join(timeout)
        left = self._queue.qsize() + self._together - 1 if self._thread.is_alive() else 0
        if left > 0 or self._taken:
            self._say(f"rows not written: {max(left, self._taken)}, of them about changes: {self._taken}")

    def _run(self) -> None:
        open_ = True
        while open_:
            try:
                open_ = self._write_batch()
            except Exception as error:
                self.on_failure(error)
                time.sleep(_PAUSE_S)

    def _write_batch(self) -> bool:
        """Wait for a row and write it with those that wait behind it; False at the end."""
        row = self._queue.get()
        lines: list[bytes] = []
        size = kept = kept_bytes = 0
        while row is not None:
            lines.append(self._line(row))
            size += len(lines[-1])
            if isinstance(row, _Lines) and row.kept:
                kept, kept_bytes = kept + 1, kept_bytes + len(row.texts[0])
            elif isinstance(row, _Lines) and len(row.texts) > 1:
                with self._lock:
                    self._together -= len(row.texts) - 1
            if size >= _BATCH_BYTES:
                break
            try:
                row = self._queue.get_nowait()
            except queue.Empty:
                break
        self._write(b"".join(lines))
        if kept and not self._broken:
            with self._lock:
                self._taken -= kept
                self._taken_bytes -= kept_bytes
        if row is not None and size < _BATCH_BYTES:
            time.sleep(_PAUSE_S)
        return row is not None

    def _line(self, row: _Row | _Lines) -> bytes:
        try:
            return self._encode(row)
        except Exception as error:  # it costs this row, and a row says so
            self.on_failure(error)
            failed = {"row": row.event, "error": repr(error)}
            return f"{self._form.row(_moment(int(time.time() * 1000)), 'error', 'row_failed', failed)}\n".encode("utf-8", "replace")

    def _encode(self, row: _Row | _Lines) -> bytes:
        """One line, or several."""
        dropped, self._told = self.dropped - self._told, self.dropped
        moment = _moment(int(row.time * 1000))
        if isinstance(row, _Lines):
            text = self._form.lines(moment, row.level, row.event, row.texts, dropped)
        else:
            text = self._form.row(moment, row.level, row.event, {**row.fields, "rows_dropped": dropped} if dropped else row.fields)
        return f"{text}\n".encode("utf-8", "replace")

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view and not self._broken:
            try:
                view = view[os.write(self._descriptor, view) :]
            except BlockingIOError:
                time.sleep(0.01)
            except OSError as error:
                self._broken = True
                self._say(f"rows can no longer be written, changes are refused: {error}")

    @staticmethod
    def _say(text: str) -> None:
        with contextlib.suppress(OSError):
            os.write(2, f"framegate: {text}\n".encode())
