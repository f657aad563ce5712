"""Processors are summed; what is the same in each is not."""

import dataclasses
from array import array

import pytest

from framegate.control.telemetry.fold import PER_WORKER, WORKER, Fold
from framegate.proxy.cells import HistogramValue
from framegate.proxy.config.model import MAX_PROCESSORS
from tests.fakes.cells import fill
from tests.fakes.plane import FakePlane, fake_config

ENDPOINT = ("brokers", "broker", "9092", "")


def test_counters_of_all_processors_are_summed(plane: FakePlane) -> None:
    key = ("framegate.frame.count", "downstream", "receive", "kafka")
    fill(plane, 0, {key: 3})
    fill(plane, 1, {key: 4})
    attributes = (("framegate.side", "downstream"), ("network.io.direction", "receive"), ("framegate.listener", "kafka"))
    assert Fold(plane).end().points["framegate.frame.count"][attributes] == 7


def test_endpoints_are_not_summed_and_the_processor_that_leaves_most_out_counts(plane: FakePlane) -> None:
    for slot in (0, 1):
        fill(plane, slot, {("framegate.upstream.endpoint.count", *ENDPOINT): 3})
    fill(plane, 1, {("framegate.upstream.endpoint.down", *ENDPOINT): 2})
    points = Fold(plane).end().points
    name = (("framegate.upstream", "brokers"), ("server.address", ENDPOINT[1]), ("server.port", ENDPOINT[2]))
    assert (points["framegate.upstream.endpoint.count"][name], points["framegate.upstream.endpoint.down"][name]) == (3, 2)


def test_the_time_of_event_loops_is_counted_by_processor(plane: FakePlane) -> None:
    for slot in (0, 1):
        fill(plane, slot, {("framegate.event_loop.time", "busy"): (slot + 1) * 10**9})
    points = Fold(plane).end().points["framegate.event_loop.time"]
    assert [points[("framegate.state", "busy"), (WORKER, str(slot))] for slot in (0, 1)] == [1.0, 2.0]


def test_slots_that_are_gone_stay_in_the_sums_as_one(plane: FakePlane) -> None:
    key = ("framegate.frame.size", "downstream", "plain")
    for slot in (0, 1):
        fill(plane, slot, {("framegate.event_loop.time", "busy"): 10**9, ("framegate.read.count", "downstream", "plain"): 4, key: [1]})
    before = Fold(plane).end()
    plane.retire(1)
    after = Fold(plane).end()
    reads = (("framegate.side", "downstream"), ("framegate.listener", "plain"))
    assert [folded.points["framegate.read.count"][reads] for folded in (before, after)] == [8, 8]
    assert after.histograms["framegate.frame.size"][reads].count == 2
    busy = {dict(attributes)[WORKER] for attributes in after.points["framegate.event_loop.time"]}
    assert busy == {"0", "retired"}


def test_histograms_are_summed_bucket_by_bucket(plane: FakePlane) -> None:
    key = ("framegate.frame.size", "downstream", "plain")
    fill(plane, 0, {key: [1, 2, *[0] * 9, 1, 1000]})
    fill(plane, 1, {key: [1, 0, *[0] * 9, 0, 24]})
    value = Fold(plane).end().histograms["framegate.frame.size"][("framegate.side", "downstream"), ("framegate.listener", "plain")]
    assert value == HistogramValue((2, 2, *[0] * 9, 1), 1024)


def test_a_sum_of_many_slots_is_that_of_their_snapshots() -> None:
    config = dataclasses.replace(fake_config("unix:unused", None), processors=MAX_PROCESSORS)
    plane = FakePlane(config)
    try:
        for slot, writer in enumerate(plane.writers):
            writer.publish(array("q", [slot * 7 + index for index in range(plane.layout.count)]))
        plane.retire(MAX_PROCESSORS - 1)
        folded = Fold(plane).end()
        snapshots = [reader.snapshot() for _, reader in plane.cells]
        for row in plane.layout.rows:
            if row.metric.kind != "counter" or row.metric.name in PER_WORKER or not row.metric.exported:
                continue
            expected = sum(snapshot[row.metric, row.attributes] for snapshot in snapshots)  # type: ignore[misc]
            assert folded.points[row.metric.name][row.attributes] == pytest.approx(expected)
    finally:
        plane.close()


def test_a_slot_that_is_gone_meanwhile_can_be_read_still(plane: FakePlane, monkeypatch: pytest.MonkeyPatch) -> None:
    key = ("framegate.tap.io",)
    for slot in (0, 1):
        fill(plane, slot, {key: slot + 1})
    listed = plane.cells
    plane.retire(1)
    plane.close()
    monkeypatch.setattr(FakePlane, "cells", property(lambda self: listed))
    assert Fold(plane).end().points["framegate.tap.io"][()] == 3


def test_a_cell_that_overflows_changes_no_other(plane: FakePlane) -> None:
    full = [index % 3 == 0 for index in range(plane.layout.count)]
    for writer in plane.writers:
        writer.publish(array("q", [2**63 - 1 if is_full else 1 for is_full in full]))
    points = Fold(plane).end().points
    counters = [row for row in plane.layout.rows if row.metric.kind == "counter" and row.metric.exported and row.metric.name not in PER_WORKER]
    small = [row for row in counters if not full[row.index]]
    assert {points[row.metric.name][row.attributes] for row in small if row.metric.scale == 1.0} == {len(plane.writers)}
    assert {points[row.metric.name][row.attributes] for row in counters if full[row.index] and row.metric.scale == 1.0} == {-2}
