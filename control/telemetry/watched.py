"""The values of metrics for the watch for problems, which goes on also where no metrics are exported and OpenTelemetry is not loaded."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from framegate.control.status import Attributes
from framegate.control.steering.state import State
from framegate.control.telemetry.container import Container
from framegate.control.telemetry.fold import Fold, Folded, Source
from framegate.control.telemetry.instruments import ProcessMetrics
from framegate.proxy.cells.metrics import CERTIFICATE

_OF_PROCESSES: Final = (
    "process.memory.usage", "framegate.process.run_delay", "process.unix.file_descriptor.count", "framegate.process.file_descriptor.limit"
)  # fmt: skip


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
