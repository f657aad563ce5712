"""Rows for people and programs: one line each on stdout, written by a thread of its own.

The log is the first subscriber of events (``control.events``). A reader of stdout that stops must not stop the proxy: rows wait in memory up to a
bound, then they are dropped and counted, and the next row that is written has the count. For a row that must not be lost (who changed what) a place
is reserved before the change is made (``reserve``); when no place is free, or stdout is broken, the change is refused. Rows below the level, and rows
of silenced events, are not made at all: they take no room and are not counted as dropped.
"""

import contextlib
import errno
import functools
import logging
import os
import queue
import random
import reprlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from framegate.control.errors import InvalidArgumentError, Violation
from framegate.control.events import Bus, Event, Row, Subscriber
from framegate.control.logs.catalog import EVENTS
from framegate.control.logs.forms import Form, JsonForm, as_json, fields_of
from framegate.proxy.config.log import LEVELS, LogFormat, LogLevel
from framegate.proxy.network.connection_id import parse_connection_id

_ALWAYS: Final = "audit"  # the event whose rows are always written: a change is made only if its row can be kept
_SAMPLED: Final = "closed"
_LOST: Final = '"lost":{'
_RANKS: Final[Mapping[str, int]] = {level: rank for rank, level in enumerate(LEVELS)}
_CAPACITY: Final = 100_000
_PLACES: Final = 1_000
_PLACE_BYTES: Final = 16 * 1024 * 1024
"""The bound of all rows with a reserved place together; places that were reserved before it was reached are still filled."""
_BATCH_BYTES: Final = 256 * 1024
_ROW_BYTES: Final = 1_024  # the assumed size of a row that is not text yet
_PAUSE_S: Final = 0.005
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)  # rows wait until there is space again
_RETRY_S: Final = 1.0  # between two batches: rows that come fast are written together
_REPR: Final = reprlib.Repr()  # a bounded text of any value, also of one whose own ``__repr__`` raises
_REPR.maxdict, _REPR.maxstring, _REPR.maxother = 64, 1_024, 1_024

Failure = Callable[[BaseException], None]


class Levels:
    """Which rows are written: those from a level on, except those of silenced events. Any thread may ask, one at a time may change."""

    def __init__(self, level: LogLevel = "info", sample: float = 1.0) -> None:
        self.sample = sample  # the share of connections that ended well whose rows (``closed``, info, no byte lost) are written
        self.level: LogLevel = level  # the lowest level that is written
        self.silenced: frozenset[str] = frozenset()  # names of events whose rows are not written, whatever their level

    def passes(self, event: str, level: str) -> bool:
        """Whether a row is written."""
        return event == _ALWAYS or (_RANKS[level] >= _RANKS[self.level] and event not in self.silenced)


def check_silenced(events: Iterable[str]) -> None:
    """Raise InvalidArgumentError (``silenced``) for names of events that do not exist, or whose rows are always written."""
    faults = [Violation("silenced", f"there is no event {name!r:.100}; deploy/log.md lists them") for name in events if name not in EVENTS]
    if _ALWAYS in events:
        faults.append(Violation("silenced", f"rows {_ALWAYS} are always written: audit rows cannot be silenced"))
    if faults:
        raise InvalidArgumentError(faults)


class RowCopy(NamedTuple):
    """A row, or rows that happened together."""

    time: float  # seconds since 1970
    # level, event: of each
    level: str
    event: str
    content: dict[str, Any] | Sequence[str]  # the fields of one row, or the JSON texts of the fields of each
    reserved: bool = False  # whether a place was reserved for the row; it is one, as text


@functools.lru_cache(maxsize=1)
def _moment(milliseconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(milliseconds // 1000)) + f".{milliseconds % 1000:03}Z"


def audit_line(fields: dict[str, Any]) -> str:
    """An audit row as JSON, whatever is in it."""
    row = {"time": _moment(int(time.time() * 1000)), "event": _ALWAYS}
    try:
        return as_json({**row, **fields})
    except Exception:  # a key that JSON does not know
        return as_json({**row, "unreadable": _REPR.repr(fields)})


class RowLog(Subscriber):
    """Writes rows in order. Any thread may call any method; only ``close`` blocks.

    Args:
        descriptor: where rows go; 1 is stdout.
        capacity: rows that may wait.
        places: rows with a reserved place that may wait.
        form: how they are written; None: as JSON.
        levels: which are written; None: those from info on.
    """

    def __init__(
        self, descriptor: int = 1, capacity: int = _CAPACITY, places: int = _PLACES, *, form: Form | None = None, levels: Levels | None = None
    ) -> None:
        self.levels = levels or Levels()  # which rows are written
        self.dropped = 0  # rows that were dropped since the start
        self._form = form or JsonForm()
        # called in the writing thread with the exception of a row that cannot be written as JSON; a row ``row_failed`` takes its place
        self.on_failure: Failure = lambda error: None
        # gets a copy of each row, whether stdout has room for it or not; None: copies are not made. It must not block or raise.
        self.copy_to: Callable[[RowCopy], None] | None = None
        self.written = Bus(on_failure=lambda error: self.on_failure(error))  # publishes each row, whether stdout has room for it or not
        self.span_fields: Callable[[], dict[str, str]] = dict  # returns the fields of the span in which a row is written
        # returns those of the span of a connection, by its id, or none; None: connections have no spans
        self.connection_fields: Callable[[int], dict[str, str]] | None = None
        self._descriptor = descriptor
        self._capacity = capacity
        self._places = places
        self._queue: queue.SimpleQueue[RowCopy | None] = queue.SimpleQueue()
        self._alike = 0  # connections that ended well since the last one whose row is written
        self._together = 0  # rows that wait with others, which count for one in the queue
        self._lock = threading.Lock()
        self._told = 0  # of ``dropped``, how many a row has reported
        self._taken = 0
        self._taken_bytes = 0
        self.fault = ""  # why rows cannot be written now; empty: they can, or the reader is slow
        self._is_gone = False  # nothing can be written any more
        self._thread = threading.Thread(target=self._run, name="framegate-rows", daemon=True)
        self._thread.start()

    @property
    def format(self) -> LogFormat:
        return self._form.name

    @property
    def is_behind(self) -> bool:
        """Whether more than half of the capacity waits; then callers leave out rows whose facts can be asked for later."""
        return self._queue.qsize() + self._together > self._capacity // 2

    def write(self, event: str, *, level: str = "info", **fields: Any) -> None:
        """Queue one row: ``time``, ``level``, ``event``, then the fields. Values that JSON does not know become text."""
        if self.levels.passes(event, level):
            fields.update(self.span_fields())
            row = RowCopy(time.time(), level, event, fields)
            self._copy(row)
            if self._queue.qsize() + self._together < self._capacity:
                self._queue.put(row)
            else:
                with self._lock:
                    self.dropped += 1

    def write_encoded(self, event: str, text: str, *, level: str = "info") -> None:
        """Queue one row whose fields, at least one, are the text of a JSON object."""
        self.write_lines(event, (text,), level=level)

    def write_lines(self, event: str, texts: Sequence[str], *, level: str = "info") -> None:
        """Queue rows as ``write_encoded`` does, in their order, with one time."""
        if not self.levels.passes(event, level):
            return
        rows = RowCopy(time.time(), level, event, texts)
        self._copy(rows)
        with self._lock:
            room = max(self._capacity - self._queue.qsize() - self._together, 0)
            kept = texts[:room]
            self.dropped += len(texts) - len(kept)
            self._together += max(len(kept) - 1, 0)
        if kept:
            self._queue.put(rows._replace(content=kept))

    def _copy(self, row: RowCopy, size: int = _ROW_BYTES) -> None:
        if self.copy_to is not None:
            self.copy_to(row)
        if isinstance(row.content, dict):
            self.written.publish({"event": row.event, **row.content}, level=row.level, size=size)
        else:
            self.written.publish_lines(row.event, row.content, lambda _, text: fields_of(text), level=row.level)

    def offer_lines(self, events: Sequence[Event], lines: Sequence[str]) -> None:
        """Queue the rows of events that happened together. See ``Subscriber``."""
        name, level = events[0].name, events[0].level
        if not self.levels.passes(name, level):
            return
        if self.connection_fields is not None:
            fields = [self.connection_fields(event.subject) for event in events]
            lines = [f"{line[:-1]},{as_json(found)[1:]}" if found else line for line, found in zip(lines, fields, strict=True)]
        if name == _SAMPLED and level == "info" and self.levels.sample < 1:
            lines = self._sample(lines)
        if lines:
            self.write_lines(name, lines, level=level)

    def _sample(self, lines: Sequence[str]) -> list[str]:
        """A random choice of rows; each has the number of rows it stands for (``sampled``): itself and those left out before it, so sums stay right.
        All rows of connections that lost bytes are in it.
        """
        kept = []
        for line in lines:
            if _LOST not in line:
                self._alike += 1
                if random.random() >= self.levels.sample:
                    continue
                line, self._alike = f'{line[:-1]},"sampled":{self._alike}}}', 0
            kept.append(line)
        return kept

    def offer(self, event: Event, line: dict[str, Any] | str, size: int) -> None:
        """Queue the row of an event, at its reserved place if it has one. See ``Subscriber``."""
        if isinstance(line, str):
            self.write_encoded(event.name, line, level=event.level)
        elif event.reserved:
            self.write_reserved(event.name, line)
        elif self.levels.passes(event.name, event.level):
            self.write(event.name, level=event.level, **line, **self._fields_of_connection(event.row))

    def _fields_of_connection(self, row: Row) -> dict[str, str]:
        """The fields of the span of the connection that a row is about."""
        number, text = row.get("id"), row.get("connection")
        if self.connection_fields is None or not (isinstance(number, int) or isinstance(text, str)):
            return {}
        with contextlib.suppress(ValueError):  # a text of another kind
            return self.connection_fields(number if isinstance(number, int) else parse_connection_id(str(text)))
        return {}

    def reserve(self) -> bool:
        """Reserve a place for a row that must not be lost; False when no place is free, or stdout is broken. Exactly one ``write_reserved`` or
        ``release`` follows each place.
        """
        with self._lock:
            if self.fault or self._taken >= self._places or self._taken_bytes >= _PLACE_BYTES:
                return False
            self._taken += 1
            return True

    def release(self) -> None:
        """Give a place back that no row will use."""
        with self._lock:
            self._taken -= 1

    def write_reserved(self, event: str, fields: dict[str, Any]) -> None:
        """Queue the row that a place was reserved for; at least one field, level info."""
        now_s = time.time()
        try:
            fields = {**fields, **self.span_fields()}
            text = as_json(fields)
        except Exception as error:  # a key or a value that JSON does not know: the row stays, as far as possible
            self.on_failure(error)
            fields = {"unreadable": _REPR.repr(fields)}
            text = as_json(fields)
        self._copy(RowCopy(now_s, "info", event, fields), len(text))
        with self._lock:
            self._taken_bytes += len(text)
        self._queue.put(RowCopy(now_s, "info", event, (text,), reserved=True))

    def close(self, timeout: float = 2.0) -> None:
        """Write the queued rows, for at most ``timeout`` seconds; stderr gets the number of rows that were lost."""
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
        size = reserved = reserved_bytes = 0
        while row is not None:
            lines.append(self._line(row))
            size += len(lines[-1])
            if row.reserved:
                reserved, reserved_bytes = reserved + 1, reserved_bytes + len(row.content[0])  # type: ignore[index]
            elif len(row.content) > 1 and not isinstance(row.content, dict):
                with self._lock:
                    self._together -= len(row.content) - 1
            if size >= _BATCH_BYTES:
                break
            try:
                row = self._queue.get_nowait()
            except queue.Empty:
                break
        self._write(b"".join(lines))
        if self._is_gone:
            with self._lock:
                self.dropped += sum(line.count(b"\n") for line in lines)
        elif reserved:
            with self._lock:
                self._taken -= reserved
                self._taken_bytes -= reserved_bytes
        if row is not None and size < _BATCH_BYTES:
            time.sleep(_PAUSE_S)
        return row is not None

    def _line(self, row: RowCopy) -> bytes:
        try:
            dropped, self._told = self.dropped - self._told, self.dropped
            moment = _moment(int(row.time * 1000))
            if isinstance(row.content, dict):
                text = self._form.row(moment, row.level, row.event, {**row.content, "rows_dropped": dropped} if dropped else row.content)
            else:
                text = self._form.lines(moment, row.level, row.event, row.content, dropped)
        except Exception as error:  # only this row is lost, and a row reports it
            self.on_failure(error)
            text = self._form.row(_moment(int(time.time() * 1000)), "error", "row_failed", {"row": row.event, "error": repr(error)})
        return f"{text}\n".encode("utf-8", "replace")

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view and not self._is_gone:
            try:
                view = view[os.write(self._descriptor, view) :]
                self.fault = ""
            except BlockingIOError:
                time.sleep(0.01)
            except OSError as error:
                self._is_gone = error.errno not in _FULL
                if not self.fault:
                    self.fault = "standard output is closed" if error.errno == errno.EBADF else str(error)
                    self._say(f"rows can{' no longer' if self._is_gone else 'not'} be written, changes are refused: {self.fault}")
                if not self._is_gone:
                    time.sleep(_RETRY_S)

    @staticmethod
    def _say(text: str) -> None:
        with contextlib.suppress(OSError):
            os.write(2, f"framegate: {text}\n".encode())


_CLIENT_GONE: Final = "ExecuteBatchError"  # gRPC's, when an answer cannot be sent: the client has cancelled its call, or gone, a moment before


class LibraryRows(logging.Handler):
    """Turns log records of libraries (``logging``: gRPC, OpenTelemetry, our own interceptor) into rows, so that all lines of stdout are rows.
    ``on_exception``: called for each record with an exception: a callback that a library called, a call that failed.
    """

    def __init__(self, log: RowLog, on_exception: Callable[[], None] = lambda: None) -> None:
        super().__init__(logging.WARNING)
        self._log = log
        self._on_exception = on_exception

    def emit(self, record: logging.LogRecord) -> None:
        """Write one row: the logger's name, its message, and the type and text of the exception if there is one."""
        error = record.exc_info[1] if record.exc_info else None
        if type(error).__name__ == _CLIENT_GONE:
            return
        fields = {} if error is None else {"error": f"{type(error).__name__}: {error}"}
        if error is not None:
            self._on_exception()
        try:
            message = record.getMessage()
        except Exception:  # the library's arguments do not fit its text
            message = f"{record.msg} {record.args}"
        level = "error" if record.levelno >= logging.ERROR else "warning"
        self._log.write("library_log", level=level, logger=record.name, message=message, **fields)
