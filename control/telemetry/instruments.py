"""Observable instruments: of every counter and gauge of ``framegate.proxy.cells.METRICS``, over the fold; of our processes, over /proc.

Values of processes carry ``framegate.process``: ``control``, ``processor-SLOT`` or ``handler-SLOT``; their sum is that of the whole framegate.
"""

import gc
import os
import resource
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from framegate.control.steering.state import State
from framegate.control.telemetry.fold import LARGEST, REPLACED, Fold
from framegate.proxy.cells import METRICS, Metric
from framegate.proxy.cells.standard_metrics import GENERATION, MODE, PROCESS, PROCESS_METRICS

if TYPE_CHECKING:  # the values are read also where OpenTelemetry is not loaded
    from opentelemetry.metrics import CallbackOptions, Meter, Observation

_Callback = Callable[["CallbackOptions"], Iterable["Observation"]]
_Values = Iterator[tuple[dict[str, str], float]]

_PLAIN_GAUGES: Final = LARGEST | {
    "framegate.config.revision",
    "framegate.drain.time",
    "framegate.ready",
    "framegate.tap.disk.time_left",
    "framegate.tap.lag.time",
    "framegate.tls.certificate.not_after",
    "framegate.tls.certificate.not_before",
    "process.uptime",
}  # Gauges whose sum over attributes means nothing; the others are up-down counters
_CONTROL: Final = "control"
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_UTIME, _STIME, _START, _RSS = 11, 12, 19, 21  # Positions in /proc/PID/stat after the name of the command


def observe_fold(meter: "Meter", fold: Fold) -> None:
    """Create the instruments of every metric of ``framegate.proxy.cells.METRICS``, except those that ``otlp_reader`` adds: histograms, and gauges of
    clients, because the SDK would keep the attributes of each client for ever.
    """
    for metric in METRICS:
        if not metric.name.startswith(REPLACED):
            _create(meter, metric, _callback(fold, metric))


def _create(meter: "Meter", metric: Metric, callback: _Callback) -> None:
    if metric.kind == "counter":
        meter.create_observable_counter(metric.name, [callback], metric.unit, metric.description)
    elif metric.kind == "gauge" and metric.name in _PLAIN_GAUGES:
        meter.create_observable_gauge(metric.name, [callback], metric.unit, metric.description)
    elif metric.kind == "gauge":
        meter.create_observable_up_down_counter(metric.name, [callback], metric.unit, metric.description)


def _callback(fold: Fold, metric: Metric) -> _Callback:
    from opentelemetry.metrics import Observation

    def read(options: "CallbackOptions") -> Iterable["Observation"]:
        return [Observation(value, dict(at)) for at, value in fold.now().points.get(metric.name, {}).items()]

    return read


def observe_processes(meter: "Meter", processes: "ProcessMetrics") -> None:
    """Create the instruments of our processes."""
    from opentelemetry.metrics import Observation

    for metric in PROCESS_METRICS:
        _create(meter, metric, lambda options, name=metric.name: [Observation(value, at) for at, value in processes.read(name)])  # type: ignore[misc]


class ProcessMetrics:
    """Reads /proc on demand. A process that replaces another one in its slot continues that one's processor time. Any thread."""

    def __init__(self, plane: State) -> None:
        self._plane = plane
        self._spent: dict[tuple[str, str], tuple[int, float, float]] = {}
        """By process and what is counted: the pid seen last, its time, and the time of the processes before it."""

    def read(self, name: str) -> list[tuple[dict[str, str], float]]:
        """The values of one of ``PROCESS_METRICS``, each with its attributes; a process that has just ended is left out."""
        read: dict[str, Callable[[str, int], _Values]] = {
            "process.cpu.time": self._cpu,
            "process.memory.usage": _memory,
            "process.unix.file_descriptor.count": _descriptors,
            "framegate.process.file_descriptor.limit": _descriptor_limit,
            "framegate.process.run_delay": self._run_delay,
            "process.uptime": _uptime,
            "cpython.gc.collections": _collections,
        }
        values = []
        for label, pid in self._processes():
            try:
                values.extend([({PROCESS: label, **attributes}, value) for attributes, value in read[name](label, pid)])
            except OSError:  # it has ended; of one that its parent has not looked at yet, only root may list the descriptors
                continue
        return values

    def _processes(self) -> Iterator[tuple[str, int]]:
        yield _CONTROL, os.getpid()
        yield from ((f"processor-{slot}", reader.pid) for slot, reader in self._plane.cells if reader.pid)
        yield from ((f"handler-{process.slot}", process.pid) for process in self._plane.handler_processes() if process.pid)

    def _cpu(self, label: str, pid: int) -> _Values:
        fields = _stat(pid)
        for mode, position in (("user", _UTIME), ("system", _STIME)):
            yield {MODE: mode}, self._going_on(label, mode, pid, int(fields[position]) / _TICKS)

    def _run_delay(self, label: str, pid: int) -> _Values:
        with open(f"/proc/{pid}/schedstat", "rb") as file:
            yield {}, self._going_on(label, "delay", pid, int(file.read().split()[1]) / 1e9)

    def _going_on(self, label: str, what: str, pid: int, now: float) -> float:
        """A total of a process, with that of the processes before it."""
        last_pid, last, base = self._spent.get((label, what), (pid, now, 0.0))
        if last_pid != pid:
            base += last
        self._spent[label, what] = (pid, now, base)
        return base + now


def _stat(pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat after the command's name, which may have spaces and brackets itself."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()


def _memory(label: str, pid: int) -> _Values:
    yield {}, int(_stat(pid)[_RSS]) * _PAGE


def _descriptors(label: str, pid: int) -> _Values:
    yield {}, len(os.listdir(f"/proc/{pid}/fd"))


def _descriptor_limit(label: str, pid: int) -> _Values:
    yield {}, resource.prlimit(pid, resource.RLIMIT_NOFILE)[0]


def _uptime(label: str, pid: int) -> _Values:
    yield {}, max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - int(_stat(pid)[_START]) / _TICKS)


def _collections(label: str, pid: int) -> _Values:
    for generation, counts in enumerate(gc.get_stats() if label == _CONTROL else ()):
        yield {GENERATION: str(generation)}, counts["collections"]
