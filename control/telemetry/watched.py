"""The values of metrics for the watch for problems, which goes on also where no metrics are exported and OpenTelemetry is not loaded; and what the
container gives and withholds: CPU time, memory, and the pressure on both; and, without a container, the machine.
"""

import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from framegate.control.configuration import cgroup
from framegate.control.status import Attributes
from framegate.control.steering.state import State
from framegate.control.telemetry.fold import Fold, Folded, Source
from framegate.control.telemetry.instruments import ProcessMetrics
from framegate.proxy.cells.metrics import CERTIFICATE, PRESSURE, PRESSURES, RESOURCE, RESOURCES

_OF_PROCESSES: Final = (
    "process.memory.usage", "framegate.process.run_delay", "process.unix.file_descriptor.count", "framegate.process.file_descriptor.limit"
)  # fmt: skip
_PREFIX: Final = "framegate."


class Container:
    """Reads the cgroup on demand. Any thread. ``processes``: returns the resident memory of framegate's processes in bytes, for a machine without a
    limit. ``machine``: the folder with the pressure on the machine, where the cgroup does not say.
    """

    def __init__(
        self,
        processes: Callable[[], float],
        root: pathlib.Path = pathlib.Path("/sys/fs/cgroup"),
        own: pathlib.Path = pathlib.Path("/proc/self/cgroup"),
        machine: pathlib.Path = pathlib.Path("/proc/pressure"),
    ) -> None:
        self._processes = processes
        self._root = root
        self._own = own
        self._machine = machine

    def measurements(self) -> Mapping[tuple[str, Attributes], float]:
        """As ``State.measurements``; what is not known, or not limited, is absent."""
        found: dict[tuple[str, Attributes], float | None] = {}
        limit, usage = cgroup.memory_limit(self._root, self._own), cgroup.memory_usage(self._root, self._own)
        if limit is None or usage is None:
            limit, usage = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), int(self._processes())
        found["memory.limit", ()], found["memory.usage", ()] = limit, usage
        found["container.memory.kills", ()] = cgroup.killed_for_memory(self._root, self._own)
        found["container.cpu.limit", ()] = quota = cgroup.cpu_quota(self._root, self._own)
        throttling = None if quota is None else cgroup.throttling(self._root, self._own)
        if throttling is not None:
            found["container.cpu.periods", ()] = throttling.periods
            found["container.cpu.throttled.periods", ()] = throttling.throttled
            found["container.cpu.throttled.time", ()] = throttling.seconds
        for resource in RESOURCES:
            waited = cgroup.pressure(resource, self._root, self._own, self._machine)
            for kind in PRESSURES:
                found["container.pressure.time", ((RESOURCE, resource), (PRESSURE, kind))] = waited.get(kind)
        return {(_PREFIX + name, at): float(value) for (name, at), value in found.items() if value is not None}


def sources_of(processes: ProcessMetrics, validity: Mapping[str, tuple[float, float]]) -> list[Source]:
    """Values besides those of ``State``: of the container, and from when to when each certificate is valid, by its use; ``validity`` changes."""
    container = Container(lambda: sum(value for _, value in processes.read("process.memory.usage")))

    def certificates() -> Mapping[tuple[str, Attributes], float]:
        return {
            (f"framegate.tls.certificate.{name}", ((CERTIFICATE, use),)): time_s
            for use, times in list(validity.items())
            for name, time_s in zip(("not_before", "not_after"), times, strict=True)
        }

    return [certificates, container.measurements]


def watched(plane: State, validity: Mapping[str, tuple[float, float]], more: Sequence[Source] = ()) -> Callable[[], Folded]:
    """Returns what reads all values now, in any thread. ``more``: further sources."""
    processes = ProcessMetrics(plane)

    def of_processes() -> Mapping[tuple[str, Attributes], float]:
        return {(name, tuple(at.items())): value for name in _OF_PROCESSES for at, value in processes.read(name)}

    return Fold(plane, [*sources_of(processes, validity), of_processes, *more]).end
