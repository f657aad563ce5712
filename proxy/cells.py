"""The shared counters: which metrics there are, where each one's cells lie, and the two ends of the mapping.

One memfd for each processor slot, made by control (``create``) and kept while processors come and go in the slot. It holds a header and
then 64-bit cells; the processor is their only writer, control only reads (and zeroes the gauges of a processor that died). A cell holds an
absolute value; a restarted processor starts its counters from its cells, so what is exported never goes back. An aligned 8-byte store
is never seen half (ops.md, 111 M writes against 31 M reads).

    offset 0    magic          8 bytes, ``FGCELLS1``
           8    layout hash    a reader refuses cells that were laid out from other names
          16    pid            of the writer, 0 before the first
          24    generation     of the processor in this slot
          32    heartbeat      CLOCK_MONOTONIC ns, stored by the loop at least every 100 ms
          40    state          EMPTY, STARTING, SERVING, DRAINING, STOPPED
          48    (16 bytes reserved)
          64    cells          signed 64-bit, native byte order

``METRICS`` is the only place where a metric gets its name, unit, attributes and bounds; a metric whose ``source`` is ``control`` has no
cells: control counts it itself, under the same table. Attribute values come from closed lists or the configured names, so the layout
follows from the configuration alone. Durations are kept in ns and exported in seconds.
"""

import json
import mmap
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Final, Literal, Protocol

__all__ = [
    "CAUSES",
    "FAULT_PLACES",
    "MEMORY_KINDS",
    "METRICS",
    "MUTE_CAUSES",
    "CellLayout",
    "CellReader",
    "CellWriter",
    "HistogramValue",
    "Metric",
    "Snapshot",
    "State",
    "create",
]

Kind = Literal["counter", "gauge", "histogram"]
Source = Literal["processor", "control"]
Attributes = tuple[tuple[str, str], ...]

PREFIX: Final = "framegate"
MAGIC: Final = b"FGCELLS1"
HEADER_SIZE: Final = 64
CELL_SIZE: Final = 8
_HEADER: Final = struct.Struct("=8sQQQQQ")
_GENERATION: Final = 24
_HEARTBEAT: Final = 32
_STATE: Final = 40

CAUSES: Final = (
    "peer_closed",
    "peer_reset",
    "no_data",
    "frame_too_large",
    "negative_size",
    "wrong_protocol",
    "tls_failed",
    "auth_failed",
    "handshake_timeout",
    "idle",
    "receive_stalled",
    "send_stalled",
    "upstream_refused",
    "upstream_timeout",
    "upstream_closed",
    "limit",
    "admin",
    "drained",
    "drain_timeout",
    "handler_failed",
    "processor_died",
    "internal",
)
"""The values of ``proxy.network``'s ``Cause``; this room lies below it, so a test holds the two together."""
MUTE_CAUSES: Final = ("memory", "peer", "throttle", "handler", "tap", "admin", "drain")
"""The values of ``proxy.network``'s mute causes, in the order of their bits; nothing sets ``throttle`` and ``handler`` yet."""
ORDERLY_CAUSES: Final = frozenset({"peer_closed", "no_data", "idle", "admin", "drained"})
"""Ends that are no error: their connections are counted without ``error.type``."""
DURATION_ERRORS: Final = ("", *(cause for cause in CAUSES if cause not in ORDERLY_CAUSES))

SIDE: Final = "framegate.side"
LISTENER: Final = "framegate.listener"
UPSTREAM: Final = "framegate.upstream"
CAUSE: Final = "framegate.cause"
REASON: Final = "framegate.reason"
DIRECTION: Final = "network.io.direction"
TAP_DIRECTION: Final = "framegate.direction"
MUTE_CAUSE: Final = "framegate.mute.cause"
ERROR_TYPE: Final = "error.type"
STATE: Final = "framegate.state"
PLACE: Final = "framegate.place"
POOL: Final = "framegate.pool"
MEMORY_KIND: Final = "framegate.memory.kind"
QUEUE: Final = "framegate.queue"
TASK: Final = "framegate.task"

SIDES: Final = ("downstream", "upstream")
DIRECTIONS: Final = ("receive", "transmit")
REJECT_REASONS: Final = ("frame_too_large", "negative_size", "incomplete")
LOOP_STATES: Final = ("busy", "idle")
MEMORY_KINDS: Final = ("begun", "pending", "tls")
"""What the pool is used for: frames begun, pending sends, ciphertext that waits."""
TAP_DROP_REASONS: Final = ("queue_full", "disk_full", "disk_error", "sampled", "closed", "undelivered")
TAP_DIRECTIONS: Final = ("request", "response")
FAULT_PLACES: Final = ("channel", "callback", "timer", "descriptor", "command", "loop", "tap")
"""Where an error of our own was caught; see ``proxy.network.faults``."""
UPSTREAM_STATES: Final = ("connecting", "used")
TLS_ERRORS: Final = ("", "tls_failed", "handshake_timeout", "other")
TASKS: Final = (
    "acceptor",
    "heartbeats",
    "slot",
    "loop",
    "shares",
    "endpoints",
    "tap_keeper",
    "rows",
    "library",
    "callback",
    "thread",
    "unraisable",
)
"""What works in the background of the control process (``control.guard``), and where else an exception may come from (``control.uncaught``)."""
ACCEPT_ERRORS: Final = ("EMFILE", "ENFILE", "ENOBUFS", "ENOMEM", "ECONNABORTED", "EPERM", "other")
CONNECT_ERRORS: Final = ("", "refused", "timeout", "tls", "other")

SIZE_BOUNDS: Final = tuple(float(256 << 2 * step) for step in range(11))
"""Bytes, 256 to 256 MiB: powers of two, so that log2 classes fold into them."""
CONNECTION_BOUNDS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
HANDSHAKE_BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
LAG_BOUNDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 1.0)


class State:
    """What the header says about the processor."""

    EMPTY: Final = 0
    STARTING: Final = 1
    SERVING: Final = 2
    DRAINING: Final = 3
    STOPPED: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One instrument.

    Attributes:
        name: dotted, without the unit.
        kind: ``gauge`` values go up and down (an UpDownCounter where they sum over processors).
        unit: UCUM; a cell of a metric in ``s`` holds nanoseconds.
        description: one sentence.
        attributes: keys with their closed lists of values; an empty list stands for the configured names. A value ``""`` means that
            the attribute is absent.
        bounds: of a histogram, ascending upper bounds in ``unit``; one more bucket is unbounded.
        source: who counts it.
        exported: others than control see it; snapshots leave out what nobody else does.
    """

    name: str
    kind: Kind
    unit: str
    description: str
    attributes: tuple[tuple[str, tuple[str, ...]], ...] = ()
    bounds: tuple[float, ...] = ()
    source: Source = "processor"
    exported: bool = True

    @property
    def scale(self) -> float:
        """What a cell's value is multiplied with to be in ``unit``."""
        return 1e-9 if self.unit == "s" else 1.0

    @property
    def keys(self) -> tuple[str, ...]:
        """The attributes' keys, in the order in which ``CellLayout.index`` takes the values."""
        return tuple(key for key, _ in self.attributes)


def _metric(name: str, kind: Kind, unit: str, description: str, *attributes: tuple[str, tuple[str, ...]], bounds: tuple[float, ...] = ()) -> Metric:
    return Metric(name=f"{PREFIX}.{name}", kind=kind, unit=unit, description=description, attributes=attributes, bounds=bounds)


def _internal(name: str, description: str, *attributes: tuple[str, tuple[str, ...]]) -> Metric:
    return Metric(name=f"{PREFIX}.{name}", kind="counter", unit="{frame}", description=description, attributes=attributes, exported=False)


def _control(name: str, kind: Kind, unit: str, description: str, *attributes: tuple[str, tuple[str, ...]]) -> Metric:
    return Metric(name=f"{PREFIX}.{name}", kind=kind, unit=unit, description=description, attributes=attributes, source="control")


_LISTENER: Final = (LISTENER, ())
_UPSTREAM: Final = (UPSTREAM, ())
_SIDE: Final = (SIDE, SIDES)
_DIRECTION: Final = (DIRECTION, DIRECTIONS)
_TAP_DIRECTION: Final = (TAP_DIRECTION, TAP_DIRECTIONS)

METRICS: Final = (
    _metric("connection.active", "gauge", "{connection}", "Connections open now.", _SIDE, _LISTENER),
    _metric("connection.accepted", "counter", "{connection}", "Client connections taken over by a processor.", _LISTENER),
    _metric("connection.closed", "counter", "{connection}", "Pairs that ended, by cause.", _LISTENER, (CAUSE, CAUSES)),
    _metric(
        "connection.duration",
        "histogram",
        "s",
        "Time from accept to close of a client connection.",
        _SIDE,
        (ERROR_TYPE, DURATION_ERRORS),
        bounds=CONNECTION_BOUNDS,
    ),
    _metric("tls.handshake.duration", "histogram", "s", "Time of one TLS handshake.", _SIDE, (ERROR_TYPE, TLS_ERRORS), bounds=HANDSHAKE_BOUNDS),
    _metric("tls.handshake.active", "gauge", "{handshake}", "TLS handshakes in progress.", _SIDE),
    _metric("frame.count", "counter", "{frame}", "Whole frames received from, and sent to, each side.", _SIDE, _DIRECTION, _LISTENER),
    _metric("io", "counter", "By", "Bytes of frames, headers counted, received from and sent to each side.", _SIDE, _DIRECTION, _LISTENER),
    _metric("read.count", "counter", "{read}", "Reads that gave bytes.", _SIDE, _LISTENER),
    _metric("write.count", "counter", "{write}", "Writes of frames that the socket took bytes of.", _SIDE, _LISTENER),
    _metric("frame.size", "histogram", "By", "Body sizes of whole frames received.", _SIDE, _LISTENER, bounds=SIZE_BOUNDS),
    _metric("frame.rejected", "counter", "{frame}", "Frames that were not forwarded.", _LISTENER, _SIDE, (REASON, REJECT_REASONS)),
    _metric("frame.cut_short", "counter", "{frame}", "Frames that passed in pieces and were never completed.", _LISTENER, _SIDE),
    _metric("frame.lost.io", "counter", "By", "Bytes received that could not be forwarded when a pair ended.", _LISTENER, _SIDE),
    _metric("frame.size.limit", "gauge", "By", "The largest frame body a client may send now.", _LISTENER),
    _metric("memory_pool.limit", "gauge", "By", "The share of the memory pool.", (POOL, ("frames",))),
    _metric("memory_pool.usage", "gauge", "By", "Bytes booked now, by what they are.", (POOL, ("frames",)), (MEMORY_KIND, MEMORY_KINDS)),
    _metric("memory_pool.waiting", "gauge", "{turn}", "Turns that frames wait for now.", (POOL, ("frames",))),
    _metric("memory_pool.evicted", "counter", "{connection}", "Connections closed for what they held while others waited.", (POOL, ("frames",))),
    _metric("memory_pool.depleted.time", "counter", "s", "Time with nothing available.", (POOL, ("frames",))),
    _metric("memory_pool.refused", "counter", "{turn}", "Turns of large frames that were not given at once.", (POOL, ("frames",))),
    _metric("memory_pool.wait.time", "counter", "s", "Time that turns were waited for.", (POOL, ("frames",))),
    _metric("channel.muted", "gauge", "{channel}", "Channels that are not read now, by cause.", (MUTE_CAUSE, MUTE_CAUSES)),
    _metric("channel.mute.count", "counter", "{mute}", "Times that a cause stopped a channel's reading.", (MUTE_CAUSE, MUTE_CAUSES)),
    _metric("channel.mute.time", "counter", "s", "Time that causes held channels muted.", (MUTE_CAUSE, MUTE_CAUSES)),
    _metric(
        "upstream.connect.duration",
        "histogram",
        "s",
        "Time of one connection attempt, TLS included.",
        _UPSTREAM,
        (ERROR_TYPE, CONNECT_ERRORS),
        bounds=HANDSHAKE_BOUNDS,
    ),
    _metric("upstream.connection.count", "gauge", "{connection}", "Connections to an upstream.", _UPSTREAM, (STATE, UPSTREAM_STATES)),
    _metric("upstream.endpoint.count", "gauge", "{endpoint}", "Addresses of an upstream.", _UPSTREAM),
    _metric("upstream.endpoint.down", "gauge", "{endpoint}", "Addresses left out because they failed, where most are.", _UPSTREAM),
    _metric("upstream.endpoint.ejections", "counter", "{ejection}", "Times an address was left out.", _UPSTREAM, (ERROR_TYPE, CONNECT_ERRORS[1:])),
    _metric("upstream.endpoint.probes", "counter", "{probe}", "Connections that tried an address again after its back-off.", _UPSTREAM),
    _metric("kafka.request.open", "gauge", "{request}", "Requests that wait for their answer.", _LISTENER),
    _metric("kafka.request.answered", "counter", "{request}", "Requests paired with their answer.", _LISTENER),
    _metric("kafka.pairing_lost", "counter", "{connection}", "Connections whose answers no longer match their requests.", _LISTENER),
    _metric("tap.matched", "counter", "{frame}", "Frames that a tap rule matched."),
    _metric("tap.flushed", "counter", "{frame}", "Matched frames that the log on disk accounts for, as frames or within a gap."),
    _metric("tap.frames", "counter", "{frame}", "Frames in the log on disk.", _TAP_DIRECTION),
    _metric("tap.dropped", "counter", "{frame}", "Matched frames that the log has, or will have, as a gap only.", (REASON, TAP_DROP_REASONS)),
    _metric("tap.matched.io", "counter", "By", "Bytes of frames that a tap rule matched, headers counted."),
    _metric("tap.io", "counter", "By", "Bytes written to the log."),
    _metric("tap.write.errors", "counter", "{error}", "Writes to the log that failed."),
    _metric("tap.flush.time", "counter", "s", "Time spent writing blocks."),
    _metric("queue.usage", "gauge", "By", "Bytes that wait.", (QUEUE, ("tap",))),
    _metric("event_loop.time", "counter", "s", "Time of the loop.", (STATE, LOOP_STATES)),
    _metric("event_loop.lag", "histogram", "s", "Time the loop was busy between two waits.", bounds=LAG_BOUNDS),
    _metric("link.dropped", "counter", "{row}", "Log rows that the link could not take."),
    _metric("processor.errors", "counter", "{error}", "Errors of our own that cost one connection, timer or command at most.", (PLACE, FAULT_PLACES)),
    _metric("draining", "gauge", "1", "1 while the processor drains."),
    _control(
        "connection.rejected", "counter", "{connection}", "Connections refused at accept.", _LISTENER, (REASON, ("max_connections", "draining"))
    ),
    _control("accept.blocked.time", "counter", "s", "Time an acceptor waited because no processor took its connection.", _LISTENER),
    _control("accept.errors", "counter", "{error}", "Connections that could not be accepted.", _LISTENER, (ERROR_TYPE, ACCEPT_ERRORS)),
    _control("worker.restarts", "counter", "{restart}", "Processors started again.", (REASON, ("died", "heartbeat", "commit"))),
    _control("tap.usage", "gauge", "By", "Bytes of the tap's log on disk."),
    _control("tap.limit", "gauge", "By", "The tap's budget."),
    _control("tap.consumer.unreadable", "gauge", "{consumer}", "Readers of the tap whose file cannot be read: what they may need is kept."),
    _control("config.revision", "gauge", "{revision}", "Revision of the configuration in force."),
    _control("task.failures", "counter", "{failure}", "Exceptions that nobody expected; each cost one step of what it names.", (TASK, TASKS)),
    _control("log.dropped", "counter", "{row}", "Rows that stdout did not take in time."),
    _control("config.changes", "counter", "{change}", "Changes asked for.", (ERROR_TYPE, ("", "refused", "invalid"))),
)
INTERNAL: Final = (
    _internal("tap.seen", "Frames that a tap rule matched.", _LISTENER, _TAP_DIRECTION),
    _internal("tap.reserved", "What tap.seen has not passed, whenever the processor dies.", _LISTENER, _TAP_DIRECTION),
)
"""Counts that control needs when a processor has ended; laid out behind the metrics."""


class _Named(Protocol):
    @property
    def name(self) -> str: ...


class _Names(Protocol):
    """What a layout needs of ``ProxyConfig``, which lives above this module."""

    @property
    def listeners(self) -> Sequence[_Named]: ...
    @property
    def upstreams(self) -> Sequence[_Named]: ...


@dataclass(frozen=True, slots=True)
class Row:
    """One metric with one set of attribute values: ``count`` cells from ``index`` (a histogram: its buckets, then the sum)."""

    metric: Metric
    values: tuple[str, ...]
    index: int
    count: int

    @property
    def attributes(self) -> Attributes:
        """Keys and values, absent ones left out."""
        return tuple((key, value) for key, value in zip(self.metric.keys, self.values, strict=True) if value)


@dataclass(frozen=True, slots=True)
class CellLayout:
    """Where every cell lies. Equal names give equal layouts; ``hash`` tells others apart."""

    rows: tuple[Row, ...]
    count: int
    hash: int
    _indexes: dict[tuple[str, tuple[str, ...]], int] = field(repr=False, compare=False)

    @classmethod
    def of(cls, config: _Names) -> "CellLayout":
        """The layout for the listeners and upstreams of a configuration."""
        names = {
            LISTENER: tuple(listener.name for listener in config.listeners),
            UPSTREAM: tuple(upstream.name for upstream in config.upstreams),
        }
        rows = tuple(_rows(names))
        last = rows[-1]
        text = json.dumps([(row.metric.name, row.values, row.count) for row in rows]).encode()
        signature = len(text) << 32 | zlib.crc32(text)
        indexes = {(row.metric.name, row.values): row.index for row in rows}
        return cls(rows, last.index + last.count, signature, indexes)

    @property
    def size(self) -> int:
        """Bytes of the mapping."""
        return HEADER_SIZE + self.count * CELL_SIZE

    def index(self, name: str, *values: str) -> int:
        """The first cell of a metric; ``values`` in the order of its attributes. An unknown one raises KeyError."""
        return self._indexes[name, values]


def _rows(names: dict[str, tuple[str, ...]]) -> Iterator[Row]:
    index = 0
    for metric in METRICS + INTERNAL:
        if metric.source != "processor":
            continue
        count = len(metric.bounds) + 2 if metric.kind == "histogram" else 1
        for values in product(*(listed or names[key] for key, listed in metric.attributes)):
            yield Row(metric, values, index, count)
            index += count


def create(layout: CellLayout, name: str = "framegate-cells") -> int:
    """Makes the mapping of one slot and returns its descriptor (close on exec; hand it on with ``pass_fds``)."""
    descriptor = os.memfd_create(name)
    try:
        os.ftruncate(descriptor, layout.size)
        os.pwrite(descriptor, _HEADER.pack(MAGIC, layout.hash, 0, 0, 0, State.EMPTY), 0)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _map(descriptor: int, layout: CellLayout) -> mmap.mmap:
    mapping = mmap.mmap(descriptor, layout.size)
    magic, digest = struct.unpack_from("=8sQ", mapping)
    if magic != MAGIC or digest != layout.hash:
        mapping.close()
        raise ValueError("the cells were laid out by another configuration")
    return mapping


class CellWriter:
    """The processor's end: the header, and whole images of the cells.

    Raises:
        ValueError: the mapping does not follow ``layout``.
    """

    def __init__(self, descriptor: int, layout: CellLayout) -> None:
        self.layout = layout
        self._mapping = _map(descriptor, layout)
        self._bytes = memoryview(self._mapping)
        self._header = self._bytes[:HEADER_SIZE].cast("q")
        self._cells = self._bytes[HEADER_SIZE:]
        self._values = self._cells.cast("q")

    def start(self, pid: int, generation: int, now_ns: int) -> list[int]:
        """Claims the cells for a new processor; gauges become 0.

        Returns:
            The values to count on from, one for each cell.
        """
        values = self._values.tolist()
        for row in self.layout.rows:
            if row.metric.kind == "gauge":
                values[row.index] = 0
        self._header[2], self._header[_GENERATION // CELL_SIZE] = pid, generation
        self.beat(now_ns)
        self.state(State.STARTING)
        return values

    def publish(self, image: Any) -> None:
        """Stores all cells with one copy. ``image``: a contiguous buffer of ``layout.count`` native 64-bit values."""
        self._cells[:] = memoryview(image).cast("B")

    def put(self, index: int, value: int) -> None:
        """Stores one cell, ahead of the image that brings it, too."""
        self._values[index] = value

    def beat(self, now_ns: int) -> None:
        """Stores the heartbeat."""
        self._header[_HEARTBEAT // CELL_SIZE] = now_ns

    def state(self, state: int) -> None:
        """Stores one of ``State``."""
        self._header[_STATE // CELL_SIZE] = state


@dataclass(frozen=True, slots=True)
class HistogramValue:
    """``buckets``: counts that do not add up over bounds, one more than bounds; ``sum`` in the metric's unit."""

    buckets: tuple[int, ...]
    sum: float

    @property
    def count(self) -> int:
        """Observations."""
        return sum(self.buckets)


Snapshot = dict[tuple[Metric, Attributes], float | HistogramValue]


class CellReader:
    """Control's end. Reading never waits for the processor.

    Raises:
        ValueError: the mapping does not follow ``layout``.
    """

    def __init__(self, descriptor: int, layout: CellLayout) -> None:
        self.layout = layout
        self._mapping = _map(descriptor, layout)

    @classmethod
    def sum_of(cls, readers: "Sequence[CellReader]") -> "CellReader":
        """What slots of one layout, at least one, have counted together, in memory of its own and for good: counters and histograms added up,
        gauges and the header 0.
        """
        layout = readers[0].layout
        gauges = {row.index for row in layout.rows if row.metric.kind == "gauge"}
        columns = zip(*(struct.unpack_from(f"={layout.count}q", reader._mapping, HEADER_SIZE) for reader in readers), strict=True)
        total = cls.__new__(cls)
        total.layout = layout
        total._mapping = mmap.mmap(-1, layout.size)
        struct.pack_into(f"={layout.count}q", total._mapping, HEADER_SIZE, *(0 if at in gauges else sum(cells) for at, cells in enumerate(columns)))
        return total

    def close(self) -> None:
        """Gives the mapping back; the descriptor stays the caller's."""
        self._mapping.close()

    def _field(self, offset: int) -> int:
        value: int = struct.unpack_from("=q", self._mapping, offset)[0]
        return value

    @property
    def pid(self) -> int:
        """Of the processor that claimed the cells last; 0 before the first."""
        return self._field(16)

    @property
    def generation(self) -> int:
        """Of that processor."""
        return self._field(_GENERATION)

    @property
    def heartbeat_ns(self) -> int:
        """CLOCK_MONOTONIC at the loop's last sign of life."""
        return self._field(_HEARTBEAT)

    @property
    def state(self) -> int:
        """One of ``State``."""
        return self._field(_STATE)

    def cell(self, name: str, *values: str) -> int:
        """One raw cell: of a histogram its first bucket, of a time its nanoseconds."""
        return self._field(HEADER_SIZE + self.layout.index(name, *values) * CELL_SIZE)

    def snapshot(self) -> Snapshot:
        """Every metric with every set of attributes, in its unit. Values of one poll may be mixed with those of the poll before."""
        cells = struct.unpack_from(f"={self.layout.count}q", self._mapping, HEADER_SIZE)
        values: Snapshot = {}
        for row in self.layout.rows:
            if not row.metric.exported:
                continue
            scale = row.metric.scale
            if row.metric.kind == "histogram":
                end = row.index + row.count - 1
                values[row.metric, row.attributes] = HistogramValue(cells[row.index : end], cells[end] * scale)
            else:
                values[row.metric, row.attributes] = cells[row.index] if scale == 1.0 else cells[row.index] * scale
        return values

    def zero_gauges(self) -> None:
        """Stores 0 into every gauge: for a processor that died, and only then."""
        for row in self.layout.rows:
            if row.metric.kind == "gauge":
                struct.pack_into("=q", self._mapping, HEADER_SIZE + row.index * CELL_SIZE, 0)
        struct.pack_into("=q", self._mapping, _STATE, State.STOPPED)
