"""The number of processors and the memory pool follow the container, since a pod may be resized while it runs (``cgroup``, ``capacity.fitted``).

Only values that the configuration leaves to the container (0) follow, until an operator sets them. A new size is used when two looks in a row found
it, so that a value that flaps changes nothing. A size that cannot be read any more is not a new size. The changes are those of ``Pool``.
"""

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any, Final

from framegate.control.configuration.capacity import fitted, memory_warning
from framegate.control.configuration.cgroup import Container, container
from framegate.control.configuration.units import format_size
from framegate.control.errors import ControlError
from framegate.control.events import Bus
from framegate.control.logs import RowLog
from framegate.control.status import Origin
from framegate.control.steering.pool import Pool
from framegate.control.task_monitor import TaskMonitor
from framegate.proxy.config.model import ProxyConfig, largest_whole

LOOK_S: Final = 2.0
RETRY_LOOKS: Final = 15  # a refused change is tried again after this many looks
LIMIT_S: Final = 30.0


@dataclasses.dataclass(frozen=True, slots=True)
class Chosen:
    """What the container allowed at the start, and whether it decided the number of processors and the size of the pool."""

    container: Container
    processors: bool
    pool: bool


class Sizing:
    """Looks at the container, and changes the pool."""

    def __init__(
        self,
        pool: Pool,
        config: Callable[[], ProxyConfig],
        chosen: Chosen,
        events: Bus,
        log: RowLog,
        task_monitor: TaskMonitor,
        look: Callable[[], Container] = container,
    ) -> None:
        self._pool = pool
        self._config = config
        pool.processors_origin = "container" if chosen.processors else "configuration"
        pool.size_origin = "container" if chosen.pool else "configuration"
        self._followed = self._last = chosen.container
        self._sources = chosen.container.sources
        self._events = events
        self._log = log
        self._task_monitor = task_monitor
        self._look = look
        self._unreadable = False
        self._refusal = ""
        self._rest = 0
        self._change: asyncio.Task[None] | None = None
        self._watcher = task_monitor.repeat("sizing", self.look, LOOK_S, LIMIT_S)

    def close(self) -> None:
        """End the looks, and the call of a change in progress; ``Transactions`` completes it or takes it back."""
        self._watcher.cancel()
        if self._change is not None:
            self._change.cancel()

    def look(self) -> None:
        """Look once, and start a change if the size is a new one."""
        found = self._look()
        if found.sources < self._sources:
            self._report_unreadable(found)
            return
        self._unreadable, self._sources = False, found.sources
        twice, self._last = found == self._last, found
        self._rest = max(0, self._rest - 1)
        changing = self._change is not None and not self._change.done()  # it may take as long as a drain
        if not twice or found == self._followed or self._rest or self._pool.draining or changing:
            return
        self._change = asyncio.create_task(self._follow(found))
        self._change.add_done_callback(self._ended)

    def _report_unreadable(self, found: Container) -> None:
        if not self._unreadable:
            reason = f"{found.sources} of {self._sources} files of the cgroup can be read and understood; what was read last stays in force"
            self._log.write("container_unreadable", level="warning", reason=reason)
        self._unreadable = True

    def _ended(self, change: "asyncio.Task[None]") -> None:
        if not change.cancelled() and (error := change.exception()) is not None:
            self._rest = RETRY_LOOKS
            self._task_monitor.failed("sizing", error)

    async def _follow(self, found: Container) -> None:
        before, was = self._followed, self._config()
        refused = ""
        try:
            await self._make(self._wanted(was, found))
        except ControlError as error:
            refused = str(error)
        else:
            self._followed = found
        self._rest = RETRY_LOOKS if refused else 0
        if not refused or refused != self._refusal:
            self._report(before, found, was, refused)
        self._refusal = refused

    def _wanted(self, config: ProxyConfig, found: Container) -> ProxyConfig:
        """The configuration that fits into the container; values that do not follow stay."""
        processors = 0 if self._pool.processors_origin == "container" else config.processors
        size = 0 if self._pool.size_origin == "container" else config.memory_pool.size
        return fitted(dataclasses.replace(config, processors=processors, memory_pool=dataclasses.replace(config.memory_pool, size=size)), found)

    async def _make(self, wanted: ProxyConfig) -> None:
        """Change the size first, so that it does not wait for a drain, unless a share would then be below the largest frame."""
        now, size = self._config(), wanted.memory_pool.size
        if size // now.processors >= max(largest_whole(now)):
            await self._set_size(size)
        if wanted.processors != self._config().processors:
            await self._pool.set_processors(wanted.processors, "container")
        await self._set_size(size)

    async def _set_size(self, size: int) -> None:
        if size != self._config().memory_pool.size:
            await self._pool.set_size(size, "container")

    def _report(self, before: Container, found: Container, was: ProxyConfig, refused: str) -> None:
        now = self._config()
        warning = memory_warning(now, now.processors, found.memory)
        row = {
            "event": "container_resized",
            "cpus": {"before": before.cpus, "after": found.cpus},
            "memory": {"before": before.memory, "after": found.memory},
            "processors": _followed(was.processors, now.processors, self._pool.processors_origin),
            "memory_pool": _followed(was.memory_pool.size, now.memory_pool.size, self._pool.size_origin),
            "refused": refused or None,
            "warning": warning and f"the memory pool of {format_size(now.memory_pool.size)} {warning}",
        }
        self._events.publish(row, level="warning" if refused or warning else "info")


def _followed(before: int, after: int, origin: Origin) -> dict[str, Any]:
    return {"before": before, "after": after, "set_by": origin}
