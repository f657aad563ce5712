"""CPU, memory, descriptors and age of the control process, of each processor and of each handler process, out of /proc; and what the
collector of garbage did in the control process.

Each value carries ``framegate.process``: ``control``, or ``processor-`` or ``handler-`` and the slot; the sum over it is framegate's.
"""

import gc
import os
import time
from collections.abc import Callable, Iterable
from typing import Final

from framegate.control.steering.state import State
from framegate.proxy.cells.standard_metrics import GENERATION, MODE, PROCESS

__all__ = ["ProcessMetrics"]


CONTROL: Final = "control"
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_UTIME, _STIME, _START, _RSS = 11, 12, 19, 21
"""Positions in /proc/PID/stat behind the name of the command."""

Values = list[tuple[dict[str, str], float]]


class ProcessMetrics:
    """Reads /proc when asked. A process that is started anew in its slot goes on counting where its predecessor ended. Any thread."""

    def __init__(self, plane: State) -> None:
        self._plane = plane
        self._spent: dict[tuple[str, str], tuple[int, float, float]] = {}
        """By process and mode: the pid seen last, its time, and the time of those before it."""

    def read(self, name: str) -> Values:
        """The values of one of ``framegate.proxy.cells.metrics.PROCESS_METRICS``; a process that just ended is left out."""
        reader: dict[str, Callable[[str, int], Iterable[tuple[dict[str, str], float]]]] = {
            "process.cpu.time": self._cpu,
            "process.memory.usage": _memory,
            "process.unix.file_descriptor.count": _descriptors,
            "process.uptime": _uptime,
            "cpython.gc.collections": _collections,
        }
        values: Values = []
        for label, pid in self._processes():
            try:
                values.extend(({PROCESS: label, **attributes}, value) for attributes, value in reader[name](label, pid))
            except (FileNotFoundError, ProcessLookupError):
                continue
        return values

    def _processes(self) -> Iterable[tuple[str, int]]:
        yield CONTROL, os.getpid()
        for slot, reader in self._plane.cells:
            if reader.pid:
                yield f"processor-{slot}", reader.pid
        for process in self._plane.handler_processes():
            if process.pid:
                yield f"handler-{process.slot}", process.pid

    def _cpu(self, label: str, pid: int) -> Iterable[tuple[dict[str, str], float]]:
        fields = _stat(pid)
        for mode, position in (("user", _UTIME), ("system", _STIME)):
            now = int(fields[position]) / _TICKS
            last_pid, last, base = self._spent.get((label, mode), (pid, now, 0.0))
            if last_pid != pid:
                base += last
            self._spent[label, mode] = (pid, now, base)
            yield {MODE: mode}, base + now


def _stat(pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat behind the command's name, which may itself hold spaces and brackets."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()


def _memory(label: str, pid: int) -> Iterable[tuple[dict[str, str], float]]:
    yield {}, int(_stat(pid)[_RSS]) * _PAGE


def _descriptors(label: str, pid: int) -> Iterable[tuple[dict[str, str], float]]:
    yield {}, len(os.listdir(f"/proc/{pid}/fd"))


def _uptime(label: str, pid: int) -> Iterable[tuple[dict[str, str], float]]:
    yield {}, max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - int(_stat(pid)[_START]) / _TICKS)


def _collections(label: str, pid: int) -> Iterable[tuple[dict[str, str], float]]:
    for generation, counts in enumerate(gc.get_stats() if label == CONTROL else ()):
        yield {GENERATION: str(generation)}, counts["collections"]
