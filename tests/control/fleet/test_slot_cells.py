import ctypes

from framegate.control.fleet.slot_cells import SlotCells
from framegate.proxy.cells import CellLayout, CellWriter, State
from framegate.proxy.config.model import ListenerConfig, ProxyConfig, UpstreamConfig

CONFIG = ProxyConfig(
    node="n",
    listeners=(ListenerConfig(name="a", address="127.0.0.1:0", upstream="u"), ListenerConfig(name="b", address="127.0.0.1:0", upstream="u")),
    upstreams=(UpstreamConfig(name="u", endpoints=("127.0.0.1:1",)),),
)
LAYOUT = CellLayout.of(CONFIG)


def publish(cells: SlotCells, values: dict[tuple[str, ...], int]) -> None:
    """What a processor would store: ``{(name, attribute values…): value}``."""
    writer = CellWriter(cells.descriptor, LAYOUT)
    image = writer.start(1, 1, 1)
    for (name, *attributes), value in values.items():
        image[LAYOUT.index(f"framegate.{name}", *attributes)] = value
    writer.publish((ctypes.c_int64 * LAYOUT.count)(*image))


def test_a_dead_processors_connections_and_frames_are_accounted_for() -> None:
    cells = SlotCells(0, LAYOUT)
    publish(cells, {("tap.matched",): 100, ("tap.flushed",): 100, ("tap.seen", "a", "request"): 90, ("tap.reserved", "a", "request"): 154})
    cells.begin()
    publish(
        cells,
        {
            ("tap.matched",): 130,
            ("tap.flushed",): 120,
            ("tap.seen", "a", "request"): 110,
            ("tap.reserved", "a", "request"): 200,
            ("tap.seen", "b", "response"): 10,
            ("tap.dropped", "disk_full"): 3,
            ("connection.active", "downstream", "a"): 3,
            ("connection.active", "upstream", "a"): 3,
        },
    )
    life = cells.end()
    assert life.connections == {"a": 3}
    assert (life.matched, life.orderly) == (30, False)
    nothing = {(listener, direction): 0 for listener in "ab" for direction in ("request", "response")}
    assert life.seen == {**nothing, ("a", "request"): 20, ("b", "response"): 10}
    assert life.reserved == {**nothing, ("a", "request"): 46}
    assert life.bounds == {**nothing, ("a", "request"): 46, ("b", "response"): 10}
    assert life.dropped["disk_full"] == 3
    reader = cells.reader
    assert reader.cell("framegate.connection.closed", "a", "processor_died", "internal") == 3
    assert reader.cell("framegate.connection.active", "downstream", "a") == 0
    assert reader.cell("framegate.tap.flushed") == 130
    assert reader.state == State.STOPPED
    cells.close()


def test_a_processor_is_idle_when_all_that_it_has_seen_is_on_disk_and_nothing_is_unpublished() -> None:
    cells = SlotCells(0, LAYOUT)
    seen, reserved = ("tap.seen", "a", "request"), ("tap.reserved", "a", "request")
    publish(cells, {("tap.matched",): 100, ("tap.flushed",): 90, seen: 100, reserved: 164})  # of one that died
    cells.begin()
    assert cells.tap_progress() == (True, 0)
    for flushed, matched, count, bound, errors, idle in ((90, 101, 101, 165, 1, False), (91, 101, 101, 165, 2, True), (91, 101, 101, 166, 2, False)):
        publish(cells, {("tap.matched",): matched, ("tap.flushed",): flushed, seen: count, reserved: bound, ("tap.write.errors",): errors})
        assert cells.tap_progress() == (idle, errors)
    cells.close()


def test_an_end_is_orderly_when_the_processor_said_so_itself() -> None:
    cells = SlotCells(0, LAYOUT)
    for orderly in (True, False, True):
        cells.begin()
        publish(cells, {("tap.seen", "a", "request"): cells.reader.cell("framegate.tap.seen", "a", "request") + 5})
        if orderly:
            CellWriter(cells.descriptor, LAYOUT).state(State.STOPPED)
        life = cells.end()
        assert life.orderly == orderly
        assert life.bounds["a", "request"] == 5
    cells.close()
