"""Manages the tap's directory in the control process: the lock, the ledger, the budget, and the settlement of processors that ended.

One thread here does all work on the file system: a sweep each second, and the settlement after the end of a processor. A disk that hangs blocks only
this thread. The only thing that others wait for is the ledger's line about a stream before its processor starts; if the disk does not take the line
within ``BORN_TIMEOUT_S``, the processor starts all the same.

Streams of earlier runs are sealed and settled when the last of their processors has ended. Such processors can outlive a control process that was
killed, for long when they are stopped, and write when they continue; until then their streams are left alone.
"""

import bisect
import contextlib
import dataclasses
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from framegate.control.configuration.units import format_size
from framegate.control.errors import StartError
from framegate.control.fleet.slot_cells import ProcessorTotals
from framegate.control.logs import RowLog
from framegate.control.meters import Meters
from framegate.control.tap.directory_lock import DirectoryLock
from framegate.control.tap.filling import Filling
from framegate.control.tap.reserve import Reserve
from framegate.control.tap.segment_watch import SegmentTold, SegmentWatch
from framegate.control.tap.settlement import Case, Settlement
from framegate.control.task_monitor import TaskMonitor
from framegate.proxy.config.model import ProxyConfig, TapConfig, TapRule
from framegate.proxy.tap.consumer import Lag, Lags, prepare_consumer
from framegate.proxy.tap.ledger import Pair, is_recovery
from framegate.proxy.tap.ledger_writer import LedgerWriter
from framegate.proxy.tap.log_reader import LogError, Segment, segments, streams, walk_segment
from framegate.proxy.tap.record import DIRECTIONS, stream_name
from framegate.proxy.tap.recovery import ends_finally, seal_dead, seal_stream
from framegate.proxy.tap.retention import Retention
from framegate.proxy.tap.shipper import CONSUMER
from framegate.proxy.tap.sums import segment_times

SWEEP_INTERVAL_S: Final = 1.0
STOP_TIMEOUT_S: Final = 5.0
LAST_TRIES_S: Final = 4.0  # how long settlements are tried again at the end
LAST_PAUSE_S: Final = 0.05
BORN_TIMEOUT_S: Final = 0.5
OUTLIVED_NS: Final = 7_000_000_000
"""Processors may live this long after control's last heartbeat: it is a second old at most, and they end 5 s after the link."""
Job = Callable[[], None]


@dataclasses.dataclass(frozen=True, slots=True)
class ProcessorExit:
    """A processor that ended, in order or not. ``started_ns``: wall clock."""

    slot: int
    boot_id: str
    started_ns: int
    life: ProcessorTotals


class _Deletion(NamedTuple):
    """The arguments of ``LedgerWriter.deleted`` for a stream."""

    to: int
    from_ns: int
    until_ns: int


def tapped_pairs(listeners: Iterable[str], rules: Iterable[TapRule]) -> list[Pair]:
    """The listeners and directions that any rule can match."""
    rules = tuple(rules)
    return [
        (listener, direction)
        for listener in listeners
        for direction in DIRECTIONS
        if any((not rule.listeners or listener in rule.listeners) and direction in rule.directions for rule in rules)
    ]


class TapKeeper:
    """Holds the tap's directory from ``__init__`` to ``stop``.

    Args:
        meters: gets the gauges ``tap.disk.…``, ``tap.usage``, ``tap.limit``, ``tap.consumer.unreadable``, ``tap.lag`` and ``tap.lag.time``.
        log: gets a row for what was deleted unread, sealed, lost, and for errors.
        task_monitor: gets unexpected exceptions; each costs one job, never the thread. Liveness does not depend on this thread: a disk that hangs is
            no reason to end a proxy that carries traffic.
        on_segment: is called in that thread for segments that begin and end (``SegmentWatch``); None: nothing is watched.

    Raises StartError: another instance holds the directory, or it cannot be used.
    """

    def __init__(
        self, config: ProxyConfig, tap: TapConfig, meters: Meters, log: RowLog, task_monitor: TaskMonitor, on_segment: SegmentTold | None = None
    ) -> None:
        self._task_monitor = task_monitor
        self._node = config.node
        self._tap = tap
        self._log = log
        self._listeners = [listener.name for listener in config.listeners]
        self._tapped = tapped_pairs(self._listeners, tap.rules)
        # Shared with the thread, never copied: a stream is added before its folder exists, so every listed folder is found here.
        self._live: set[str] = set()
        self._wanted: dict[str, list[Pair]] = {}  # for the ledger, of streams that are being written
        self._births = threading.Lock()
        self._deleted: dict[str, _Deletion] = {}  # for the ledger, of deleted segments
        self._usage = 0
        self._disk: tuple[int, int] | None = None
        """Free bytes and all bytes of the disk."""
        self._filling = Filling(tap.budget)
        self._full_in_s: float | None = None
        self._adopted = False  # only processors of this control process write here
        self._orphaned: set[str] = set()  # of ``_live``: streams that processors of earlier runs may write
        self._errors: dict[str, str] = {}
        self.disk_low = ""
        """Why the tap's disk is nearly full, in words; empty while it is not."""
        self._unreadable: dict[str, str] = {}
        self._lags = Lags()
        self._lagging: dict[str, Lag] = {}
        self._lock = DirectoryLock(tap.directory, "tap directory")
        try:
            self._ledger = LedgerWriter(tap.directory, self._lock.noted)
        except OSError as error:
            self._lock.release()
            text = f"the tap directory {tap.directory} cannot be used: its ledger: {error.strerror or error}"
            raise StartError(text, reason="DIRECTORY_UNUSABLE", directory=tap.directory) from error
        if tap.ship is not None:
            with contextlib.suppress(OSError):  # the shipper meets the same error, and reports it
                prepare_consumer(tap.directory, CONSUMER, time.time_ns())
        self._reserve = Reserve(tap.directory)
        self._settlement = Settlement(tap.directory, self._ledger, self._reserve, log)
        self._watch = None if on_segment is None else SegmentWatch(on_segment, lambda error: self._complain("segments", error))
        look = {} if self._watch is None else {"on_listed": self._watch.look}
        keep_for = CONSUMER if tap.ship is not None and tap.ship.keep == "shipped" else ""
        self._retention = Retention(tap.directory, tap.budget, tap.max_age_ms, self._deleting, keep_for=keep_for, **look)
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._jobs.put(self._begin)
        if self._ledger.loss:
            log.write("tap_ledger_lost", level="error", directory=tap.directory, error=self._ledger.loss)
        if self._lock.unguarded:
            log.write("tap_orphans_unknown", level="warning", directory=tap.directory, error=self._lock.unguarded)
        meters.gauge("tap.disk.free", lambda: None if self._disk is None else self._disk[0])
        meters.gauge("tap.disk.size", lambda: None if self._disk is None else self._disk[1])
        meters.gauge("tap.disk.time_left", lambda: self._full_in_s)
        meters.gauge("tap.usage", lambda: float(self._usage))
        meters.gauge("tap.limit", lambda: float(tap.budget))
        meters.gauge("tap.consumer.unreadable", lambda: float(len(self._unreadable)))
        meters.gauges("tap.lag", lambda: {(name,): float(lag.unread) for name, lag in self._lagging.items()})
        meters.gauges("tap.lag.time", self._lag_times)
        self._thread = threading.Thread(target=self._run, name="framegate-tap-keeper", daemon=True)
        self._thread.start()

    @property
    def writers(self) -> int:
        """A descriptor for every processor to inherit: while one has it, the next control process does not settle the streams."""
        return self._lock.writers

    # --- events of processors: any thread ----------------------------------------------------------------------------------------

    def born(self, slot: int, boot_id: str) -> None:
        """A processor will write this stream: it is not sealed, its folder is not removed, and the ledger gets a line."""
        stream = stream_name(self._node, str(slot), boot_id)
        self._live.add(stream)
        self._wanted[stream] = self._tapped
        self._report_ledger()

    def tapped(self, rules: Sequence[TapRule]) -> None:
        """Other rules come into force: the ledger gets the pairs that they can match."""
        self._tapped = tapped_pairs(self._listeners, rules)
        for stream, pairs in list(self._wanted.items()):
            self._wanted[stream] = list(dict.fromkeys([*pairs, *self._tapped]))
        self._report_ledger()

    def _report_ledger(self) -> None:
        """Write to the ledger in a thread, and wait for it for ``BORN_TIMEOUT_S``."""
        writing = threading.Thread(target=self._write_births, name="framegate-tap-born", daemon=True)
        writing.start()
        writing.join(BORN_TIMEOUT_S)

    def died(self, death: ProcessorExit) -> None:
        """A processor ended in any way: its files are sealed, and its stream is settled."""
        ended_ns = time.time_ns()
        stream = stream_name(self._node, str(death.slot), death.boot_id)
        self._jobs.put(lambda: self._settle(Case(stream, death.started_ns, ended_ns, self._tapped, death.life)))

    def stop(self) -> None:
        """Finish the jobs, report what could not be finished, and release the directory."""
        self._jobs.put(self._adopt)
        self._jobs.put(None)
        self._thread.join(STOP_TIMEOUT_S)
        self._settlement.give_up(self._errors.get("settlement") or "the disk did not answer in time")
        if not self._thread.is_alive():
            self._ledger.close()
        self._lock.release()

    # --- the thread --------------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=SWEEP_INTERVAL_S)
            except queue.Empty:
                job = self._look
            try:
                self._lock.heartbeat(self._ledger.last)
                (self._finish if job is None else job)()
            except (OSError, LogError) as error:
                self._complain("keeper", str(error))
            except Exception as error:
                self._task_monitor.failed("tap_keeper", error)
            if job is None:
                return

    def _complain(self, what: str, error: str) -> None:
        """Log an error when it differs from the last one about this."""
        if error and error != self._errors.get(what, ""):
            self._log.write("tap_keeper_failed", level="error", directory=self._tap.directory, error=error)
        self._errors[what] = error

    def _look(self) -> None:
        """Do what is due each second."""
        self._write_births()
        self._settle_all(last=False)
        if self._errors.get("seal"):
            self._seal()
        self._adopt()
        self._sweep()
        self._carry_sealed()
        self._look_at_disk()
        self._take_reserve()
        if self._ledger.large:
            self._ledger.compact(self._retention.consumers, time.time_ns())
        self._complain("keeper", "")

    def _finish(self) -> None:
        """Settle what is left."""
        until = time.monotonic() + LAST_TRIES_S
        self._settle_all(last=True)
        while self._settlement.cases and time.monotonic() < until:
            time.sleep(LAST_PAUSE_S)
            self._settle_all(last=True)
        self._look_at_segments()
        self._lock.heartbeat(self._ledger.last)

    def _look_at_segments(self) -> None:
        """Watch segments without a sweep."""
        if self._watch is not None:
            self._watch.look({stream: segments(self._tap.directory, stream) for stream in streams(self._tap.directory)})

    def _look_at_disk(self) -> None:
        """Warn while the disk has less room than the log's next segment may need; a log at its budget needs none."""
        room = os.statvfs(self._tap.directory)
        self._disk = room.f_bavail * room.f_frsize, room.f_blocks * room.f_frsize
        self._full_in_s = self._filling.see(time.monotonic(), self._disk[0], self._usage)
        free, need = room.f_bavail * room.f_frsize, max(0, min(self._tap.segment_size, self._tap.budget - self._usage))
        if free < need and not self.disk_low:
            self._log.write("tap_disk_low", level="warning", directory=self._tap.directory, free=free, needed=need)
        elif free >= need and self.disk_low:
            self._log.write("tap_disk_enough", directory=self._tap.directory, free=free)
        small = f"the tap's disk ({self._tap.directory}) has {format_size(free)} left, the log's next segment may need {format_size(need)}"
        self.disk_low = small if free < need else ""

    def _take_reserve(self) -> None:
        try:
            self._reserve.take()
        except OSError as error:
            if not self._errors.get("reserve"):
                self._log.write("tap_reserve_missing", level="warning", directory=self._tap.directory, error=str(error))
            self._errors["reserve"] = str(error)
        else:
            self._errors["reserve"] = ""

    # --- the ledger --------------------------------------------------------------------------------------------------------------

    def _write_births(self) -> None:
        """Write missing lines about streams that are being written. Also called in a thread of its own."""
        error = ""
        with self._births:
            try:
                if self._ledger.loss:
                    self._ledger.lost(time.time_ns())
            except OSError as problem:
                self._complain("born", f"the ledger does not say what is gone of it: {problem}")
                return
            for stream, tapped in list(self._wanted.items()):
                known = self._ledger.ledger.streams.get(stream)
                try:
                    if known is None:
                        self._ledger.born(stream, tapped, time.time_ns())
                    elif not set(tapped) <= set(known.tapped):
                        self._ledger.tapped(stream, tapped, time.time_ns())
                except OSError as problem:
                    error = f"the ledger does not say what {stream} is: {problem}"
            self._complain("born", error)

    def _deleting(self, doomed: Sequence[Segment]) -> None:
        """Before retention deletes segments: write that to the ledger, and add up segments of streams that are not settled. Without room for a line
        the segments are deleted all the same, which makes room.
        """
        known = self._ledger.ledger.streams
        for segment in doomed:
            stream_record = known.get(segment.stream)
            if stream_record is None or not stream_record.settled:
                self._carry(segment)
            try:
                from_ns, until_ns = segment_times(segment)
            except (OSError, LogError):  # it is deleted all the same; more windows than necessary count as cut
                from_ns, until_ns = 0, time.time_ns()
            waiting = self._deleted.get(segment.stream, _Deletion(0, from_ns, 0))
            self._deleted[segment.stream] = _Deletion(max(waiting.to, segment.limit), min(waiting.from_ns, from_ns), max(waiting.until_ns, until_ns))
        self._write_deleted()

    def _carry_sealed(self) -> None:
        """Add up segments sealed since the last time, so that little is left to read when a stream ends."""
        for stream in self._live - self._orphaned:
            listed = self._retention.left.get(stream, ())
            known = bisect.bisect_right(listed, self._settlement.carry(stream).end, key=lambda segment: segment.limit)
            for segment in listed[known:]:
                if segment.sealed:
                    self._carry(segment)

    def _carry(self, segment: Segment) -> None:
        case = self._settlement.cases.get(segment.stream)
        if case is not None and case.entries is not None:
            return
        sums = self._settlement.carry(segment.stream)
        try:
            for ref in walk_segment(segment, max(segment.base, sums.end)):
                sums.add(ref)
        except LogError as error:
            self._complain("carry", str(error))
        sums.compact()

    def _write_deleted(self) -> None:
        known = self._ledger.ledger.streams
        try:
            for stream, deletion in list(self._deleted.items()):
                if stream in known:
                    self._ledger.deleted(stream, deletion.to, time.time_ns(), deletion.from_ns, deletion.until_ns)
                    del self._deleted[stream]
        except OSError as error:
            self._complain("deleted", f"the ledger does not say what was deleted: {error}")
        else:
            self._complain("deleted", "")

    # --- sweeping and sealing ----------------------------------------------------------------------------------------------------

    def _sweep(self) -> None:
        sweep = self._retention.sweep(time.time_ns(), self._live)
        if self._deleted:
            self._write_deleted()
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
        self._lagging = self._lags.measure(self._retention.left, self._retention.consumers)
        self._complain("sweep", sweep.error)

    def _lag_times(self) -> dict[tuple[str, ...], float]:
        now_ns = time.time_ns()
        return {(name,): max(0, now_ns - lag.since_ns) / 1e9 if lag.since_ns else 0.0 for name, lag in self._lagging.items()}

    def _seal(self, ended: Iterable[str] | None = None) -> None:
        """Seal open segments of these streams; None: of all streams that have ended."""
        error = ""
        now_ns = time.time_ns()
        if ended is None and self._adopted:
            found = seal_dead(self._tap.directory, self._live, now_ns)
        else:
            names = self._settlement.cases if ended is None else ended
            found = [sealed for stream in names for sealed in seal_stream(self._tap.directory, stream, now_ns)]
        for sealed in found:
            if sealed.error:
                error = f"{sealed.stream}: {sealed.error}"
            else:
                self._log.write("tap_sealed", stream=sealed.stream, base=sealed.base, cut_bytes=sealed.cut_bytes)
        self._complain("seal", error)

    # --- streams of earlier runs, settlement -------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._look_at_segments()  # before open segments of earlier runs are sealed, which ends them
        self._write_births()
        self._take_reserve()
        self._adopt()

    def _adopt(self) -> None:
        """Once the processors of earlier runs have ended: seal their streams, put them into the ledger, and settle them as far as possible."""
        if self._adopted:
            return
        if self._others_write():
            self._spare()
            return
        self._live.difference_update(self._orphaned)
        known = self._ledger.ledger.streams
        left = self._left()
        strange = [stream for stream in left if stream not in known]
        left_open = {stream for stream in strange if any(not segment.sealed for segment in segments(self._tap.directory, stream))}
        self._adopted = True
        if self._orphaned:
            self._log.write("tap_orphans_gone", directory=self._tap.directory, streams=sorted(self._orphaned))
        self._seal()
        ended_ns = self._outlived()
        for stream in left:
            stream_record = known.get(stream)
            if stream_record is not None and not stream_record.recovery:
                self._settlement.open(Case(stream, stream_record.born_ns, ended_ns, stream_record.tapped, None))
            elif stream in left_open and not ends_finally(self._tap.directory, stream):
                self._settlement.open(Case(stream, 0, ended_ns, [], None))
        self._note_strange(stream for stream in strange if stream not in left_open)
        for stream in left:
            if stream not in known:
                self._ledger.adopted(stream, self._settlement.end(stream), time.time_ns())
            elif known[stream].recovery:
                self._ledger.ended(stream, self._settlement.end(stream), time.time_ns(), settled=True)
        self._settle_all(last=False)

    def _note_strange(self, sealed: Iterable[str]) -> None:
        """The ledger does not know streams that are sealed: its lines are lost, or they are of another log. That stays a fault."""
        for stream in sealed:
            if not is_recovery(stream) and segments(self._tap.directory, stream) and not self._ledger.ledger.lost:
                self._ledger.found_strange(stream, time.time_ns())
                self._log.write("tap_ledger_lost", level="error", directory=self._tap.directory, error=self._ledger.ledger.lost)

    def _others_write(self) -> bool:
        """Whether processors of earlier runs may live."""
        try:
            found = self._lock.others_write()
        except OSError as error:
            self._complain("orphans", f"nobody knows whether processors of earlier runs live: {error}")
            return True
        self._complain("orphans", "")
        return found

    def _left(self) -> list[str]:
        """Streams of earlier runs that are not settled, or that the ledger does not know."""
        known, cases = self._ledger.ledger.streams, self._settlement.cases
        listed = dict.fromkeys([*known, *streams(self._tap.directory)])
        done = {stream for stream, stream_record in known.items() if stream_record.settled} | cases.keys()
        return [stream for stream in listed if stream not in self._live and stream not in done]

    def _spare(self) -> None:
        """Neither seal nor settle streams that processors of earlier runs may write, and keep their folders."""
        left = self._left()
        self._live.update(left)
        self._orphaned.update(left)
        if left:
            self._log.write("tap_orphans", level="warning", directory=self._tap.directory, streams=sorted(left))

    def _outlived(self) -> int:
        """The latest end of processors of earlier runs: now if they outlived the start of this one, otherwise from control's last heartbeat."""
        return time.time_ns() if self._orphaned else min(self._lock.last_ns + OUTLIVED_NS, time.time_ns())

    def _settle(self, case: Case) -> None:
        self._live.discard(case.stream)
        self._settlement.open(case)
        self._seal([case.stream])
        self._write_births()
        self._wanted.pop(case.stream, None)
        self._settle_all(last=False)

    def _settle_all(self, *, last: bool) -> None:
        """Settle the streams that ended; what fails is tried again next time."""
        error = ""
        for stream, case in list(self._settlement.cases.items()):
            try:
                self._complain("missing", self._settlement.work(case, time.time_ns(), last=last))
            except (OSError, LogError) as problem:
                error = f"what {stream} lacks is not recorded yet: {problem}"
            except Exception as problem:  # an internal error must not prevent the other settlements
                error = f"what {stream} lacks is not recorded yet: {problem!r}"
                if error != self._errors.get("settlement"):
                    self._task_monitor.failed("tap_keeper", problem)
        self._complain("settlement", error)
