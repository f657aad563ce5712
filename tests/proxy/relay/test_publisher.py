"""The way into the cells: each count lands in its own."""

import os

import pytest

from framegate.proxy.cause import Cause
from framegate.proxy.cells import (
    EJECTION_REASONS,
    ENDPOINT,
    MEASURED_APIS,
    MEMORY_KINDS,
    SIDES,
    TLS_ERRORS,
    CellLayout,
    CellReader,
    CellWriter,
    HistogramValue,
    create,
)
from framegate.proxy.config.model import ListenerConfig, ProxyConfig, TapConfig, UpstreamConfig
from framegate.proxy.network.admission_slots import AdmissionSlot
from framegate.proxy.network.memory_pool import BEGUN, PENDING, TLS, MemoryPool
from framegate.proxy.network.receive import ReceiveLimit
from framegate.proxy.relay.counters import ERROR_INDEX, HANDSHAKING, Counters
from framegate.proxy.relay.ending import ACTIVE, CLOSED_BY, LOST
from framegate.proxy.relay.opening import ACCEPTED
from framegate.proxy.relay.publisher import Publisher
from framegate.proxy.relay.upstream import CONNECTING, DOWN, EJECTIONS, ENDPOINTS, PROBES, USED
from framegate.proxy.server.loop import BUSY, DRAINING, IDLE, LINK_DROPPED, POLLS
from framegate.proxy.tap.writer import TapWriter
from tests.fakes.admission_slots import Owner

CONFIG = ProxyConfig(
    node="n",
    listeners=(ListenerConfig(name="a", address="x", upstream="u"), ListenerConfig(name="b", address="x", upstream="u")),
    upstreams=(UpstreamConfig(name="u", endpoints=("x:1",)),),
)


PLACE = (ENDPOINT, "u", "x", "1", "")


class Cells:
    def histograms(self, name: str) -> list[HistogramValue]:
        """Of one metric, in the order of the table."""
        return [value for (metric, _), value in self.reader.snapshot().items() if metric.name == name and isinstance(value, HistogramValue)]

    def __init__(self, tap: TapWriter | None = None) -> None:
        self.layout = CellLayout.of(CONFIG)
        self.descriptor = create(self.layout)
        self.reader = CellReader(self.descriptor, self.layout)
        self.pool = MemoryPool(1000, lambda: 0)
        self.tap = tap
        self.begin()

    def begin(self) -> None:
        self.counters = Counters(["a", "b"], ["u"], [PLACE])
        writer = CellWriter(self.descriptor, self.layout)
        writer.start(1, 1, 0)
        limits = {"a": ReceiveLimit(10), "b": ReceiveLimit(20)}
        self.publisher = Publisher(writer, self.counters, limits, self.pool, self.tap)


@pytest.fixture
def cells():
    cells = Cells()
    yield cells
    os.close(cells.descriptor)


def test_each_side_of_each_listener_has_its_own_cells(cells):
    number = 1
    expected = {}
    for name, listener in cells.counters.listeners.items():
        for side, stats in (("downstream", listener.downstream), ("upstream", listener.upstream)):
            stats.frames_received, stats.frames_sent, stats.bytes_received, stats.bytes_sent = number, number + 1, number + 1000, number + 3
            stats.reads, stats.writes = number + 4, number + 5
            stats.refused_too_large, stats.refused_negative, stats.refused_incomplete = number + 6, number + 7, number + 8
            stats.frame_sizes[3] = number + 9
            stats.cut_short = number + 10
            expected |= {
                ("framegate.frame.count", side, "receive", name): number,
                ("framegate.frame.count", side, "transmit", name): number + 1,
                ("framegate.io", side, "receive", name): number + 1000,
                ("framegate.io", side, "transmit", name): number + 3,
                ("framegate.read.count", side, name): number + 4,
                ("framegate.write.count", side, name): number + 5,
                ("framegate.frame.rejected", name, side, "frame_too_large"): number + 6,
                ("framegate.frame.rejected", name, side, "negative_size"): number + 7,
                ("framegate.frame.rejected", name, side, "incomplete"): number + 8,
                ("framegate.frame.cut_short", name, side): number + 10,
            }
            number += 20
        listener.counts.cells[ACCEPTED] = number
        listener.downstream_counts.cells[ACTIVE], listener.upstream_counts.cells[ACTIVE] = number + 1, number + 2
        listener.downstream_counts.cells[LOST], listener.upstream_counts.cells[LOST] = number + 3, number + 4
        listener.pairing.open, listener.pairing.lost = number + 5, number + 7
        listener.pairing.io[0], listener.pairing.io[2 * MEASURED_APIS.index("other") + 1] = number + 6, number + 9
        listener.pairing.durations[1].observe(300_000, number)
        listener.counts.cells[CLOSED_BY[Cause.IDLE, "downstream"]] = number + 8
        expected |= {
            ("framegate.connection.accepted", name): number,
            ("framegate.connection.active", "downstream", name): number + 1,
            ("framegate.connection.active", "upstream", name): number + 2,
            ("framegate.frame.lost.io", name, "downstream"): number + 3,
            ("framegate.frame.lost.io", name, "upstream"): number + 4,
            ("framegate.kafka.request.open", name): number + 5,
            ("framegate.kafka.request.io", name, "Produce", "request"): number + 6,
            ("framegate.kafka.request.io", name, "other", "response"): number + 9,
            ("framegate.kafka.pairing_lost", name): number + 7,
            ("framegate.connection.closed", name, "idle", "downstream"): number + 8,
            ("framegate.frame.size.limit", name): 10 if name == "a" else 20,
        }
        number += 20
    cells.publisher.publish()
    assert {key: cells.reader.cell(key[0], *key[1:]) for key in expected} == expected
    durations = cells.histograms("framegate.kafka.request.duration")
    fetches = [durations[MEASURED_APIS.index("Fetch") + len(MEASURED_APIS) * listener].buckets[:3] for listener in (0, 1)]
    assert fetches == [(0, 41, 0), (0, 101, 0)]


def test_mutes_add_up_over_listeners_and_sides_and_publishing_twice_adds_nothing(cells):
    for index, stats in enumerate((cells.counters.listeners["a"].downstream, cells.counters.listeners["b"].upstream)):
        stats.mutes[5], stats.mute_ns[5], stats.muted[5] = 2 + index, 30 + index, 1
    cells.publisher.publish()
    cells.publisher.publish()
    assert cells.reader.cell("framegate.channel.mute.count", "admin") == 5
    assert cells.reader.cell("framegate.channel.mute.time", "admin") == 61
    assert cells.reader.cell("framegate.channel.muted", "admin") == 2
    assert cells.reader.cell("framegate.channel.mute.count", "peer") == 0


def test_loop_pool_and_upstream_have_their_cells(cells):
    loop, upstream = cells.counters.loop, cells.counters.endpoints[PLACE]
    of_loop, of_upstream = loop.counts.cells, upstream.counts.cells
    of_loop[BUSY], of_loop[IDLE], of_loop[LINK_DROPPED], of_loop[DRAINING] = 1, 2, 3, 1
    of_loop[POLLS] = 18
    of_loop[HANDSHAKING["downstream"]], of_loop[HANDSHAKING["upstream"]] = 4, 5
    loop.lag.observe(50_000)
    loop.downstream_durations[ERROR_INDEX["frame_too_large"]].observe(7)
    loop.upstream_handshakes[1].observe(8)
    of_upstream[CONNECTING], of_upstream[USED] = 6, 7
    of_upstream[ENDPOINTS], of_upstream[DOWN], of_upstream[PROBES] = 12, 13, 14
    of_upstream[EJECTIONS["refused"]], of_upstream[EJECTIONS["other"]] = 15, 16
    upstream.durations[2].observe(9)
    for kind, size in ((BEGUN, 1006), (PENDING, 3000), (TLS, 2)):
        cells.pool.common.charge(kind, size)
    cells.pool.evicted = 17
    waiting = AdmissionSlot(cells.pool.requests, Owner(), 1000)
    assert not waiting.ask(1000)
    cells.publisher.publish()
    read = cells.reader.cell
    assert (read("framegate.event_loop.time", "busy"), read("framegate.event_loop.time", "idle")) == (1, 2)
    assert (read("framegate.link.dropped"), read("framegate.draining"), read("framegate.event_loop.polls")) == (3, 1, 18)
    assert (read("framegate.tls.handshake.active", "downstream"), read("framegate.tls.handshake.active", "upstream")) == (4, 5)
    assert read("framegate.event_loop.lag") == 1
    assert read("framegate.connection.duration", "downstream", "frame_too_large") == 1
    assert read("framegate.tls.handshake.duration", "upstream", TLS_ERRORS[1]) == 1
    assert (
        read("framegate.upstream.connection.count", *PLACE[1:], "connecting"),
        read("framegate.upstream.connection.count", *PLACE[1:], "used"),
    ) == (6, 7)
    assert read("framegate.upstream.connect.duration", *PLACE[1:], "timeout") == 1
    assert [read(f"framegate.upstream.endpoint.{name}", *PLACE[1:]) for name in ("count", "down", "probes")] == [12, 13, 14]
    assert [read("framegate.upstream.endpoint.ejections", *PLACE[1:], error) for error in EJECTION_REASONS[:4]] == [15, 0, 0, 16]
    assert read("framegate.memory_pool.limit", "frames") == 1000
    assert [read("framegate.memory_pool.usage", "frames", kind) for kind in MEMORY_KINDS] == [1006, 3000, 2]
    assert (read("framegate.memory_pool.waiting", "frames"), read("framegate.memory_pool.evicted", "frames")) == (1, 17)
    waiting.leave()


def test_what_others_measure_lies_where_the_table_says(cells, tmp_path):
    """The pool's and the tap's histograms, and those of a duration of 0."""
    cells.pool.waits.observe(3_000_000)
    cells.counters.loop.authentications[2].observe(0)
    cells.publisher.publish()
    (waits,) = cells.histograms("framegate.memory_pool.wait.duration")
    assert (waits.buckets[:4], waits.count, waits.sum) == ((0, 0, 1, 0), 1, 0.003)
    assert [value.count for value in cells.histograms("framegate.authentication.duration")] == [0, 0, 1, 0, 0]
    tap = TapWriter(TapConfig(directory=str(tmp_path)), "n", "0", "b")
    for number, histogram in enumerate(tap.thread.appends):
        histogram.observe(1000, number + 1)
    tap.thread.handed, tap.thread.settled = 9, 4
    cells.tap = tap
    cells.begin()
    cells.publisher.publish()
    assert [value.count for value in cells.histograms("framegate.tap.append.duration")] == [1, 2, 3]
    assert cells.histograms("framegate.memory_pool.wait.duration")[0].count == 2, "the same pool beside a processor that is started again"
    assert cells.reader.cell("framegate.queue.length", "tap") == 5


def test_channels_whose_peers_are_slow_add_up_and_each_listener_has_its_part_of_the_pool(cells):
    first, second = cells.counters.listeners["a"], cells.counters.listeners["b"]
    first.downstream.pending, second.downstream.pending, second.upstream.pending = 1, 2, 4
    second.account = cells.pool.account(10)
    second.account.charge(BEGUN, 77)
    cells.publisher.publish()
    cells.publisher.publish()
    assert [cells.reader.cell("framegate.channel.pending", side, name) for side in SIDES for name in "ab"] == [1, 2, 0, 4]
    assert [cells.reader.cell("framegate.memory_pool.listener.usage", name) for name in ("a", "b")] == [0, 77]


def test_a_restarted_processor_counts_on(cells):
    cells.counters.listeners["a"].counts.cells[ACCEPTED] = 5
    cells.counters.listeners["a"].downstream_counts.cells[ACTIVE] = 2
    cells.publisher.publish()
    cells.begin()
    cells.counters.listeners["a"].counts.cells[ACCEPTED] = 3
    cells.publisher.publish()
    assert cells.reader.cell("framegate.connection.accepted", "a") == 8
    assert cells.reader.cell("framegate.connection.active", "downstream", "a") == 0


def test_the_taps_counters_have_their_cells(tmp_path):
    tap = TapWriter(TapConfig(directory=str(tmp_path)), "n", "0", "b")
    cells = Cells(tap)
    tap.tallies.of("a", 0).frames, tap.tallies.of("a", 1).frames, tap.tallies.of("a", 0).bytes = 100, 10, 6
    tap.tallies.of("a", 0).reserved = 164
    tap.thread.frames_flushed_request, tap.thread.frames_flushed_response, tap.thread.frames_gapped = 50, 5, 2
    tap.dropped_queue_full, tap.dropped_disk_full, tap.dropped_disk_error = 1, 2, 3
    tap.dropped_sampled, tap.dropped_closed, tap.dropped_undelivered = 4, 5, 6
    tap.thread.bytes_flushed, tap.thread.write_errors, tap.dropped_ends = 7, 8, 9
    cells.publisher.publish()
    read = cells.reader.cell
    assert (read("framegate.tap.seen", "a", "request"), read("framegate.tap.seen", "a", "response")) == (100, 10)
    assert read("framegate.tap.reserved", "a", "request") == 164
    assert (read("framegate.tap.matched"), read("framegate.tap.flushed")) == (110, 57)
    assert (read("framegate.tap.frames", "request"), read("framegate.tap.frames", "response")) == (50, 5)
    reasons = ("queue_full", "disk_full", "disk_error", "sampled", "closed", "undelivered")
    assert [read("framegate.tap.dropped", reason) for reason in reasons] == [1, 2, 3, 4, 5, 6]
    assert read("framegate.tap.connection.dropped") == 9
    assert (read("framegate.tap.matched.io"), read("framegate.tap.io"), read("framegate.tap.write.errors")) == (6, 7, 8)
    assert read("framegate.queue.usage", "tap") == tap.queued_bytes
    os.close(cells.descriptor)
