"""All values at one moment: the cells of every processor slot summed up, and what control counts itself."""

import operator
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from framegate.control.status import RETIRED, Attributes
from framegate.control.steering.state import State
from framegate.proxy.cells import CellLayout, CellReader, HistogramValue
from framegate.proxy.config.model import ProxyConfig

__all__ = ["EVENTS", "LARGEST", "PER_WORKER", "REPLACED", "WORKER", "Fold", "Folded", "Source", "names_event"]

WORKER: Final = "framegate.worker"
PER_WORKER: Final = frozenset({"framegate.event_loop.time", "framegate.event_loop.lag"})
"""Metrics whose sum over processors means nothing; they get the slot as the attribute ``framegate.worker``. All removed slots together are
``retired``, so that a sum over all slots never decreases.
"""
LARGEST: Final = frozenset(
    {
        "framegate.frame.size.limit",
        "framegate.memory_pool.usage.max",
        "framegate.draining",
        "framegate.upstream.endpoint.count",
        "framegate.upstream.endpoint.down",
        "framegate.upstream.first_byte.age",
        "framegate.upstream.request.age",
    }
)
"""Gauges with the same value in every processor, or nearly, or with a maximum: the largest value is exported."""

REPLACED: Final = "framegate.client."
"""The beginning of the names of gauges whose attributes are clients, which come and go: an export has those that there are then."""
EVENTS: Final = frozenset(
    {
        "framegate.cause",
        "framegate.reason",
        "error.type",
        "framegate.kafka.api",
        "framegate.mute.cause",
        "framegate.sasl.mechanism",
        "framegate.task",
        "framegate.place",
        "framegate.handler.action",
        "framegate.file.kind",
        "tls.protocol.version",
        "tls.resumed",
    }
)
"""Attributes that name one of many possible events, most of which never happen: a counter with one of them begins with the first event."""

_Points = dict[Attributes, float]
_Histograms = dict[Attributes, HistogramValue]


def names_event(attributes: Attributes) -> bool:
    """Whether a series counts one of many possible events."""
    return any(key in EVENTS for key, _ in attributes)


Source = Callable[[], Mapping[tuple[str, Attributes], float]]


class Folded:
    """Values of one moment: ``points`` and ``histograms``, by metric name and attributes."""

    def __init__(self) -> None:
        self.points: dict[str, _Points] = {}
        self.histograms: dict[str, _Histograms] = {}

    def put(self, name: str, attributes: Attributes, value: float | HistogramValue) -> None:
        """Add a value. Of a gauge in ``LARGEST`` the larger value stays: the control process may know more than any processor."""
        if isinstance(value, HistogramValue):
            self.histograms.setdefault(name, {})[attributes] = value
        else:
            points = self.points.setdefault(name, {})
            points[attributes] = max(value, points[attributes]) if name in LARGEST and attributes in points else value


class _Plan:
    """The rows of a layout by how they are combined: computed once, because the names and attributes of rows never change."""

    def __init__(self, layout: CellLayout) -> None:
        exported = [(row, row.attributes) for row in layout.rows if row.metric.exported]
        self.summed = [(row, attributes) for row, attributes in exported if row.metric.name not in LARGEST | PER_WORKER]
        self.largest = [(row, attributes) for row, attributes in exported if row.metric.name in LARGEST]
        self.apart = [(row, attributes) for row, attributes in exported if row.metric.name in PER_WORKER]


class Fold:
    """Sums up the cells, once for each collection. Any thread; each thread has one collection at a time.

    The SDK calls one callback for each instrument, all in the thread that collects. The first call reads the cells, and ``end`` of the collection
    forgets the values. So all values of one export are of the same moment, and the cells are copied once.

    Args:
        plane: the cells, and the values of the control process.
        sources: further values, each as ``State.measurements``; sources may be added until the first collection.
    """

    def __init__(self, plane: State, sources: Sequence[Source] = ()) -> None:
        self._plane = plane
        self._sources = sources
        self._moment = threading.local()
        self._planned: tuple[CellLayout, _Plan] | None = None

    @property
    def config(self) -> ProxyConfig:
        """The configuration in force."""
        return self._plane.config

    def now(self) -> Folded:
        """The values of this thread's collection."""
        folded: Folded | None = getattr(self._moment, "folded", None)
        if folded is None:
            folded = self._moment.folded = self._take()
        return folded

    def end(self) -> Folded:
        """The same, and forget them."""
        folded = self.now()
        self._moment.folded = None
        return folded

    def _take(self) -> Folded:
        try:
            folded = self._fold_cells()
        except ValueError:  # a slot was removed and its memory freed; the list of slots does not have it any more
            folded = self._fold_cells()
        for source in (self._plane.measurements, *self._sources):
            for (name, attributes), value in source().items():
                folded.put(name, attributes, value)
        return folded

    def _fold_cells(self) -> Folded:
        folded, slots = Folded(), self._plane.cells
        if slots:
            self._add_cells(folded, slots)
        return folded

    def _add_cells(self, folded: Folded, slots: Sequence[tuple[int, CellReader]]) -> None:
        """Sum the raw cells slot by slot, and convert only the sums: 64 slots cost little more than one."""
        layout = slots[0][1].layout
        if self._planned is None or self._planned[0] is not layout:
            self._planned = (layout, _Plan(layout))
        plan = self._planned[1]
        total: Sequence[int] | None = None
        most: list[int] = []
        for slot, reader in slots:
            cells = reader.cells()
            largest = [cells[row.index] for row, _ in plan.largest]
            most = largest if total is None else list(map(max, most, largest))
            total = cells if total is None else list(map(operator.add, total, cells))
            worker: Attributes = ((WORKER, "retired" if slot == RETIRED else str(slot)),)
            for row, attributes in plan.apart:
                folded.put(row.metric.name, attributes + worker, row.value(cells))
        assert total is not None, "there are slots"
        for row, attributes in plan.summed:
            folded.put(row.metric.name, attributes, row.value(total))
        for (row, attributes), value in zip(plan.largest, most, strict=True):
            folded.put(row.metric.name, attributes, value * row.metric.scale)
