"""Writer and reader over one mapping, and a processor that is started again."""

import os
from array import array
from types import SimpleNamespace

import pytest

from framegate.proxy.cells import METRICS, CellLayout, CellReader, CellWriter, HistogramValue, State, create, enlarge


def _config(*listeners: str) -> SimpleNamespace:
    upstream = SimpleNamespace(name="u", addresses=("[::1]:9092", "unix:/u.sock"))
    return SimpleNamespace(listeners=[SimpleNamespace(name=name) for name in listeners], upstreams=[upstream])


def _metric(name: str):
    return next(metric for metric in METRICS if metric.name == name)


@pytest.fixture
def layout() -> CellLayout:
    return CellLayout.of(_config("kafka", "plain"))


@pytest.fixture
def descriptor(layout: CellLayout):
    descriptor = create(layout)
    yield descriptor
    os.close(descriptor)


def test_values_cross_the_mapping_in_their_units(layout, descriptor):
    writer, reader = CellWriter(descriptor, layout), CellReader(descriptor, layout)
    image = array("q", writer.start(42, 7, 1000))
    image[layout.index("framegate.connection.closed", "kafka", "peer_closed", "downstream")] = 3
    image[layout.index("framegate.event_loop.time", "busy")] = 2_500_000_000
    start = layout.index("framegate.frame.size", "downstream", "plain")
    image[start + 1], image[start + 12] = 5, 5120
    writer.publish(image)
    writer.state(State.SERVING)
    assert (reader.pid, reader.generation, reader.heartbeat_ns, reader.state) == (42, 7, 1000, State.SERVING)
    snapshot = reader.snapshot()
    closed = _metric("framegate.connection.closed")
    assert snapshot[closed, (("framegate.listener", "kafka"), ("framegate.cause", "peer_closed"), ("framegate.side", "downstream"))] == 3
    assert snapshot[closed, (("framegate.listener", "plain"), ("framegate.cause", "peer_closed"), ("framegate.side", "downstream"))] == 0
    assert snapshot[_metric("framegate.event_loop.time"), (("framegate.state", "busy"),)] == 2.5
    sizes = snapshot[_metric("framegate.frame.size"), (("framegate.side", "downstream"), ("framegate.listener", "plain"))]
    assert isinstance(sizes, HistogramValue)
    assert sizes.buckets[1] == sizes.count == 5
    assert sizes.sum == 5120
    assert len(sizes.buckets) == 12


def test_an_empty_attribute_value_means_that_the_attribute_is_absent(layout, descriptor):
    reader = CellReader(descriptor, layout)
    keys = [attributes for metric, attributes in reader.snapshot() if metric.name == "framegate.connection.duration"]
    assert (("framegate.side", "downstream"),) in keys
    assert (("framegate.side", "downstream"), ("error.type", "frame_too_large")) in keys


def test_a_restarted_processor_counts_on_and_its_gauges_are_zero(layout, descriptor):
    accepted, active = layout.index("framegate.connection.accepted", "kafka"), layout.index("framegate.connection.active", "downstream", "kafka")
    first = CellWriter(descriptor, layout)
    image = array("q", first.start(1, 1, 10))
    image[accepted], image[active] = 9, 4
    first.publish(image)
    values = CellWriter(descriptor, layout).start(2, 2, 20)
    assert (values[accepted], values[active]) == (9, 0)
    reader = CellReader(descriptor, layout)
    assert (reader.pid, reader.generation, reader.heartbeat_ns, reader.state) == (2, 2, 20, State.STARTING)


def test_control_zeroes_the_gauges_of_a_dead_processor(layout, descriptor):
    writer, reader = CellWriter(descriptor, layout), CellReader(descriptor, layout)
    image = array("q", [1] * layout.count)
    writer.publish(image)
    reader.zero_gauges()
    assert reader.cell("framegate.connection.active", "upstream", "plain") == 0
    assert reader.cell("framegate.connection.accepted", "plain") == 1
    assert reader.state == State.STOPPED


def test_a_mapping_that_is_too_small_or_none_of_cells_is_refused(descriptor, tmp_path):
    larger = CellLayout.of(_config("kafka", "plain", "third"))
    with pytest.raises(ValueError, match="greater than file size"):
        CellReader(descriptor, larger)
    with open(tmp_path / "zeros", "w+b") as file:
        file.truncate(larger.size)
        with pytest.raises(ValueError, match="no cells"):
            CellReader(file.fileno(), larger)


def test_a_writer_follows_another_layout_and_counts_on_for_those_who_stay(layout, descriptor):
    writer = CellWriter(descriptor, layout)
    writer.start(7, 1, 5)
    writer.publish(array("q", [2] * layout.count))
    second = CellWriter(descriptor, layout)
    second.start(8, 2, 5)
    former, other = CellReader.sum_of([CellReader(descriptor, layout)]), layout.after(_config("plain", "third"))
    enlarge(descriptor, other)
    second.follow(other, second.map(other))
    second.publish(array("q", second.base))
    reader = CellReader(descriptor, other)
    for found in (reader, former.following(other)):
        assert (found.cell("framegate.connection.accepted", "plain"), found.cell("framegate.connection.accepted", "third")) == (2, 0)
    assert (reader.pid, reader.generation) == (8, 2)
    assert not any(any(reader.cells()[start:end]) for start, end in other.moved(layout)), "what is free holds nothing"


def test_slots_without_a_processor_are_summed_for_good(layout, descriptor):
    writer, reader = CellWriter(descriptor, layout), CellReader(descriptor, layout)
    writer.start(7, 1, 5)
    writer.publish(array("q", [2] * layout.count))
    once = CellReader.sum_of([reader])
    total = CellReader.sum_of([once, reader])
    writer.publish(array("q", [9] * layout.count))
    assert total.cell("framegate.connection.accepted", "plain") == 4
    assert total.snapshot()[_metric("framegate.event_loop.lag"), ()].buckets == (4,) * 15
    assert total.cell("framegate.connection.active", "upstream", "plain") == 0
    assert (total.pid, total.heartbeat_ns) == (0, 0)
