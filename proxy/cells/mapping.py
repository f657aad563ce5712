"""The two ends of the mapping of one processor slot.

Control makes one memfd for each slot (``create``) and keeps it while processors come and go in the slot. It holds a header and 64-bit cells. The
processor is their only writer; control only reads (and zeroes the gauges of a processor that died). A cell holds an absolute value; a restarted
processor counts on from its cells, so exported counters never go back. An aligned 8-byte store is atomic (measured: 111 M writes, 31 M reads).

    offset 0    magic          8 bytes, ``FGCELLS1``
           8    (8 bytes reserved)
          16    pid            of the writer, 0 before the first
          24    generation     of the processor in this slot
          32    heartbeat      CLOCK_MONOTONIC ns, stored by the loop at least every 100 ms
          40    state          EMPTY, STARTING, SERVING, DRAINING, STOPPED
          48    (16 bytes reserved)
          64    cells          signed 64-bit, native byte order

Durations are kept in ns and exported in seconds.
"""

import mmap
import os
import struct
from collections.abc import Sequence
from typing import Any, Final

from framegate.proxy.cells.layout import CELL_SIZE, HEADER_SIZE, Attributes, CellLayout, HistogramValue
from framegate.proxy.cells.metric import Metric

MAGIC: Final = b"FGCELLS1"
_HEADER: Final = struct.Struct("=8sQQQQQ")
_GENERATION: Final = 24
_HEARTBEAT: Final = 32
_STATE: Final = 40


class State:
    """The states of the processor in the header."""

    EMPTY: Final = 0
    STARTING: Final = 1
    SERVING: Final = 2
    DRAINING: Final = 3
    STOPPED: Final = 4


def create(layout: CellLayout, name: str = "framegate-cells") -> int:
    """Makes the mapping of one slot and returns its descriptor, which is closed on exec unless it is in ``pass_fds``."""
    descriptor = os.memfd_create(name)
    try:
        enlarge(descriptor, layout)
        os.pwrite(descriptor, _HEADER.pack(MAGIC, 0, 0, 0, 0, State.EMPTY), 0)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def enlarge(descriptor: int, layout: CellLayout) -> None:
    """Make room for a layout. A mapping never becomes smaller, because others may have mapped it."""
    if os.fstat(descriptor).st_size < layout.size:
        os.ftruncate(descriptor, layout.size)


def _map(descriptor: int, layout: CellLayout) -> mmap.mmap:
    mapping = mmap.mmap(descriptor, layout.size)
    if mapping[: len(MAGIC)] != MAGIC:
        mapping.close()
        raise ValueError("these are no cells")
    return mapping


class CellWriter:
    """The processor's end: the header, and whole images of the cells. Raises ValueError: the mapping has no room for ``layout``."""

    def __init__(self, descriptor: int, layout: CellLayout) -> None:
        self.layout = layout  # of the cells
        self.base: list[int] = []  # the values to count on from, one for each cell; empty before ``start``
        self._descriptor = descriptor
        self._attach(_map(descriptor, layout))

    def _attach(self, mapping: mmap.mmap) -> None:
        data = memoryview(mapping)
        self._header = data[:HEADER_SIZE].cast("q")
        self._cells = data[HEADER_SIZE:]
        self._values = self._cells.cast("q")

    def start(self, pid: int, generation: int, now_ns: int) -> list[int]:
        """Claims the cells for a new processor; gauges become 0. Returns ``base``."""
        self.base = self._values.tolist()
        for at in self.layout.gauges:
            self.base[at] = 0
        self._header[2], self._header[_GENERATION // CELL_SIZE] = pid, generation
        self.heartbeat(now_ns)
        self.state(State.STARTING)
        return self.base

    def map(self, layout: CellLayout) -> mmap.mmap:
        """Map the cells of a layout that is not in use yet. Raises OSError or ValueError: it cannot be."""
        return _map(self._descriptor, layout)

    def follow(self, layout: CellLayout, mapping: Any) -> None:
        """Use a layout that was made from the present one, in its mapping of ``map``. What changed its owner begins with 0."""
        self.base += [0] * (layout.count - len(self.base))
        for start, end in layout.moved(self.layout):
            self.base[start:end] = [0] * (end - start)
        self.layout = layout
        self._attach(mapping)

    def publish(self, image: Any) -> None:
        """Stores all cells with one copy. ``image``: a contiguous buffer of ``layout.count`` native 64-bit values."""
        self._cells[:] = memoryview(image).cast("B")

    def put(self, index: int, value: int) -> None:
        self._values[index] = value

    def heartbeat(self, now_ns: int) -> None:
        self._header[_HEARTBEAT // CELL_SIZE] = now_ns

    def state(self, state: int) -> None:
        self._header[_STATE // CELL_SIZE] = state


Snapshot = dict[tuple[Metric, Attributes], float | HistogramValue]


class CellReader:
    """Control's end. Reading never waits for the processor. Nothing closes the mapping, as any thread may be reading: it goes with the last
    reference. Raises ValueError: the mapping has no room for ``layout``.
    """

    def __init__(self, descriptor: int, layout: CellLayout) -> None:
        self.layout = layout
        self._mapping = _map(descriptor, layout)

    @classmethod
    def sum_of(cls, readers: "Sequence[CellReader]") -> "CellReader":
        """A reader of the sum of one or more slots of one layout, copied now: counters and histograms added up, gauges and the header 0."""
        layout = readers[0].layout
        gauges = set(layout.gauges)
        columns = zip(*(reader.cells() for reader in readers), strict=True)
        return cls._copied(layout, [0 if at in gauges else sum(cells) for at, cells in enumerate(columns)])

    @classmethod
    def _copied(cls, layout: CellLayout, cells: Sequence[int]) -> "CellReader":
        made = cls.__new__(cls)
        made.layout = layout
        made._mapping = mmap.mmap(-1, layout.size)
        struct.pack_into(f"={layout.count}q", made._mapping, HEADER_SIZE, *cells)
        return made

    def following(self, layout: CellLayout) -> "CellReader":
        """A copy of a sum for a layout that was made from this one's; what changed its owner is 0."""
        cells = [*self.cells(), *[0] * (layout.count - self.layout.count)]
        for start, end in layout.moved(self.layout):
            cells[start:end] = [0] * (end - start)
        return self._copied(layout, cells)

    def _field(self, offset: int) -> int:
        value: int = struct.unpack_from("=q", self._mapping, offset)[0]
        return value

    @property
    def pid(self) -> int:
        """Of the last processor; 0 before the first."""
        return self._field(16)

    @property
    def generation(self) -> int:
        return self._field(_GENERATION)

    @property
    def heartbeat_ns(self) -> int:
        """CLOCK_MONOTONIC at the last heartbeat."""
        return self._field(_HEARTBEAT)

    @property
    def state(self) -> int:
        return self._field(_STATE)

    def cell(self, name: str, *values: str) -> int:
        """One raw cell: of a histogram its first bucket, of a time its nanoseconds."""
        return self._field(HEADER_SIZE + self.layout.index(name, *values) * CELL_SIZE)

    def cells(self) -> tuple[int, ...]:
        """All of them, raw. Values of one poll may be mixed with those of the poll before."""
        return struct.unpack_from(f"={self.layout.count}q", self._mapping, HEADER_SIZE)

    def image(self) -> bytes:
        """A copy of their memory, for ``struct``."""
        return self._mapping[HEADER_SIZE : HEADER_SIZE + self.layout.count * CELL_SIZE]

    def snapshot(self) -> Snapshot:
        """The values of all exported metrics, with every set of attributes, in their units."""
        cells = self.cells()
        return {(row.metric, row.attributes): row.value(cells) for row in self.layout.rows if row.metric.exported}

    def zero_gauges(self) -> None:
        """Stores 0 into every gauge; only for a processor that died."""
        for at in self.layout.gauges:
            struct.pack_into("=q", self._mapping, HEADER_SIZE + at * CELL_SIZE, 0)
        struct.pack_into("=q", self._mapping, _STATE, State.STOPPED)
