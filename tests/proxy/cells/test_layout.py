"""Where cells lie follows from names alone."""

from types import SimpleNamespace

import pytest

from framegate.proxy.cells import (
    CELL_SIZE,
    HEADER_SIZE,
    LISTENER,
    LISTENER_BLOCK,
    METRICS,
    PROCESSOR_BLOCK,
    SIDE_BLOCK,
    UPSTREAM_BLOCK,
    CellLayout,
)
from tests.fakes.cases import each_of


def _config(*listeners: str) -> SimpleNamespace:
    return SimpleNamespace(listeners=[SimpleNamespace(name=name) for name in listeners], upstreams=[SimpleNamespace(name="u")])


@pytest.fixture
def layout() -> CellLayout:
    return CellLayout.of(_config("kafka", "plain"))


def test_names_that_stay_keep_their_places_and_a_free_place_is_used_one_layout_later(layout):
    assert layout.after(_config("plain", "kafka")) is layout
    at = {name: layout.start(LISTENER_BLOCK, name) for name in ("kafka", "plain")}
    more = layout.after(_config("kafka", "plain", "new"))
    assert {name: more.start(LISTENER_BLOCK, name) for name in at} == at
    assert more.moved(layout) == [(layout.count, more.count)]
    fewer = more.after(_config("plain", "other"), kept={(LISTENER, "new")})
    assert fewer.names(LISTENER) == ["plain", "new", "other"], "the place of kafka is free, and not used yet"
    assert fewer.start(LISTENER_BLOCK, "other") == more.count
    with pytest.raises(KeyError):
        fewer.start(LISTENER_BLOCK, "kafka")
    again = fewer.after(_config("plain", "other", "third"))
    assert again.start(LISTENER_BLOCK, "third") == at["kafka"]
    assert (again.count, CellLayout([(kind, name) for kind, name in again.wire]).places) == (fewer.count, again.places)
    first, end = again.moved(fewer)[0]
    assert (first, again.start(SIDE_BLOCK, "third", "upstream") + SIDE_BLOCK.size) == (at["kafka"], end)


def test_a_hundred_names_that_come_and_go_need_no_more_cells_than_two_at_a_time():
    layout, most = CellLayout.of(_config("0")), 0
    for number in range(1, 100):
        layout = layout.after(_config(str(number)))
        most = max(most, layout.count)
    assert most == CellLayout.of(_config("a", "b")).count


def test_rows_cover_the_cells_without_gap_or_overlap(layout):
    end = 0
    for index, count in sorted((row.index, row.count) for row in layout.rows):
        assert index == end
        end += count
    assert end == layout.count
    assert layout.size == HEADER_SIZE + layout.count * CELL_SIZE


def test_rows_are_in_the_order_of_the_table(layout):
    declared = [metric.name for metric in METRICS if metric.source == "processor"]
    assert list(dict.fromkeys(row.metric.name for row in layout.rows if row.metric.exported)) == declared


def test_a_cell_is_where_its_block_begins_and_the_table_says(layout):
    for block, owner, name, values in (
        (PROCESSOR_BLOCK, (), "framegate.event_loop.time", ("idle",)),
        (LISTENER_BLOCK, ("plain",), "framegate.connection.closed", ("idle",)),
        (UPSTREAM_BLOCK, ("u",), "framegate.upstream.endpoint.down", ()),
    ):
        assert layout.start(block, *owner) + block.at(name, *values) == layout.index(name, *owner, *values)
    at = layout.start(SIDE_BLOCK, "plain", "upstream") + SIDE_BLOCK.at("framegate.io", "transmit")
    assert at == layout.index("framegate.io", "upstream", "transmit", "plain")
    assert [row for row in layout.rows if layout.index(row.metric.name, *row.values) != row.index] == []
    for unknown in (("framegate.no",), ("framegate.io", "upstream", "transmit"), ("framegate.io", "upstream", "transmit", "nobody")):
        with pytest.raises(KeyError):
            layout.index(*unknown)


def test_the_values_of_the_last_attribute_lie_one_after_the_other():
    for block in (PROCESSOR_BLOCK, LISTENER_BLOCK):
        name = "framegate.processor.errors" if block is PROCESSOR_BLOCK else "framegate.connection.closed"
        assert [block.at(name, value) for value in block.values(name)] == [block.at(name) + number for number in range(len(block.values(name)))]


def test_histograms_come_last():
    kinds = {
        (block.at(name) < block.count, block.metric(name).kind == "histogram")
        for block, name in ((SIDE_BLOCK, "framegate.frame.size"), (SIDE_BLOCK, "framegate.io"), (PROCESSOR_BLOCK, "framegate.event_loop.lag"))
    }
    assert kinds == {(False, True), (True, False)}


@each_of("asked", [("framegate.nothing",), ("framegate.connection.closed", "nothing"), ("framegate.io", "receive")])
def test_what_is_not_in_a_block_is_an_error(asked):
    with pytest.raises(KeyError):
        LISTENER_BLOCK.at(*asked)
