"""Rows for people and machines: one JSON object a line on stdout, written by a thread of its own.

A reader of stdout that stops must not stop the proxy: rows wait in memory up to a bound, then they are dropped and the next row that is
written says how many.
"""

import contextlib
import datetime
import functools
import json
import logging
import os
import queue
import threading
import time
from typing import Any, Final, NamedTuple

__all__ = ["LibraryRows", "RowLog"]

_CAPACITY: Final = 100_000
_BATCH_BYTES: Final = 256 * 1024
_PAUSE_S: Final = 0.005
"""Between two batches: rows that come fast go out together, instead of one with each waking of the thread."""


class _Encoded(NamedTuple):
    time: float
    event: str
    text: str


@functools.lru_cache(maxsize=1)
def _moment(milliseconds: int) -> str:
    moment = datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class RowLog:
    """Writes rows in order. Any thread may call ``write``; it never blocks.

    Args:
        descriptor: where rows go; 1 is stdout.
        capacity: rows that may wait.
    """

    def __init__(self, descriptor: int = 1, capacity: int = _CAPACITY) -> None:
        self._descriptor = descriptor
        self._capacity = capacity
        self._queue: queue.SimpleQueue[dict[str, Any] | _Encoded | None] = queue.SimpleQueue()
        self._dropped = 0
        self._broken = False
        self._thread = threading.Thread(target=self._run, name="framegate-rows", daemon=True)
        self._thread.start()

    def write(self, event: str, *, level: str = "info", **fields: Any) -> None:
        """Queue one row: ``time``, ``level``, ``event``, then the fields. Values that JSON does not know become text."""
        if self._queue.qsize() >= self._capacity:
            self._dropped += 1
            return
        self._queue.put({"time": time.time(), "level": level, "event": event, **fields})

    def write_encoded(self, event: str, text: str) -> None:
        """Queue one row of level info whose fields, at least one, are a JSON object already."""
        if self._queue.qsize() >= self._capacity:
            self._dropped += 1
            return
        self._queue.put(_Encoded(time.time(), event, text))

    def close(self, timeout: float = 2.0) -> None:
        """Write what waits, for at most ``timeout`` seconds."""
        self._queue.put(None)
        self._thread.join(timeout)

    def _run(self) -> None:
        open_ = True
        while open_:
            row = self._queue.get()
            lines: list[bytes] = []
            size = 0
            while row is not None:
                lines.append(self._line(row))
                size += len(lines[-1])
                if size >= _BATCH_BYTES:
                    break
                try:
                    row = self._queue.get_nowait()
                except queue.Empty:
                    break
            open_ = row is not None
            self._write(b"".join(lines))
            if open_ and size < _BATCH_BYTES:
                time.sleep(_PAUSE_S)

    def _line(self, row: dict[str, Any] | _Encoded) -> bytes:
        if isinstance(row, _Encoded):
            dropped = ""
            if self._dropped:
                dropped, self._dropped = f'"rows_dropped": {self._dropped}, ', 0
            line = f'{{"time": "{_moment(int(row.time * 1000))}", "level": "info", "event": "{row.event}", {dropped}{row.text[1:]}\n'
            return line.encode("utf-8", "replace")
        row["time"] = _moment(int(row["time"] * 1000))
        if self._dropped:
            row["rows_dropped"], self._dropped = self._dropped, 0
        return json.dumps(row, separators=(", ", ": "), ensure_ascii=False, default=str).encode("utf-8", "replace") + b"\n"

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view and not self._broken:
            try:
                view = view[os.write(self._descriptor, view) :]
            except BlockingIOError:
                time.sleep(0.01)
            except OSError as error:
                self._broken = True
                with contextlib.suppress(OSError):
                    os.write(2, f"framegate: rows can no longer be written: {error}\n".encode())


class LibraryRows(logging.Handler):
    """Turns what libraries log (``logging``: gRPC, OpenTelemetry, our own interceptor) into rows, so that stdout holds one form of line."""

    def __init__(self, log: RowLog) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """One row: the logger's name, its message, and the error's type and text when there is one."""
        error = record.exc_info[1] if record.exc_info else None
        fields = {} if error is None else {"error": f"{type(error).__name__}: {error}"}
        self._log.write("library_log", level=record.levelname.lower(), logger=record.name, message=record.getMessage(), **fields)
