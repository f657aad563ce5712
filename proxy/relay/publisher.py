"""Copies counters into the shared cells.

Counts in ``Counts`` are copied block by block. Counts in attributes of other packages (sides of channels, memory pool, tap) are put into the blocks
here, at constant positions.
"""

from typing import Final

from librt.vecs import vec
from mypy_extensions import i64

from framegate.proxy.cells import (
    APPEND_ERRORS,
    ENDPOINT_BLOCK,
    LISTENER_BLOCK,
    MEASURED_APIS,
    MUTE_CAUSES,
    PROCESSOR_BLOCK,
    SIDE_BLOCK,
    SIDES,
    UPSTREAM_BLOCK,
    CellLayout,
    CellWriter,
)
from framegate.proxy.network.memory_pool import MemoryPool
from framegate.proxy.network.receive import ReceiveLimit
from framegate.proxy.network.stats import Histogram, SideStats
from framegate.proxy.relay.counters import Counters, Counts, ListenerCounters
from framegate.proxy.tap.record import DIRECTIONS
from framegate.proxy.tap.tallies import Reserve, Tally
from framegate.proxy.tap.writer import TapWriter

HEADER_BYTES: Final = 4

FRAMES_RECEIVED: Final = SIDE_BLOCK.at("framegate.frame.count", "receive")
FRAMES_SENT: Final = SIDE_BLOCK.at("framegate.frame.count", "transmit")
BYTES_RECEIVED: Final = SIDE_BLOCK.at("framegate.io", "receive")
BYTES_SENT: Final = SIDE_BLOCK.at("framegate.io", "transmit")
READS: Final = SIDE_BLOCK.at("framegate.read.count")
WRITES: Final = SIDE_BLOCK.at("framegate.write.count")
TOO_LARGE: Final = SIDE_BLOCK.at("framegate.frame.rejected", "frame_too_large")
NEGATIVE: Final = SIDE_BLOCK.at("framegate.frame.rejected", "negative_size")
INCOMPLETE: Final = SIDE_BLOCK.at("framegate.frame.rejected", "incomplete")
THROTTLE_TIME: Final = SIDE_BLOCK.at("framegate.throttle.time")
THROTTLE: Final = MUTE_CAUSES.index("throttle")
CUT_SHORT: Final = SIDE_BLOCK.at("framegate.frame.cut_short")
SIZES: Final = SIDE_BLOCK.at("framegate.frame.size")

LIMIT: Final = LISTENER_BLOCK.at("framegate.frame.size.limit")
POOL_USAGE: Final = LISTENER_BLOCK.at("framegate.memory_pool.listener.usage")
REQUESTS_OPEN: Final = LISTENER_BLOCK.at("framegate.kafka.request.open")
KAFKA_IO: Final = LISTENER_BLOCK.at("framegate.kafka.request.io", MEASURED_APIS[0])
PAIRING_LOST: Final = LISTENER_BLOCK.at("framegate.kafka.pairing_lost")
TAP_SEEN: Final = tuple(LISTENER_BLOCK.at("framegate.tap.seen", direction) for direction in DIRECTIONS)
TAP_RESERVED: Final = tuple(LISTENER_BLOCK.at("framegate.tap.reserved", direction) for direction in DIRECTIONS)

PENDING: Final = SIDE_BLOCK.at("framegate.channel.pending")
MUTED: Final = PROCESSOR_BLOCK.at("framegate.channel.muted")
MUTES: Final = PROCESSOR_BLOCK.at("framegate.channel.mute.count")
MUTE_TIME: Final = PROCESSOR_BLOCK.at("framegate.channel.mute.time")

POOL_LIMIT: Final = PROCESSOR_BLOCK.at("framegate.memory_pool.limit", "frames")
POOL_BEGUN: Final = PROCESSOR_BLOCK.at("framegate.memory_pool.usage", "frames", "begun")
POOL_PENDING: Final = PROCESSOR_BLOCK.at("framegate.memory_pool.usage", "frames", "pending")
POOL_TLS: Final = PROCESSOR_BLOCK.at("framegate.memory_pool.usage", "frames", "tls")
POOL_WAITING: Final = PROCESSOR_BLOCK.at("framegate.memory_pool.waiting", "frames")
POOL_EVICTED: Final = PROCESSOR_BLOCK.at("framegate.memory_pool.evicted", "frames")
POOL_DEPLETED: Final = PROCESSOR_BLOCK.at("framegate.memory_pool.depleted.time", "frames")
POOL_MOST_USED: Final = PROCESSOR_BLOCK.at("framegate.memory_pool.usage.max", "frames")
POOL_SHORTAGES: Final = PROCESSOR_BLOCK.at("framegate.memory_pool.depleted.count", "frames")
POOL_REFUSED: Final = PROCESSOR_BLOCK.at("framegate.memory_pool.refused", "frames")
POOL_WAITS: Final = PROCESSOR_BLOCK.at("framegate.memory_pool.wait.duration", "frames")

TAP_MATCHED: Final = PROCESSOR_BLOCK.at("framegate.tap.matched")
TAP_FLUSHED: Final = PROCESSOR_BLOCK.at("framegate.tap.flushed")
TAP_REQUESTS: Final = PROCESSOR_BLOCK.at("framegate.tap.frames", "request")
TAP_RESPONSES: Final = PROCESSOR_BLOCK.at("framegate.tap.frames", "response")
TAP_QUEUE_FULL: Final = PROCESSOR_BLOCK.at("framegate.tap.dropped", "queue_full")
TAP_DISK_FULL: Final = PROCESSOR_BLOCK.at("framegate.tap.dropped", "disk_full")
TAP_DISK_ERROR: Final = PROCESSOR_BLOCK.at("framegate.tap.dropped", "disk_error")
TAP_SAMPLED: Final = PROCESSOR_BLOCK.at("framegate.tap.dropped", "sampled")
TAP_CLOSED: Final = PROCESSOR_BLOCK.at("framegate.tap.dropped", "closed")
TAP_UNDELIVERED: Final = PROCESSOR_BLOCK.at("framegate.tap.dropped", "undelivered")
TAP_ENDS: Final = PROCESSOR_BLOCK.at("framegate.tap.connection.dropped")
TAP_MATCHED_BYTES: Final = PROCESSOR_BLOCK.at("framegate.tap.matched.io")
TAP_BYTES: Final = PROCESSOR_BLOCK.at("framegate.tap.io")
TAP_ERRORS: Final = PROCESSOR_BLOCK.at("framegate.tap.write.errors")
TAP_APPENDS: Final = tuple(PROCESSOR_BLOCK.at("framegate.tap.append.duration", error) for error in APPEND_ERRORS)
TAP_QUEUE: Final = PROCESSOR_BLOCK.at("framegate.queue.usage", "tap")
TAP_BLOCKS: Final = PROCESSOR_BLOCK.at("framegate.queue.length", "tap")


class CellReserve(Reserve):
    """Stores what tallies reserve in their cells, at once."""

    def __init__(self, writer: CellWriter) -> None:
        self._writer = writer

    def reserve(self, tally: Tally) -> None:
        index = self._writer.layout.start(LISTENER_BLOCK, tally.listener) + TAP_RESERVED[tally.direction]
        self._writer.put(index, self._writer.base[index] + int(tally.reserved))


class _Placed:
    """The counts of a block, and its first cell."""

    def __init__(self, counts: Counts, start: i64) -> None:
        self.counts: Final = counts
        self.start: Final[i64] = start


class Publisher:
    """Copies counters into the cells: fills an image of all cells, then stores it with one copy. ``tap``: the tap's writer, or None."""

    def __init__(self, writer: CellWriter, counters: Counters, limits: dict[str, ReceiveLimit], pool: MemoryPool, tap: TapWriter | None) -> None:
        self._writer = writer
        self._counters = counters
        self._pool = pool
        self._tap = tap
        self._tallied: list[Counts] = []  # by position of the tally
        self._by_name: dict[str, ListenerCounters] = {}
        self.place(limits)

    def place(self, limits: dict[str, ReceiveLimit]) -> None:
        """Find the places of all counters in the layout of the writer, after it has changed. ``limits``: of each listener."""
        counters, start, base = self._counters, self._writer.layout.start, self._writer.base
        self._keep_sums(base)
        self._base: vec[i64] = vec[i64](base)
        self._image: vec[i64] = vec[i64](base)
        self._by_name = dict(counters.listeners)
        self._listeners = list(counters.listeners.values())
        self._limits = [limits[name] for name in counters.listeners]
        processor = start(PROCESSOR_BLOCK)
        self._placed = [_Placed(counters.loop.counts, processor)]
        for name, listener in counters.listeners.items():
            self._placed.append(_Placed(listener.counts, start(LISTENER_BLOCK, name)))
            for side, counts in zip(SIDES, (listener.downstream_counts, listener.upstream_counts), strict=True):
                self._placed.append(_Placed(counts, start(SIDE_BLOCK, name, side)))
        self._measured: list[tuple[Histogram, i64]] = [(self._pool.waits, processor + POOL_WAITS)]  # elsewhere
        if self._tap is not None:
            self._measured += [(self._tap.thread.appends[number], processor + at) for number, at in enumerate(TAP_APPENDS)]
        self._placed += [_Placed(upstream.counts, start(UPSTREAM_BLOCK, name)) for name, upstream in counters.upstreams.items()]
        self._placed += [_Placed(endpoint.counts, start(ENDPOINT_BLOCK, *place[1:])) for place, endpoint in counters.endpoints.items()]
        self._sizes = [  # of frames: the network layer has their buckets
            (stats, start(SIDE_BLOCK, name, side) + SIZES)
            for name, listener in counters.listeners.items()
            for side, stats in zip(SIDES, (listener.downstream, listener.upstream), strict=True)
        ]

    def map(self, layout: CellLayout) -> object:
        """The mapping for ``follow``; errors as of ``CellWriter.map``."""
        return self._writer.map(layout)

    def follow(self, layout: CellLayout, mapping: object, limits: dict[str, ReceiveLimit]) -> None:
        """Publish into another layout, which was made from the present one. ``limits``: of each listener."""
        self._writer.follow(layout, mapping)
        self.place(limits)

    def _keep_sums(self, base: list[int]) -> None:
        """Keep the part of listeners that are gone in the processor's sums over all listeners, which must not decrease."""
        for name, counters in self._by_name.items():
            if name in self._counters.listeners:
                continue
            for stats in (counters.downstream, counters.upstream):
                for cause in range(i64(len(MUTE_CAUSES))):
                    base[MUTES + cause] += int(stats.mutes[cause])
                    base[MUTE_TIME + cause] += int(stats.mute_ns[cause])

    def publish(self) -> None:
        cells = self._counters.loop.counts.cells
        for cause in range(i64(len(MUTE_CAUSES))):
            cells[MUTED + cause] = 0
            cells[MUTES + cause] = 0
            cells[MUTE_TIME + cause] = 0
        for number in range(i64(len(self._listeners))):
            self._fill_listener(self._listeners[number], self._limits[number], cells)
        self._fill_pool(cells)
        if self._tap is not None:
            self._fill_tap(self._tap, cells)
        for placed in self._placed:
            self._put_counts(placed.counts, placed.start)
        for stats, start in self._sizes:
            self._put_all(start, stats.frame_sizes)
            self._put(start + i64(len(stats.frame_sizes)), stats.bytes_received - HEADER_BYTES * stats.frames_received)
        for histogram, at in self._measured:
            self._put_histogram(histogram, at)
        self._writer.publish(self._image)

    def _put(self, index: i64, value: i64) -> None:
        self._image[index] = self._base[index] + value

    def _put_all(self, index: i64, values: "vec[i64]") -> None:
        image, base = self._image, self._base
        for offset in range(i64(len(values))):
            image[index + offset] = base[index + offset] + values[offset]

    def _put_counts(self, counts: Counts, start: i64) -> None:
        self._put_all(start, counts.cells)
        for histogram in counts.histograms:
            self._put_histogram(histogram, start + histogram.offset)

    def _put_histogram(self, histogram: Histogram, index: i64) -> None:
        if histogram.count != 0:
            self._put_all(index, histogram.buckets)
            self._put(index + i64(len(histogram.buckets)), histogram.sum)

    def _fill_listener(self, counters: ListenerCounters, limit: ReceiveLimit, processor: "vec[i64]") -> None:
        self._fill_side(counters.downstream, counters.downstream_counts.cells, processor)
        self._fill_side(counters.upstream, counters.upstream_counts.cells, processor)
        cells, pairing = counters.counts.cells, counters.pairing
        cells[LIMIT] = limit.value
        cells[POOL_USAGE] = 0 if counters.account is None else counters.account.used
        cells[REQUESTS_OPEN] = pairing.open
        io = pairing.io
        for number in range(i64(len(io))):
            cells[KAFKA_IO + number] = io[number]
        cells[PAIRING_LOST] = pairing.lost

    def _fill_side(self, stats: SideStats, cells: "vec[i64]", processor: "vec[i64]") -> None:
        cells[PENDING] = stats.pending
        cells[FRAMES_RECEIVED] = stats.frames_received
        cells[FRAMES_SENT] = stats.frames_sent
        cells[BYTES_RECEIVED] = stats.bytes_received
        cells[BYTES_SENT] = stats.bytes_sent
        cells[READS] = stats.reads
        cells[WRITES] = stats.writes
        cells[TOO_LARGE] = stats.refused_too_large
        cells[NEGATIVE] = stats.refused_negative
        cells[INCOMPLETE] = stats.refused_incomplete
        cells[CUT_SHORT] = stats.cut_short
        cells[THROTTLE_TIME] = stats.mute_ns[THROTTLE]
        for cause in range(i64(len(MUTE_CAUSES))):
            processor[MUTED + cause] += stats.muted[cause]
            processor[MUTES + cause] += stats.mutes[cause]
            processor[MUTE_TIME + cause] += stats.mute_ns[cause]

    def _fill_pool(self, cells: "vec[i64]") -> None:
        pool = self._pool
        cells[POOL_LIMIT] = pool.size
        cells[POOL_BEGUN] = pool.begun
        cells[POOL_PENDING] = pool.pending
        cells[POOL_TLS] = pool.tls
        cells[POOL_WAITING] = pool.waiting
        cells[POOL_EVICTED] = pool.evicted
        cells[POOL_DEPLETED] = pool.depleted_total_ns()
        cells[POOL_MOST_USED] = pool.most_used
        cells[POOL_SHORTAGES] = pool.shortages
        cells[POOL_REFUSED] = pool.refused

    def _fill_tap(self, tap: TapWriter, cells: "vec[i64]") -> None:
        for number in range(i64(len(tap.tallies.all))):
            tally = tap.tallies.all[number]
            if number == i64(len(self._tallied)):
                self._tallied.append(self._counters.listeners[tally.listener].counts)
            of_listener = self._tallied[number].cells
            of_listener[TAP_SEEN[tally.direction]] = tally.frames
            of_listener[TAP_RESERVED[tally.direction]] = tally.reserved
        cells[TAP_MATCHED] = tap.frames_matched
        cells[TAP_FLUSHED] = tap.thread.frames_flushed_request + tap.thread.frames_flushed_response + tap.thread.frames_gapped
        cells[TAP_REQUESTS] = tap.thread.frames_flushed_request
        cells[TAP_RESPONSES] = tap.thread.frames_flushed_response
        cells[TAP_QUEUE_FULL] = tap.dropped_queue_full
        cells[TAP_DISK_FULL] = tap.dropped_disk_full
        cells[TAP_DISK_ERROR] = tap.dropped_disk_error
        cells[TAP_SAMPLED] = tap.dropped_sampled
        cells[TAP_CLOSED] = tap.dropped_closed
        cells[TAP_UNDELIVERED] = tap.dropped_undelivered
        cells[TAP_ENDS] = tap.dropped_ends
        cells[TAP_MATCHED_BYTES] = tap.bytes_matched
        cells[TAP_BYTES] = tap.thread.bytes_flushed
        cells[TAP_ERRORS] = tap.thread.write_errors
        cells[TAP_QUEUE] = tap.queued_bytes
        cells[TAP_BLOCKS] = tap.thread.handed - tap.thread.settled
