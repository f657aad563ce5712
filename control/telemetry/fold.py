"""All values at one moment: the cells of every processor slot summed up, and what control counts itself."""

import struct
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from framegate.control.status import RETIRED, Attributes
from framegate.control.steering.state import State
from framegate.control.telemetry.series import is_shown_at_zero, zeros_of_listeners
from framegate.proxy.cells import CELL_SIZE, CellLayout, CellReader, HistogramValue
from framegate.proxy.cells.layout import Row
from framegate.proxy.cells.metrics import WORKER
from framegate.proxy.config.model import ProxyConfig

__all__ = ["LARGEST", "PER_WORKER", "REPLACED", "WORKER", "Fold", "Folded", "Source"]

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
        "framegate.upstream.answer.age",
        "framegate.upstream.request.age",
    }
)  # Gauges with the same value in every processor, or nearly, or with a maximum: the largest value is exported

REPLACED: Final = "framegate.client."
"""The beginning of the names of gauges whose attributes are clients, which come and go: an export has those that there are then."""

_CELL: Final = struct.Struct("=q")
_Points = dict[Attributes, float]
_Histograms = dict[Attributes, HistogramValue]


Source = Callable[[], Mapping[tuple[str, Attributes], float]]


class Folded:
    """Values of one moment: ``points`` and ``histograms``, by metric name and attributes."""

    def __init__(self) -> None:
        self.points: dict[str, _Points] = {}
        self.histograms: dict[str, _Histograms] = {}

    def put(self, name: str, attributes: Attributes, value: float | HistogramValue) -> None:
        """Add a value, in place of one that is there."""
        if isinstance(value, HistogramValue):
            self.histograms.setdefault(name, {})[attributes] = value
        else:
            self.points.setdefault(name, {})[attributes] = value

    def put_largest(self, name: str, attributes: Attributes, value: float) -> None:
        """The same, but of a gauge in ``LARGEST`` the larger value stays: the control process may know more than any processor."""
        before = self.points.get(name, {}).get(attributes, value) if name in LARGEST else value
        self.put(name, attributes, max(value, before))


class _Segment:
    """Cells that follow each other and are read together: a histogram, or others of one owner. ``rows``: of these cells. ``config``: decides what is
    exported while it is 0.
    """

    def __init__(self, rows: Sequence[Row], config: ProxyConfig) -> None:
        first, last = rows[0], rows[-1]
        self.start = first.index * CELL_SIZE
        self.end = (last.index + last.count) * CELL_SIZE
        self.zeros = bytes(self.end - self.start)
        self.unpack = struct.Struct(f"={len(self.zeros) // CELL_SIZE}q").unpack
        self.first = first.index
        named = [(row, row.attributes) for row in rows if row.metric.exported and row.metric.name not in PER_WORKER]
        self.rows = [(row, at, row.metric.name in LARGEST, _idle(row, at, config)) for row, at in named]
        self.idle = [(row.metric.name, at, idle) for row, at, _, idle in self.rows if idle is not None]

    def add_to(self, folded: "Folded", images: Sequence[bytes], total: bytes) -> None:
        """Add the values of all slots; ``total``: the sum of their images. Most segments are 0: these cost one comparison."""
        part = total[self.start : self.end]
        if part == self.zeros:
            for name, attributes, zero in self.idle:
                folded.put(name, attributes, zero)
            return
        cells = self.unpack(part)
        for row, attributes, is_largest, idle in self.rows:
            value: float | HistogramValue | None = row.value(cells, self.first)
            if not (value.count if isinstance(value, HistogramValue) else value):
                value = idle
            elif is_largest:
                value = row.value(max(_CELL.unpack_from(image, row.index * CELL_SIZE) for image in images), row.index)
            if value is not None:
                folded.put(row.metric.name, attributes, value)


def _idle(row: Row, attributes: Attributes, config: ProxyConfig) -> float | HistogramValue | None:
    """The value that is exported while it is 0. A histogram without observations has no buckets yet: they would be many series."""
    if not is_shown_at_zero(row.metric, attributes, config):
        return None
    return HistogramValue((0,), 0.0) if row.metric.kind == "histogram" else 0 * row.metric.scale


def _sum(images: Sequence[bytes]) -> bytes:
    """The sum of images, cell by cell, modulo 2^64. An image is one large integer; adding these takes a tenth of the time that adding cells takes.
    Every other cell is added apart from the others, so that what overflows goes where there is no cell.
    """
    if len(images) == 1:
        return images[0]
    size = len(images[0])
    mask = int.from_bytes(((b"\xff" * CELL_SIZE + bytes(CELL_SIZE)) * size)[:size], "little")
    even = odd = 0
    for image in images:
        cells = int.from_bytes(image, sys.byteorder)
        even += cells & mask
        odd += cells >> 8 * CELL_SIZE & mask
    return ((odd & mask) << 8 * CELL_SIZE | even & mask).to_bytes(size, sys.byteorder)


class _Plan:
    """How the cells of a layout are combined: made once for a layout and a configuration."""

    def __init__(self, layout: CellLayout, config: ProxyConfig) -> None:
        self.of = layout, config
        self.apart = [row for row in layout.rows if row.metric.name in PER_WORKER]
        self.zeros = zeros_of_listeners(config)
        runs: list[list[Row]] = []
        for row in sorted(layout.rows, key=lambda row: row.index):
            last = runs[-1][-1] if runs else None
            if last is None or "histogram" in (row.metric.kind, last.metric.kind) or row.index != last.index + last.count:
                runs.append([])
            runs[-1].append(row)
        self.segments = [segment for run in runs if (segment := _Segment(run, config)).rows]


class Fold:
    """Sums up the cells, once for each collection. Any thread; each thread has one collection at a time.

    The SDK calls one callback for each instrument, all in the thread that collects. The first call reads the cells, and ``end`` of the collection
    forgets the values. So all values of one export are of the same moment, and the cells are copied once.

    ``plane``: the cells, and the values of the control process. ``sources``: further values, each as ``State.measurements``; sources may be added
    until the first collection.
    """

    def __init__(self, plane: State, sources: Sequence[Source] = ()) -> None:
        self._plane = plane
        self._sources = sources
        self._moment = threading.local()
        self._plan: _Plan | None = None

    @property
    def config(self) -> ProxyConfig:
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
        folded, slots, config = Folded(), self._plane.cells, self.config
        if slots:
            layout = slots[0][1].layout
            plan = self._plan  # another thread may replace it
            if plan is None or plan.of[0] is not layout or plan.of[1] is not config:
                plan = self._plan = _Plan(layout, config)
            self._add_cells(folded, plan, slots)
        for source in (self._plane.measurements, *self._sources):
            for (name, attributes), value in source().items():
                folded.put_largest(name, attributes, value)
        return folded

    def _add_cells(self, folded: Folded, plan: _Plan, slots: Sequence[tuple[int, CellReader]]) -> None:
        images = [reader.image() for _, reader in slots]
        total = _sum(images)
        for segment in plan.segments:
            segment.add_to(folded, images, total)
        for name, attributes in plan.zeros:
            folded.put(name, attributes, 0.0)
        for (slot, _), image in zip(slots, images, strict=True):
            worker: Attributes = ((WORKER, "retired" if slot == RETIRED else str(slot)),)
            for row in plan.apart:
                cells = struct.unpack_from(f"={row.count}q", image, row.index * CELL_SIZE)
                folded.put(row.metric.name, row.attributes + worker, row.value(cells, row.index))
