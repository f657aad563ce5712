"""What became of exports: how many, with which end, how much of what they held the collector does not have, and which spans were not made at all."""

import threading
from collections.abc import Mapping

from framegate.control.status import Attributes
from framegate.proxy.cells.metrics import ERROR_TYPE, SIGNAL

__all__ = ["Account"]


class Account:
    """Counts. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._exports: dict[tuple[str, str], int] = {}
        self._dropped: dict[str, int] = {}
        self._skipped = 0

    def export(self, signal: str, end: str) -> None:
        """One export ended. ``end``: one of ``EXPORT_ERRORS``."""
        with self._lock:
            self._exports[signal, end] = self._exports.get((signal, end), 0) + 1

    def drop(self, signal: str, items: int) -> None:
        """So many data points, spans or log records will not be sent again."""
        if items:
            with self._lock:
                self._dropped[signal] = self._dropped.get(signal, 0) + items

    def dropped(self, signal: str) -> int:
        """How many were dropped."""
        return self._dropped.get(signal, 0)

    def skip(self, spans: int) -> None:
        """So many spans were never made, for there are enough: no collector lost them."""
        with self._lock:
            self._skipped += spans

    @property
    def skipped(self) -> int:
        """How many were not made."""
        return self._skipped

    def expect(self, signal: str) -> None:
        """That there is such a signal: its counts are there from the beginning, as 0."""
        with self._lock:
            self._exports.setdefault((signal, ""), 0)
            self._dropped.setdefault(signal, 0)

    def measurements(self) -> Mapping[tuple[str, Attributes], float]:
        """By metric and attributes, as ``State.measurements``."""
        with self._lock:
            exports, dropped, skipped = dict(self._exports), dict(self._dropped), self._skipped
        values: dict[tuple[str, Attributes], float] = {}
        for (signal, end), count in exports.items():
            error = ((ERROR_TYPE, end),) if end else ()
            values["framegate.telemetry.exports", ((SIGNAL, signal), *error)] = count
        for signal, count in dropped.items():
            values["framegate.telemetry.dropped", ((SIGNAL, signal),)] = count
        if "traces" in dropped:
            values["framegate.telemetry.skipped", ()] = skipped
        return values
