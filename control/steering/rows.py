"""The rows of the log: which are written, and those of audits."""

import dataclasses
from collections.abc import Mapping

from framegate.control.errors import UnavailableError
from framegate.control.events import Bus, Row
from framegate.control.fleet.supervisor import Supervisor
from framegate.control.logs import RowLog
from framegate.control.status import LogStatus
from framegate.proxy.config.log import LogLevel

__all__ = ["Audit", "LogRows"]


class Audit:
    """Rows about changes. Any thread."""

    def __init__(self, log: RowLog, events: Bus) -> None:
        self._log = log
        self._events = events

    def reserve(self) -> None:
        """Keep a place for the audit row of a change, before it is made; ``publish`` takes it, whatever became of the change.

        Raises:
            UnavailableError: the row could not be kept, since stdout is not read; the change must not be made.
        """
        if not self._log.reserve():
            text = "nothing is changed that cannot be audited: stdout, where the audit rows go, is not read or cannot be written"
            raise UnavailableError(text, reason="AUDIT_BLOCKED")

    def publish(self, record: Row) -> None:
        """Publish an audit row, once for each ``reserve``. The log does not drop it, however slowly stdout is read."""
        self._events.publish({"event": "audit", **record}, size=len(repr(record)), reserved=True)


class LogRows:
    """Which rows are written."""

    def __init__(self, supervisor: Supervisor, log: RowLog) -> None:
        self._supervisor = supervisor
        self._log = log

    def status(self) -> LogStatus:
        """What is in force."""
        levels = self._log.levels
        return LogStatus(format=self._log.format, level=levels.level, silenced=tuple(sorted(levels.silenced)), dropped=self._log.dropped)

    def change(self, level: LogLevel | None = None, events: Mapping[str, bool] | None = None) -> LogStatus:
        """Change which rows are written, at once.

        Args:
            level: the least that is; None: it stays.
            events: by name, whether their rows are written; those that are not named stay.

        Raises:
            InvalidArgumentError: there is no such event, or its rows are always written.
        """
        self._log.levels.change(level, events or {})
        desired = self._supervisor.desired
        desired.config = dataclasses.replace(desired.config, log=dataclasses.replace(desired.config.log, level=self._log.levels.level))
        return self.status()
