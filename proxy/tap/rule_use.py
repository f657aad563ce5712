"""The losses and the processor time of one rule in this processor, for rules that are turned off above a limit."""

from typing import Final

from mypy_extensions import i64

from framegate.proxy.tap.record import REASON_DISK_ERROR, REASON_DISK_FULL, REASON_QUEUE_FULL

WINDOW_NS: Final = 10_000_000_000  # Time over which a rule is judged, of capture time


class RuleUse:
    """The counts of one rule in one window. Loop thread only."""

    def __init__(self, rule: str, max_loss_percent: float, max_cpu_percent: float) -> None:
        self.rule = rule  # its name
        self.wanted: i64 = 0  # frames that it should record: matched, and not excluded by its shares
        self.lost: i64 = 0  # frames of these that the log, or its disk, refused
        self.spent_ns: i64 = 0  # processor time spent on recording in the loop
        self.timed: bool = max_cpu_percent > 0  # whether that time is to be measured
        self.off: bool = False  # the rule matches nothing any more; ``cause`` says why, ``percent`` the value, ``limit`` its limit
        self.cause: str = ""
        self.percent: float = 0.0
        self.limit: float = 0.0
        self._max_loss = max_loss_percent
        self._max_cpu = max_cpu_percent
        self._since_ns: i64 = 0

    def note_loss(self, reason: i64, frames: i64) -> None:
        """Count frames of the rule that became a gap."""
        if reason in (REASON_QUEUE_FULL, REASON_DISK_FULL, REASON_DISK_ERROR):
            self.lost += frames

    def evaluate(self, now_ns: i64) -> bool:
        """Judge the rule at the end of a window. Returns True when it was turned off just now."""
        elapsed = now_ns - self._since_ns
        if self._since_ns == 0 or elapsed < 0:
            self._begin(now_ns)
            return False
        if elapsed < WINDOW_NS or self.off:
            return False
        loss = 100.0 * float(self.lost) / float(max(self.wanted, 1))
        cpu = 100.0 * float(self.spent_ns) / float(elapsed)
        if 0 < self._max_loss < loss:
            self._turn_off("loss", min(loss, 100.0), self._max_loss)
        elif 0 < self._max_cpu < cpu:
            self._turn_off("cpu", cpu, self._max_cpu)
        self._begin(now_ns)
        return self.off

    def _begin(self, now_ns: i64) -> None:
        self._since_ns = now_ns
        self.wanted = 0
        self.lost = 0
        self.spent_ns = 0

    def _turn_off(self, cause: str, percent: float, limit: float) -> None:
        self.off = True
        self.cause = cause
        self.percent = percent
        self.limit = limit
