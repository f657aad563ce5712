"""What the container gives and withholds: CPU time, memory, and the pressure on both; and, without a container, the machine."""

import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Final

from framegate.control.configuration import cgroup
from framegate.control.status import Attributes
from framegate.proxy.cells.metrics import PRESSURE, PRESSURES, RESOURCE, RESOURCES

_Measured = Mapping[tuple[str, Attributes], float]
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

    def measurements(self) -> _Measured:
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
