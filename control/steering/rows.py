"""Rows of the log: which are written, those of audits, and those of connections that stay open for long."""

import asyncio
import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from framegate.control.errors import EtagError, UnavailableError
from framegate.control.events import Bus, Row
from framegate.control.fleet.processor import Processor
from framegate.control.fleet.supervisor import Supervisor
from framegate.control.logs import AuditFile, RowLog, audit_line, check_silenced
from framegate.control.meters import Meters
from framegate.control.status import LogStatus
from framegate.control.steering.transactions import Changed, etag_of, replaced
from framegate.proxy.config.log import LogLevel, OnAuditFailure
from framegate.proxy.server.protocol import access_request

PAGE: Final = 100  # Access rows in one answer: 60 KiB on the link, under 1 ms of work in the processor and in control
REST_S: Final = 0.01
ANSWER_MS: Final = 1_000
ACCESS_LIMIT_S: Final = 300.0


class Place(NamedTuple):
    """Where the audit row of a change will go."""

    kept: bool = True  # a place in the log is reserved
    room: bool = False  # there is room for it in the file
    blocked: UnavailableError | None = None  # why the row is written later; None: it is written before the answer


class Audit:
    """Rows about changes: in the log, and in a file of their own if there is one, which then is what counts. Event loop only.

    Args:
        on_failure: what happens to a change whose row cannot be written.
        file: None: the log alone has the rows.
        meters: count the rows that could not be written in time.
    """

    def __init__(self, log: RowLog, events: Bus, on_failure: OnAuditFailure, file: AuditFile | None, meters: Meters) -> None:
        self._log = log
        self._events = events
        self._on_failure = on_failure
        self._file = file
        self._meters = meters

    async def reserve(self, *, urgent: bool = False) -> Place:
        """Reserve a place for the audit row of a change, before it is made. ``publish`` uses it, whether the change succeeds or not. ``urgent``: the
        change must not wait for its row. Raises UnavailableError: the row cannot be written, and such changes are refused; the change must not be
        made.
        """
        kept = self._log.reserve()
        if self._file is not None:
            try:
                fault = await self._file.reserve()
            except BaseException:
                if kept:
                    self._log.release()
                raise
            trouble = "" if fault is None else f"{self._file.path}: {fault.strerror or fault}"
        else:
            trouble = "" if kept else "standard output of framegate serve is blocked"
        if not trouble:
            return Place(kept, room=self._file is not None)
        error = UnavailableError(f"the change was refused, because its audit row cannot be written: {trouble}", reason="AUDIT_BLOCKED")
        if self._on_failure == "count":
            return Place(kept)
        if urgent:
            return Place(kept, blocked=error)
        if kept:
            self._log.release()
        raise error

    def publish(self, record: Row, place: Place) -> None:
        """Publish an audit row, once for each ``reserve``. If its place is kept, the log does not drop it, however slowly stdout is read."""
        if self._file is not None:
            self._file.add(audit_line({key: value for key, value in record.items() if key != "event"}), reserved=place.room)
        elif not place.kept:
            self._meters.add("audit.failures")
        self._events.publish(record, size=len(repr(record)), reserved=place.kept)

    @property
    def warning(self) -> str:
        """That rows cannot be written, to standard output or to the file, and what becomes of changes; empty: they can."""
        error = None if self._file is None else self._file.error
        if self._file is None or error is None:
            return f"rows cannot be written to standard output: {self._log.fault}" if self._log.fault else ""
        changes = "changes are refused" if self._on_failure == "refuse" else "changes are made, and counted in the metric audit.failures"
        return f"the audit file {self._file.path} cannot be written: {error.strerror or error}; {changes}"

    async def written(self) -> None:
        """Wait until the published rows are in the file, or have failed to be."""
        if self._file is not None:
            await self._file.write()

    async def close(self) -> None:
        """Write what waits."""
        if self._file is not None:
            await self._file.close()


def log_etag(status: LogStatus) -> str:
    """Identifies what can be changed of the log."""
    return etag_of([status.level, *status.silenced])


class LogRows:
    """The levels of the log."""

    def __init__(self, supervisor: Supervisor, log: RowLog) -> None:
        self._supervisor = supervisor
        self._log = log

    def status(self) -> LogStatus:
        levels = self._log.levels
        return LogStatus(format=self._log.format, level=levels.level, silenced=tuple(sorted(levels.silenced)), dropped=self._log.dropped)

    async def change(self, changes: Mapping[str, Any], etag: str = "", *, validate_only: bool = False) -> Changed[LogStatus]:
        """Change ``level``, ``silenced`` or both, at once. Raises InvalidArgumentError: there is no such event, or its rows are always written;
        others as ``Transactions.update``.
        """
        before = self.status()
        if etag and etag != log_etag(before):
            raise EtagError("log", self._supervisor.desired.config.node)
        after = replaced(before, {**changes, "silenced": tuple(sorted(set(changes.get("silenced", before.silenced))))})
        check_silenced(after.silenced)
        if not validate_only:
            self._log.levels.silenced = frozenset(after.silenced)
            self.set_level(after.level)
        return Changed(before, after)

    def set_level(self, level: LogLevel) -> None:
        self._log.levels.level = level
        desired = self._supervisor.desired
        desired.config = dataclasses.replace(desired.config, log=dataclasses.replace(desired.config.log, level=level))


def interval_s(every_ms: int) -> float:
    """The time between two calls of ``AccessRows.look``: a sixtieth, from 1 to 10 s."""
    return min(max(every_ms / 60_000, 1.0), 10.0)


class _Period:
    """A period for whose rows a processor is asked. Attributes: ``after``: the last id that it has answered for."""

    def __init__(self, since_ns: int, until_ns: int) -> None:
        self.since_ns = since_ns
        self.until_ns = until_ns
        self.after = 0


class AccessRows:
    """Gets a row of each connection that stays open (``access``) every ``log.access.every``.

    It asks the processors for the rows that have become due since the last request (``proxy.server.pair_rows.is_due``), in pages with a pause after
    each, so that ten thousand rows neither block the loop nor come at once. When a processor does not answer in time, or stdout is not read, it
    continues later from there. A page whose answer came too late is written twice. The rows come as a notice, in order with those of connections that
    open and close.

    ``every_ms``: the time between two rows of a connection, at least 1.
    """

    def __init__(self, supervisor: Supervisor, every_ms: int, log: RowLog, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._supervisor = supervisor
        self._every_ms = every_ms
        self._log = log
        self._now_ns = now_ns
        self._began_ns = now_ns()
        self._asked_ns: dict[Processor, int] = {}
        self._unfinished: dict[Processor, _Period] = {}

    async def look(self) -> None:
        """Ask each processor for the rows that are due. Rows that the log does not write are skipped for good."""
        running = self._supervisor.running
        self._asked_ns = {each: self._asked_ns.get(each, self._began_ns) for each in running}
        self._unfinished = {each: period for each, period in self._unfinished.items() if each in self._asked_ns}
        if not self._log.levels.passes("access", "info"):
            now_ns = self._now_ns()
            self._asked_ns = dict.fromkeys(running, now_ns)
            self._unfinished.clear()
            return
        for processor in running:
            period = self._unfinished.pop(processor, None)
            if period is None or await self._ask(processor, period):
                period = _Period(self._asked_ns[processor], self._now_ns())
                self._asked_ns[processor] = period.until_ns
                await self._ask(processor, period)

    async def _ask(self, processor: Processor, period: _Period) -> bool:
        """Get the pages of one period. Returns False if some are left for later."""
        while not self._log.is_behind:
            request = access_request(after=period.after, limit=PAGE, every_ms=self._every_ms, since_ns=period.since_ns, until_ns=period.until_ns)
            try:
                period.after = (await processor.request(request, ANSWER_MS))["next"]
            except UnavailableError:
                break
            if not period.after:
                return True
            await asyncio.sleep(REST_S)
        self._unfinished[processor] = period
        return False
