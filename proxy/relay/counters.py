"""What the loop counts: native attributes, and their copy into the cells.

Everything here counts from 0 in each processor; ``Publisher`` adds the values its cells had when the processor started, so what is exported
goes on from there. One thread.
"""

from typing import Final

from librt.vecs import append, vec
from mypy_extensions import i64

from proxy.cells import (
    CAUSES,
    CONNECT_ERRORS,
    CONNECTION_BOUNDS,
    DURATION_ERRORS,
    FAULT_PLACES,
    HANDSHAKE_BOUNDS,
    LAG_BOUNDS,
    MEMORY_KINDS,
    MUTE_CAUSES,
    ORDERLY_CAUSES,
    TLS_ERRORS,
    CellLayout,
    CellWriter,
)
from proxy.network.cause import Cause
from proxy.network.memory_pool import MemoryPool
from proxy.network.receive import ReceiveLimit
from proxy.network.stats import SideStats
from proxy.relay.pairing import PairingStats
from proxy.tap.record import DIRECTIONS
from proxy.tap.tallies import Reserve, Tally
from proxy.tap.writer import TapWriter

__all__ = ["Counters", "Histogram", "ListenerCounters", "LoopCounters", "Publisher", "UpstreamCounters", "tls_error"]

CAUSE_INDEX: Final = {cause: index for index, cause in enumerate(CAUSES)}
ERROR_INDEX: Final = {cause: 0 if cause in ORDERLY_CAUSES else DURATION_ERRORS.index(cause) for cause in CAUSES}
HEADER_BYTES: Final = 4


def tls_error(cause: Cause | None) -> int:
    """The index in ``TLS_ERRORS`` of a handshake that ended for a cause."""
    if cause is Cause.TLS_FAILED:
        return TLS_ERRORS.index("tls_failed")
    if cause is Cause.HANDSHAKE_TIMEOUT or cause is Cause.UPSTREAM_TIMEOUT:
        return TLS_ERRORS.index("handshake_timeout")
    return TLS_ERRORS.index("other")


def _zeros(count: i64) -> "vec[i64]":
    out = vec[i64]([], capacity=count)
    for _ in range(count):
        out = append(out, 0)
    return out


class Histogram:
    """Durations in ns, counted into buckets.

    Args:
        bounds_s: ascending upper bounds in seconds, inclusive; one more bucket lies above them.
    """

    def __init__(self, bounds_s: tuple[float, ...]) -> None:
        self.buckets: vec[i64] = _zeros(len(bounds_s) + 1)
        self.sum: i64 = 0
        self._bounds: vec[i64] = vec[i64]([round(bound * 1e9) for bound in bounds_s])

    def observe(self, duration_ns: i64) -> None:
        """Counts one duration."""
        bucket: i64 = 0
        bounds = self._bounds
        while bucket < len(bounds) and duration_ns > bounds[bucket]:
            bucket += 1
        self.buckets[bucket] += 1
        self.sum += duration_ns


class ListenerCounters:
    """What one listener's pairs did. ``closed`` has one count for each of ``CAUSES``; the gauges are ``active_…``."""

    def __init__(self) -> None:
        self.downstream = SideStats()
        self.upstream = SideStats()
        self.pairing = PairingStats()
        self.accepted: i64 = 0
        self.active_downstream: i64 = 0
        self.active_upstream: i64 = 0
        self.lost_downstream: i64 = 0
        self.lost_upstream: i64 = 0
        self.closed: vec[i64] = _zeros(len(CAUSES))


class UpstreamCounters:
    """Connections to one upstream. ``durations`` has one histogram, ``ejections`` one count, for each of ``CONNECT_ERRORS``."""

    def __init__(self) -> None:
        self.connecting: i64 = 0
        self.used: i64 = 0
        self.endpoints: i64 = 0
        self.down: i64 = 0
        self.probes: i64 = 0
        self.ejections: vec[i64] = _zeros(len(CONNECT_ERRORS))
        self.durations = [Histogram(HANDSHAKE_BOUNDS) for _ in CONNECT_ERRORS]


class LoopCounters:
    """What the processor as a whole did. ``durations`` by ``DURATION_ERRORS``, ``handshakes_…`` by ``TLS_ERRORS``, ``faults`` by ``FAULT_PLACES``."""

    def __init__(self) -> None:
        self.busy_ns: i64 = 0
        self.idle_ns: i64 = 0
        self.link_dropped: i64 = 0
        self.draining: i64 = 0
        self.faults: vec[i64] = _zeros(len(FAULT_PLACES))
        self.lag = Histogram(LAG_BOUNDS)
        self.downstream_durations = [Histogram(CONNECTION_BOUNDS) for _ in DURATION_ERRORS]
        self.upstream_durations = [Histogram(CONNECTION_BOUNDS) for _ in DURATION_ERRORS]
        self.downstream_handshakes = [Histogram(HANDSHAKE_BOUNDS) for _ in TLS_ERRORS]
        self.upstream_handshakes = [Histogram(HANDSHAKE_BOUNDS) for _ in TLS_ERRORS]
        self.downstream_handshaking: i64 = 0
        self.upstream_handshaking: i64 = 0


class Counters:
    """All counters of a processor, by the names of its configuration."""

    def __init__(self, listeners: list[str], upstreams: list[str]) -> None:
        self.loop = LoopCounters()
        self.listeners = {name: ListenerCounters() for name in listeners}
        self.upstreams = {name: UpstreamCounters() for name in upstreams}


class _SideCells:
    """Where one side of one listener has its cells."""

    def __init__(self, layout: CellLayout, side: str, listener: str) -> None:
        self.frames_received: i64 = layout.index("framegate.frame.count", side, "receive", listener)
        self.frames_sent: i64 = layout.index("framegate.frame.count", side, "transmit", listener)
        self.bytes_received: i64 = layout.index("framegate.io", side, "receive", listener)
        self.bytes_sent: i64 = layout.index("framegate.io", side, "transmit", listener)
        self.reads: i64 = layout.index("framegate.read.count", side, listener)
        self.writes: i64 = layout.index("framegate.write.count", side, listener)
        self.sizes: i64 = layout.index("framegate.frame.size", side, listener)
        self.refused: i64 = layout.index("framegate.frame.rejected", listener, side, "frame_too_large")
        self.cut_short: i64 = layout.index("framegate.frame.cut_short", listener, side)
        self.lost: i64 = layout.index("framegate.frame.lost.io", listener, side)
        self.active: i64 = layout.index("framegate.connection.active", side, listener)


class _ListenerCells:
    """Where one listener has its cells."""

    def __init__(self, layout: CellLayout, listener: str) -> None:
        self.downstream = _SideCells(layout, "downstream", listener)
        self.upstream = _SideCells(layout, "upstream", listener)
        self.accepted: i64 = layout.index("framegate.connection.accepted", listener)
        self.closed: i64 = layout.index("framegate.connection.closed", listener, CAUSES[0])
        self.limit: i64 = layout.index("framegate.frame.size.limit", listener)
        self.open: i64 = layout.index("framegate.kafka.request.open", listener)
        self.answered: i64 = layout.index("framegate.kafka.request.answered", listener)
        self.pairing_lost: i64 = layout.index("framegate.kafka.pairing_lost", listener)


class _UpstreamCells:
    """Where one upstream has its cells."""

    def __init__(self, layout: CellLayout, upstream: str) -> None:
        self.connecting: i64 = layout.index("framegate.upstream.connection.count", upstream, "connecting")
        self.used: i64 = layout.index("framegate.upstream.connection.count", upstream, "used")
        self.durations: vec[i64] = vec[i64]([layout.index("framegate.upstream.connect.duration", upstream, error) for error in CONNECT_ERRORS])
        self.endpoints: i64 = layout.index("framegate.upstream.endpoint.count", upstream)
        self.down: i64 = layout.index("framegate.upstream.endpoint.down", upstream)
        self.probes: i64 = layout.index("framegate.upstream.endpoint.probes", upstream)
        self.ejections: i64 = layout.index("framegate.upstream.endpoint.ejections", upstream, CONNECT_ERRORS[1])


class _LoopCells:
    """Where the processor as a whole has its cells."""

    def __init__(self, layout: CellLayout) -> None:
        index = layout.index
        self.limit: i64 = index("framegate.memory_pool.limit", "frames")
        self.usage: i64 = index("framegate.memory_pool.usage", "frames", MEMORY_KINDS[0])
        self.waiting: i64 = index("framegate.memory_pool.waiting", "frames")
        self.evicted: i64 = index("framegate.memory_pool.evicted", "frames")
        self.depleted: i64 = index("framegate.memory_pool.depleted.time", "frames")
        self.refused: i64 = index("framegate.memory_pool.refused", "frames")
        self.wait: i64 = index("framegate.memory_pool.wait.time", "frames")
        self.muted: i64 = index("framegate.channel.muted", MUTE_CAUSES[0])
        self.mutes: i64 = index("framegate.channel.mute.count", MUTE_CAUSES[0])
        self.mute_time: i64 = index("framegate.channel.mute.time", MUTE_CAUSES[0])
        self.busy: i64 = index("framegate.event_loop.time", "busy")
        self.idle: i64 = index("framegate.event_loop.time", "idle")
        self.lag: i64 = index("framegate.event_loop.lag")
        self.link_dropped: i64 = index("framegate.link.dropped")
        self.faults: i64 = index("framegate.processor.errors", FAULT_PLACES[0])
        self.draining: i64 = index("framegate.draining")
        self.handshaking: i64 = index("framegate.tls.handshake.active", "downstream")
        self.handshaking_upstream: i64 = index("framegate.tls.handshake.active", "upstream")
        self.durations: i64 = index("framegate.connection.duration", "downstream", "")
        self.durations_upstream: i64 = index("framegate.connection.duration", "upstream", "")
        self.handshakes: i64 = index("framegate.tls.handshake.duration", "downstream", "")
        self.handshakes_upstream: i64 = index("framegate.tls.handshake.duration", "upstream", "")
        self.matched: i64 = index("framegate.tap.matched")
        self.flushed: i64 = index("framegate.tap.flushed")
        self.dropped: i64 = index("framegate.tap.dropped", "queue_full")
        self.frames: i64 = index("framegate.tap.frames", "request")
        self.matched_io: i64 = index("framegate.tap.matched.io")
        self.tap_io: i64 = index("framegate.tap.io")
        self.tap_errors: i64 = index("framegate.tap.write.errors")
        self.flush_time: i64 = index("framegate.tap.flush.time")
        self.queue: i64 = index("framegate.queue.usage", "tap")


class CellReserve(Reserve):
    """Stores what tallies reserve in their cells, at once.

    Args:
        writer: of the cells.
        base: the cells' values when this processor started.
    """

    def __init__(self, writer: CellWriter, base: list[int]) -> None:
        self._writer = writer
        self._base = base

    def reserve(self, tally: Tally) -> None:
        index = self._writer.layout.index("framegate.tap.reserved", tally.listener, DIRECTIONS[tally.direction])
        self._writer.put(index, self._base[index] + int(tally.reserved))


class _TallyCells:
    """Where one tally of the tap has its cells."""

    def __init__(self, layout: CellLayout, tally: Tally) -> None:
        direction = DIRECTIONS[tally.direction]
        self.seen: i64 = layout.index("framegate.tap.seen", tally.listener, direction)
        self.reserved: i64 = layout.index("framegate.tap.reserved", tally.listener, direction)


class Publisher:
    """Copies counters into the cells: fills an image of all cells, then stores it with one copy.

    Args:
        writer: of the cells.
        base: the cells' values when this processor started, gauges 0.
        counters: what is published.
        limits: the receive limit of each listener.
        pool: the memory pool.
        tap: the tap's writer, or None.
    """

    def __init__(
        self, writer: CellWriter, base: list[int], counters: Counters, limits: dict[str, ReceiveLimit], pool: MemoryPool, tap: TapWriter | None
    ) -> None:
        layout = writer.layout
        self._writer = writer
        self._base: vec[i64] = vec[i64](base)
        self._image: vec[i64] = vec[i64](base)
        self._loop = counters.loop
        self._pool = pool
        self._tap = tap
        self._tally_cells: list[_TallyCells] = []
        self._loop_cells = _LoopCells(layout)
        names = list(counters.listeners)
        self._listeners = [counters.listeners[name] for name in names]
        self._listener_cells = [_ListenerCells(layout, name) for name in names]
        self._limits = [limits[name] for name in names]
        self._upstreams = list(counters.upstreams.values())
        self._upstream_cells = [_UpstreamCells(layout, name) for name in counters.upstreams]

    def publish(self) -> None:
        """Stores the counters as they are now."""
        cells = self._loop_cells
        for index in range(i64(len(MUTE_CAUSES))):
            self._clear(cells.muted + index)
            self._clear(cells.mutes + index)
            self._clear(cells.mute_time + index)
        for number in range(i64(len(self._listeners))):
            self._fill_listener(self._listeners[number], self._listener_cells[number], self._limits[number])
        for number in range(i64(len(self._upstreams))):
            self._fill_upstream(self._upstreams[number], self._upstream_cells[number])
        self._fill_loop(cells)
        self._fill_pool(cells)
        if self._tap is not None:
            self._fill_tap(self._tap, cells)
        self._writer.publish(self._image)

    def _put(self, index: i64, value: i64) -> None:
        self._image[index] = self._base[index] + value

    def _clear(self, index: i64) -> None:
        self._image[index] = self._base[index]

    def _put_all(self, index: i64, values: "vec[i64]") -> None:
        for offset in range(i64(len(values))):
            self._image[index + offset] = self._base[index + offset] + values[offset]

    def _add_all(self, index: i64, values: "vec[i64]") -> None:
        for offset in range(i64(len(values))):
            self._image[index + offset] += values[offset]

    def _put_histogram(self, index: i64, histogram: Histogram) -> None:
        self._put_all(index, histogram.buckets)
        self._put(index + i64(len(histogram.buckets)), histogram.sum)

    def _put_histograms(self, index: i64, histograms: list[Histogram]) -> None:
        for histogram in histograms:
            if histogram.sum != 0:
                self._put_histogram(index, histogram)
            index += i64(len(histogram.buckets)) + 1

    def _fill_listener(self, counters: ListenerCounters, cells: _ListenerCells, limit: ReceiveLimit) -> None:
        self._fill_side(counters.downstream, cells.downstream)
        self._fill_side(counters.upstream, cells.upstream)
        self._put(cells.downstream.lost, counters.lost_downstream)
        self._put(cells.upstream.lost, counters.lost_upstream)
        self._put(cells.downstream.active, counters.active_downstream)
        self._put(cells.upstream.active, counters.active_upstream)
        self._put(cells.accepted, counters.accepted)
        self._put_all(cells.closed, counters.closed)
        self._put(cells.limit, limit.value)
        self._put(cells.open, counters.pairing.open)
        self._put(cells.answered, counters.pairing.answered)
        self._put(cells.pairing_lost, counters.pairing.lost)

    def _fill_side(self, stats: SideStats, cells: _SideCells) -> None:
        self._put(cells.frames_received, stats.frames_received)
        self._put(cells.frames_sent, stats.frames_sent)
        self._put(cells.bytes_received, stats.bytes_received)
        self._put(cells.bytes_sent, stats.bytes_sent)
        self._put(cells.reads, stats.reads)
        self._put(cells.writes, stats.writes)
        self._put_all(cells.sizes, stats.frame_sizes)
        self._put(cells.sizes + i64(len(stats.frame_sizes)), stats.bytes_received - HEADER_BYTES * stats.frames_received)
        self._put(cells.refused, stats.refused_too_large)
        self._put(cells.refused + 1, stats.refused_negative)
        self._put(cells.refused + 2, stats.refused_incomplete)
        self._put(cells.cut_short, stats.cut_short)
        loop = self._loop_cells
        self._add_all(loop.muted, stats.muted)
        self._add_all(loop.mutes, stats.mutes)
        self._add_all(loop.mute_time, stats.mute_ns)

    def _fill_upstream(self, counters: UpstreamCounters, cells: _UpstreamCells) -> None:
        self._put(cells.connecting, counters.connecting)
        self._put(cells.used, counters.used)
        self._put(cells.endpoints, counters.endpoints)
        self._put(cells.down, counters.down)
        self._put(cells.probes, counters.probes)
        for error in range(1, i64(len(counters.ejections))):
            self._put(cells.ejections + error - 1, counters.ejections[error])
        for number in range(i64(len(counters.durations))):
            self._put_histogram(cells.durations[number], counters.durations[number])

    def _fill_loop(self, cells: _LoopCells) -> None:
        loop = self._loop
        self._put(cells.busy, loop.busy_ns)
        self._put(cells.idle, loop.idle_ns)
        self._put(cells.link_dropped, loop.link_dropped)
        self._put_all(cells.faults, loop.faults)
        self._put(cells.draining, loop.draining)
        self._put(cells.handshaking, loop.downstream_handshaking)
        self._put(cells.handshaking_upstream, loop.upstream_handshaking)
        self._put_histogram(cells.lag, loop.lag)
        self._put_histograms(cells.durations, loop.downstream_durations)
        self._put_histograms(cells.durations_upstream, loop.upstream_durations)
        self._put_histograms(cells.handshakes, loop.downstream_handshakes)
        self._put_histograms(cells.handshakes_upstream, loop.upstream_handshakes)

    def _fill_pool(self, cells: _LoopCells) -> None:
        pool = self._pool
        self._put(cells.limit, pool.size)
        self._put(cells.usage, pool.begun)
        self._put(cells.usage + 1, pool.pending)
        self._put(cells.usage + 2, pool.tls)
        self._put(cells.waiting, pool.waiting)
        self._put(cells.evicted, pool.evicted)
        self._put(cells.depleted, pool.depleted_total_ns())
        self._put(cells.refused, pool.refused)
        self._put(cells.wait, pool.wait_ns)

    def _fill_tap(self, tap: TapWriter, cells: _LoopCells) -> None:
        for number in range(i64(len(tap.tallies.all))):
            tally = tap.tallies.all[number]
            if number == i64(len(self._tally_cells)):
                self._tally_cells.append(_TallyCells(self._writer.layout, tally))
            self._put(self._tally_cells[number].seen, tally.frames)
            self._put(self._tally_cells[number].reserved, tally.reserved)
        self._put(cells.matched, tap.frames_matched)
        self._put(cells.flushed, tap.thread.frames_flushed_request + tap.thread.frames_flushed_response + tap.thread.frames_gapped)
        self._put(cells.frames, tap.thread.frames_flushed_request)
        self._put(cells.frames + 1, tap.thread.frames_flushed_response)
        self._put(cells.dropped, tap.dropped_queue_full)
        self._put(cells.dropped + 1, tap.dropped_disk_full)
        self._put(cells.dropped + 2, tap.dropped_disk_error)
        self._put(cells.dropped + 3, tap.dropped_sampled)
        self._put(cells.dropped + 4, tap.dropped_closed)
        self._put(cells.dropped + 5, tap.dropped_undelivered)
        self._put(cells.matched_io, tap.bytes_matched)
        self._put(cells.tap_io, tap.thread.bytes_flushed)
        self._put(cells.tap_errors, tap.thread.write_errors)
        self._put(cells.flush_time, tap.thread.flush_ns)
        self._put(cells.queue, tap.queued_bytes)
