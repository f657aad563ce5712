"""All values at one moment: the cells of every processor slot summed up, and what control counts itself."""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from control.plane import RETIRED, Attributes, ControlPlane
from proxy.cells import METRICS, CellLayout, HistogramValue, Metric, value_of

__all__ = ["LARGEST", "PER_WORKER", "WORKER", "Fold", "Folded"]

WORKER: Final = "framegate.worker"
PER_WORKER: Final = frozenset({"framegate.event_loop.time", "framegate.event_loop.lag"})
"""Metrics that mean nothing when summed over processors; they get the slot as the attribute ``framegate.worker``, those that are gone together
``retired``, so that a sum over all never goes back.
"""
LARGEST: Final = frozenset(
    {
        "framegate.frame.size.limit",
        "framegate.memory_pool.usage.max",
        "framegate.draining",
        "framegate.upstream.endpoint.count",
        "framegate.upstream.endpoint.down",
    }
)
"""Gauges of what is the same in every processor, or nearly, or is a maximum: the largest stands for all."""

_CONTROL: Final = {metric.name: metric for metric in METRICS if metric.source == "control"}
_Points = dict[Attributes, float]
_Histograms = dict[Attributes, HistogramValue]


class Folded:
    """The values of one moment: ``points`` and ``histograms``, by metric name and attributes."""

    def __init__(self) -> None:
        self.points: dict[str, _Points] = {}
        self.histograms: dict[str, _Histograms] = {}

    def add(self, metric: Metric, attributes: Attributes, value: float | HistogramValue) -> None:
        """Add the value of one processor."""
        if isinstance(value, HistogramValue):
            known = self.histograms.setdefault(metric.name, {})
            before = known.get(attributes)
            known[attributes] = value if before is None else _sum(before, value)
            return
        points = self.points.setdefault(metric.name, {})
        if metric.name in LARGEST:
            points[attributes] = max(points.get(attributes, value), value)
        else:
            points[attributes] = points.get(attributes, 0) + value


def _sum(first: HistogramValue, second: HistogramValue) -> HistogramValue:
    buckets = tuple(one + other for one, other in zip(first.buckets, second.buckets, strict=True))
    return HistogramValue(buckets, first.sum + second.sum)


class Fold:
    """Folds for one collection at a time in each thread.

    The SDK asks one callback for each instrument, all in the thread that collects; the first of them takes the moment, and ``end`` of that collection
    forgets it. So all values of one export belong together, and the cells are copied once. Any thread.
    """

    def __init__(self, plane: ControlPlane, more: Callable[[], Mapping[tuple[str, Attributes], float]] = dict) -> None:
        self._plane = plane
        self._more = more
        self._moment = threading.local()

    def now(self) -> Folded:
        """The moment of this thread's collection."""
        folded: Folded | None = getattr(self._moment, "folded", None)
        if folded is None:
            folded = self._moment.folded = self._take()
        return folded

    def end(self) -> Folded:
        """The same, and forget it."""
        folded = self.now()
        self._moment.folded = None
        return folded

    def _take(self) -> Folded:
        folded = Folded()
        slots = [(slot, reader.layout, reader.cells()) for slot, reader in self._plane.cells]
        if slots:
            self._add_cells(folded, slots)
        measured: Mapping[tuple[str, Attributes], float] = self._plane.measurements()
        for (name, attributes), value in (*measured.items(), *self._more().items()):
            folded.add(_CONTROL[name], attributes, value)
        return folded

    def _add_cells(self, folded: Folded, slots: list[tuple[int, CellLayout, tuple[int, ...]]]) -> None:
        """Add numbers up first: what they mean is looked up once then, and not once for each processor. A loop of Python's own lets others run."""
        _, layout, first = slots[0]
        total: Sequence[int] = first
        for _, _, cells in slots[1:]:
            total = [one + other for one, other in zip(total, cells, strict=True)]
        for row in layout.rows:
            metric = row.metric
            if not metric.exported:
                continue
            if metric.name not in PER_WORKER and metric.name not in LARGEST:
                folded.add(metric, row.attributes, value_of(row, total))
                continue
            for slot, _, cells in slots:
                worker: Attributes = ((WORKER, "retired" if slot == RETIRED else str(slot)),) if metric.name in PER_WORKER else ()
                folded.add(metric, row.attributes + worker, value_of(row, cells))
