"""The state of a running framegate, for telemetry and probes: configuration, counters, health."""

import time
from collections.abc import Mapping
from typing import Final

from framegate.control.accept.resolver import text_of
from framegate.control.fleet.supervisor import Supervisor
from framegate.control.meters import Meters
from framegate.control.status import Attributes, BuildInfo, HandlerProcessStatus, Health, ProcessorStatus
from framegate.control.steering.drain import Drain
from framegate.control.steering.pool import Pool
from framegate.control.task_monitor import TaskMonitor
from framegate.control.version import installed_version
from framegate.proxy.cells import CellReader
from framegate.proxy.cells.metrics import LISTENER, PROBE, UPSTREAM
from framegate.proxy.config.model import ProxyConfig

ALIVE_MS: Final = 5_000


class State:
    """Event loop only, except for methods whose docstring says "any thread"."""

    def __init__(self, supervisor: Supervisor, meters: Meters, task_monitor: TaskMonitor, pool: Pool, drain: Drain) -> None:
        self._supervisor = supervisor
        self._meters = meters
        self._task_monitor = task_monitor
        self._pool = pool
        self._drain = drain
        self.started_ns = time.time_ns()  # when this process started, CLOCK_REALTIME nanoseconds
        self.serving = False  # every processor was ready and the listeners accept

    @property
    def config(self) -> ProxyConfig:
        return self._supervisor.desired.config

    @property
    def build(self) -> BuildInfo:
        """Version and whether the processors are compiled."""
        modules = next((processor.modules for processor in self._supervisor.running if processor.modules), {})
        compiled = any(file.endswith(".so") for file in modules.values())
        return BuildInfo(version=installed_version() or "0+checkout", compiled=compiled)

    @property
    def cells(self) -> list[tuple[int, CellReader]]:
        """The shared counters of every slot, by slot, after the sums of removed slots under ``RETIRED``, if there are any. The result is consistent:
        each slot is in it once. Any thread.
        """
        return self._supervisor.cells

    def measurements(self) -> Mapping[tuple[str, Attributes], float]:
        """The metrics of ``proxy.cells.METRICS`` that control measures, by name and attributes in that table's order, without empty values. Any
        thread.
        """
        health = self.health()
        probes = {"startup": health.started, "readiness": health.ready, "liveness": health.alive}
        ready: dict[tuple[str, Attributes], float] = {("framegate.ready", ((PROBE, probe),)): float(good) for probe, good in probes.items()}
        return {
            **self._meters.snapshot(),
            **ready,
            **{
                ("framegate.listener.upstream", ((LISTENER, item.name), (UPSTREAM, item.upstream))): 1.0
                for item in self.config.listeners
                if item.upstream
            },
            ("framegate.draining", ()): float(health.draining),
            ("framegate.drain.time", ()): self._drain.time_s,
        }

    def health(self) -> Health:
        """The state for probes. Any thread."""
        statuses = self._supervisor.status()
        running = [item for item in statuses if item.state in ("running", "draining")]
        handlers = self._supervisor.handlers
        handled = handlers is None or not handlers.wanted or bool(handlers.running)
        dead = [f"control's part {name!r} stands still" for name in self._task_monitor.stalled]
        dead += [f"processor {item.slot} has not moved for {item.heartbeat_age_ms} ms" for item in running if item.heartbeat_age_ms >= ALIVE_MS]
        away = [
            problem
            for problem, there in (
                ("framegate is starting", not self.serving),
                ("framegate drains", self._pool.draining),
                ("no processor runs", not running),
                ("no handler process runs", not handled),
            )
            if there
        ]
        away += [f"no endpoint of the upstream {name} passes its checks" for name in self._unreachable()]
        return Health(started=self.serving, alive=not dead, ready=not away, draining=self._pool.draining, problems=(*dead, *away))

    def _unreachable(self) -> list[str]:
        """The upstreams without which readiness ends: they have checks, and no address that passes them."""
        desired = self._supervisor.desired
        if desired.config.health is None or desired.config.health.ready_when != "upstream":
            return []
        names = [item.name for item in desired.config.upstreams if item.check is not None]
        return [name for name in names if desired.failing.get(name, {}).keys() >= {text_of(each) for each in desired.addresses(name)}]

    def processor_statuses(self) -> list[ProcessorStatus]:
        return self._supervisor.status()

    def handler_processes(self) -> list[HandlerProcessStatus]:
        """Every slot of a handler process; none if no listener has a handler. Any thread."""
        return [] if self._supervisor.handlers is None else self._supervisor.handlers.status()
