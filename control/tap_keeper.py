"""The tap's directory, as control keeps it: one instance's lock, the budget, and the accounts of processors that died.

All work on the file system is done by one thread here: a sweep each second, and after a death a gap record in the recovery stream. A disk
that hangs holds up that thread and nothing else.
"""

import dataclasses
import os
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from control.guard import Guard
from control.instance import DirectoryLock
from control.logs import RowLog
from control.meters import Meters
from control.slot_cells import Life
from proxy.config.model import ProxyConfig, TapConfig
from proxy.tap.log_reader import LogError, first_offset, stream_totals
from proxy.tap.record import stream_name
from proxy.tap.recovery import record_death, seal_dead
from proxy.tap.retention import Retention

__all__ = ["Death", "TapKeeper", "split_missing"]

SWEEP_INTERVAL_S: Final = 1.0
STOP_TIMEOUT_S: Final = 5.0
Job = Callable[[], None]


@dataclasses.dataclass(frozen=True, slots=True)
class Death:
    """A processor that ended. ``started_ns`` is of the wall clock."""

    slot: int
    boot_id: str
    started_ns: int
    life: Life


def split_missing(total: int, frames: dict[str, int], known: dict[str, int], directions: set[str]) -> dict[str, int]:
    """Divide missing frames over the directions, in proportion to the frames received of which the log knows nothing.

    The cells count what the rules matched, not in which direction; the sum is exact, the division an estimate.

    Args:
        total: frames missing.
        frames: whole frames received, by direction.
        known: of those, frames that the log has or already misses, by direction.
        directions: that any rule records.
    """
    weights = {direction: max(0, count - known[direction]) if direction in directions else 0 for direction, count in frames.items()}
    whole = sum(weights.values())
    requests = total * weights["request"] // whole if whole else total if "request" in directions else 0
    return {"request": requests, "response": total - requests}


class TapKeeper:
    """Holds the tap's directory from ``__init__`` to ``stop``.

    Args:
        config: with a tap.
        meters: gets the gauges ``tap.usage``, ``tap.limit`` and ``tap.consumer.unreadable``.
        log: gets a row for what was deleted unread, sealed, lost, and for errors.
        guard: is told of what nobody expected: it costs one job, never the thread. A disk that hangs is no reason to end a proxy that carries
            traffic, so liveness does not look at this thread.

    Raises:
        StartError: another instance holds the directory, or it cannot be used.
    """

    def __init__(self, config: ProxyConfig, tap: TapConfig, meters: Meters, log: RowLog, guard: Guard) -> None:
        self._guard = guard
        self._node = config.node
        self._tap = tap
        self._log = log
        # Shared with the thread as it is, never copied: a stream is added before its folder exists, so whoever lists a folder finds it here.
        self._live: set[str] = set()
        self._usage = 0
        self._errors: dict[str, str] = {}
        self._unreadable: dict[str, str] = {}
        self._deaths: dict[str, tuple[Death, dict[str, int] | None]] = {}  # not recorded yet, by stream; with what the stream lacks, once counted
        self._lock = DirectoryLock(tap.directory, "tap directory")
        self._retention = Retention(tap.directory, tap.budget, tap.max_age_ms)
        self._directions: set[str] = {direction for rule in tap.rules for direction in rule.directions}
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._jobs.put(self._seal)
        meters.gauge("tap.usage", lambda: float(self._usage))
        meters.gauge("tap.limit", lambda: float(tap.budget))
        meters.gauge("tap.consumer.unreadable", lambda: float(len(self._unreadable)))
        self._thread = threading.Thread(target=self._run, name="framegate-tap-keeper", daemon=True)
        self._thread.start()

    def born(self, slot: int, boot_id: str) -> None:
        """A processor will write this stream: it is not to be sealed, its folder is not to be removed."""
        self._live.add(stream_name(self._node, str(slot), boot_id))

    def died(self, death: Death) -> None:
        """A processor ended, in whatever way: what its stream lacks is recorded, its files are sealed."""
        self._jobs.put(lambda: self._settle(death))

    def stop(self) -> None:
        """Finish what waits, then let others have the directory."""
        self._jobs.put(None)
        self._thread.join(STOP_TIMEOUT_S)
        self._lock.release()

    def _run(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=SWEEP_INTERVAL_S)
            except queue.Empty:
                job = self._look
            try:
                (self._settle_deaths if job is None else job)()
            except (OSError, LogError) as error:
                self._complain("keeper", str(error))
            except Exception as error:
                self._guard.failed("tap_keeper", error)
            if job is None:
                return

    def _complain(self, what: str, error: str) -> None:
        """Once for each different trouble, not each second."""
        if error and error != self._errors.get(what, ""):
            self._log.write("tap_keeper_failed", level="error", directory=self._tap.directory, error=error)
        self._errors[what] = error

    def _look(self) -> None:
        """What is due each second."""
        if self._deaths:
            self._settle_deaths()
        if self._errors.get("seal"):
            self._seal()
        self._sweep()
        self._complain("keeper", "")

    def _sweep(self) -> None:
        sweep = self._retention.sweep(time.time_ns(), self._live)
        self._usage = sweep.usage
        if sweep.deleted:
            level = "warning" if sweep.unread else "info"
            self._log.write("tap_deleted", level=level, segments=sweep.deleted, bytes=sweep.deleted_bytes, unread=sweep.unread)
        for name, error in sweep.unreadable.items():
            if self._unreadable.get(name) != error:
                self._log.write("tap_consumer_unreadable", level="error", directory=self._tap.directory, consumer=name, error=error)
        for name in self._unreadable.keys() - sweep.unreadable.keys():
            self._log.write("tap_consumer_readable", directory=self._tap.directory, consumer=name)
        self._unreadable = sweep.unreadable
        self._complain("sweep", sweep.error)

    def _seal(self) -> None:
        error = ""
        for sealed in seal_dead(self._tap.directory, self._live):
            if sealed.error:
                error = f"{sealed.stream}: {sealed.error}"
            else:
                self._log.write("tap_sealed", stream=sealed.stream, base=sealed.base, cut_bytes=sealed.cut_bytes)
        self._complain("seal", error)

    def _settle(self, death: Death) -> None:
        self._deaths[stream_name(self._node, str(death.slot), death.boot_id)] = (death, None)
        self._settle_deaths()
        self._seal()

    def _settle_deaths(self) -> None:
        """Record what the streams of the dead lack; what a full disk does not take waits for the next time."""
        error = ""
        for stream, (death, known) in list(self._deaths.items()):
            try:
                missing = self._missing(stream, death) if known is None else known
                self._deaths[stream] = (death, missing)  # counted once: retention may take some of the stream while the record waits
                self._record(stream, death, missing)
                del self._deaths[stream]
            except (OSError, LogError) as problem:
                error = f"what {stream} lacks is not recorded yet: {problem}"
            except Exception as problem:  # our bug; it may not keep the others from being recorded
                error = f"what {stream} lacks is not recorded yet: {problem!r}"
                if error != self._errors.get("death"):
                    self._guard.failed("tap_keeper", problem)
            finally:
                self._live.discard(stream)
        self._complain("death", error)

    def _record(self, stream: str, death: Death, missing: dict[str, int]) -> None:
        if any(missing.values()):
            recovery = record_death(self._tap.directory, self._node, death.boot_id, missing, death.started_ns, time.time_ns())
            facts: dict[str, Any] = {"slot": death.slot, "stream": stream, "recovery": recovery, "frames": missing}
            self._log.write("tap_gap", level="warning", reason="processor_died", **facts)

    def _missing(self, stream: str, death: Death) -> dict[str, int]:
        """By the log itself when all of the stream is still there; otherwise by the cells alone, whose bound is wider."""
        known = {"request": 0, "response": 0}
        total = death.life.unproven
        if death.life.matched and os.path.isdir(os.path.join(self._tap.directory, stream)):
            try:
                if first_offset(self._tap.directory, stream) == 0:
                    totals = stream_totals(self._tap.directory, stream)
                    known = {direction: totals.stored[direction] + totals.missing[direction] for direction in known}
                    total = max(0, death.life.matched - sum(known.values()))
            except LogError as error:
                self._complain("missing", str(error))
        return split_missing(total, death.life.frames, known, self._directions)
