"""Says when the tap begins to lose frames, each minute while it does, and when that is over. On the event loop: a disk that hangs does not stop it.

Counted are frames that the log did not take, because its disk is full or broken or too slow; not those that rules leave out, nor those of
connections that were closed. A loss is over when nothing was lost for ``OVER_S``.
"""

import time
from collections.abc import Callable, Sequence
from typing import Final

from framegate.control.logs import RowLog
from framegate.proxy.cells import CellReader

__all__ = ["REASONS", "TapLosses"]

REASONS: Final = ("queue_full", "disk_full", "disk_error")
EACH_S: Final = 60.0
OVER_S: Final = 10.0


class TapLosses:
    """Looks at the counters of all processors. One thread.

    Args:
        cells: gives the counters, by slot, those of slots that are gone included.
        log: gets the rows ``tap_losing`` and ``tap_losing_ended``.
        directory: of the tap.
        low: why the tap's disk is about to be full, in words; empty while it is not.
        clock: monotonic, in s.
    """

    def __init__(
        self,
        cells: Callable[[], Sequence[tuple[int, CellReader]]],
        log: RowLog,
        directory: str,
        low: Callable[[], str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cells = cells
        self._log = log
        self._directory = directory
        self._low = low
        self._clock = clock
        self._seen = dict.fromkeys(REASONS, 0)
        self._began: dict[str, int] = {}
        self._told: dict[str, int] = {}
        self._began_at = self._told_at = self._lost_at = 0.0
        self.losing = False
        """Whether frames are being lost."""

    @property
    def troubles(self) -> list[str]:
        """What an operator should know, in words."""
        low = self._low()
        found = [] if not low else [low]
        if self.losing:
            lost = _since(self._seen, self._began)
            why = ", ".join(f"{count:,} {reason}" for reason, count in lost.items())
            found.append(f"the tap loses frames, for {self._clock() - self._began_at:.0f} s: {why}; gaps in its log say how many")
        return found

    def look(self) -> None:
        """To be called each second or so."""
        now = self._clock()
        before = self._seen
        readers = [reader for _, reader in self._cells()]
        self._seen = {reason: sum(reader.cell("framegate.tap.dropped", reason) for reader in readers) for reason in REASONS}
        if _since(self._seen, before):
            self._lost_at = now
            if not self.losing:
                self.losing = True
                self._began, self._began_at, self._told = before, now, before
                self._report(now)
        if self.losing and now - self._lost_at >= OVER_S:
            self._report_end()
        elif self.losing and now - self._told_at >= EACH_S:
            self._report(now)

    def close(self) -> None:
        """Framegate stops: what was lost until now is told."""
        self.look()
        if self.losing:
            self._report_end()

    def _report_end(self) -> None:
        self.losing = False
        frames, lasted = _since(self._seen, self._began), round(self._lost_at - self._began_at, 1)
        self._log.write("tap_losing_ended", level="warning", directory=self._directory, frames=frames, seconds=lasted)

    def _report(self, now: float) -> None:
        frames, self._told, self._told_at = _since(self._seen, self._told), self._seen, now
        self._log.write("tap_losing", level="error", directory=self._directory, frames=frames, seconds=round(now - self._began_at, 1))


def _since(now: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    """What was lost meanwhile, by reason."""
    return {reason: now[reason] - before[reason] for reason in REASONS if now[reason] > before[reason]}
