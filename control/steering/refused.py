"""The frames whose size was refused last, as evidence: who sent them, how large they said they are, and how they begin."""

from collections import deque
from typing import Final

from framegate.control.fleet.supervisor import Supervisor
from framegate.control.steering.listeners import find_listener
from framegate.proxy.server.rows import RefusedFrameRow

KEPT: Final = 100  # of each listener


class RefusedFrames:
    """Keeps the rows that processors report. Event loop only."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._kept: dict[str, deque[RefusedFrameRow]] = {}
        supervisor.on_refused = self.note

    def note(self, row: RefusedFrameRow) -> None:
        """Keep a row; the oldest of its listener, and those of listeners that were removed, are dropped."""
        if row["listener"] not in self._kept:
            names = {item.name for item in self._supervisor.desired.config.listeners}
            self._kept = {name: rows for name, rows in self._kept.items() if name in names}
        self._kept.setdefault(row["listener"], deque(maxlen=KEPT)).append(row)

    def latest(self, listener: str) -> list[RefusedFrameRow]:
        """The rows of a listener, the latest first. Raises NotFoundError."""
        find_listener(self._supervisor.desired.config, listener)
        return list(reversed(self._kept.get(listener, ())))
