"""Where cells lie follows from names alone."""

from types import SimpleNamespace

import pytest

from framegate.proxy.cells import (
    CELL_SIZE,
    ENDPOINT,
    ENDPOINT_BLOCK,
    HEADER_SIZE,
    LISTENER,
    LISTENER_BLOCK,
    METRICS,
    OTHERS,
    PROCESSOR_BLOCK,
    SIDE_BLOCK,
    UPSTREAM,
    UPSTREAM_BLOCK,
    CellLayout,
    broker_place,
)
from tests.fakes.cases import each_of


def _config(*listeners: str) -> SimpleNamespace:
    upstream = SimpleNamespace(name="u", addresses=("[::1]:9092", "unix:/u.sock"))
    return SimpleNamespace(listeners=[SimpleNamespace(name=name) for name in listeners], upstreams=[upstream])


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
    assert (again.count, CellLayout([tuple(place) for place in again.wire]).places) == (fewer.count, again.places)
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
        (LISTENER_BLOCK, ("plain",), "framegate.connection.closed", ("idle", "downstream")),
        (UPSTREAM_BLOCK, ("u",), "framegate.upstream.authentication.count", ("PLAIN", "denied")),
        (ENDPOINT_BLOCK, ("u", "::1", "9092", ""), "framegate.upstream.endpoint.ejections", ("check",)),
        (ENDPOINT_BLOCK, ("u", "/u.sock", "", ""), "framegate.upstream.connection.count", ("used",)),
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
        name = "framegate.processor.errors" if block is PROCESSOR_BLOCK else "framegate.handler.requests"
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


def test_brokers_of_a_cluster_have_places_while_they_are_known_and_those_above_a_hundred_share_one(layout):
    config = _config("kafka", "plain")
    assert CellLayout.of(config, {"u": [3, 1]}).places == (*layout.places, broker_place("u", "1"), broker_place("u", "3"))
    some = layout.with_brokers("u", [7, 1])
    assert some.places == (*layout.places, broker_place("u", "1"), broker_place("u", "7"))
    assert some.with_brokers("u", [1, 7]) is some is some.after(config, brokers={"u": [7, 1]})
    other = some.with_brokers("u", [7, 9])
    assert [place for place in other.places if place[0] == ENDPOINT][2:] == [(ENDPOINT, ""), broker_place("u", "7"), broker_place("u", "9")]
    assert other.with_brokers("u", [5, 7, 9]).start(ENDPOINT_BLOCK, "u", "", "", "5") == some.start(ENDPOINT_BLOCK, "u", "", "", "1")
    for count, shared in ((100, False), (101, True)):
        many = layout.with_brokers("u", range(count))
        assert ((broker_place("u", OTHERS) in many.places), len(many.places)) == (shared, len(layout.places) + 100 + shared)
    gone = SimpleNamespace(listeners=config.listeners, upstreams=[])
    assert other.after(gone, {(UPSTREAM, "u")}).owners(ENDPOINT) == other.owners(ENDPOINT)
    assert other.after(gone).owners(ENDPOINT) == []


def test_an_endpoint_has_its_address_or_the_number_of_its_broker_as_attributes(layout):
    rows = {row.index: dict(row.attributes) for row in layout.with_brokers("u", [1]).rows if row.metric.name == "framegate.upstream.request.age"}
    assert list(rows.values()) == [
        {"framegate.upstream": "u", "server.address": "::1", "server.port": "9092"},
        {"framegate.upstream": "u", "server.address": "/u.sock"},
        {"framegate.upstream": "u", "framegate.kafka.broker": "1"},
    ]
