from framegate.control.fleet.slot import Slot
from framegate.proxy.cells import CellLayout, CellWriter
from tests.fakes.fleet import fleet_config

LAYOUT = CellLayout.of(fleet_config(1))


def test_who_leaves_or_drains_takes_no_connections() -> None:
    slot = Slot(0, LAYOUT, ["a"])
    assert not slot.takes_connections
    slot.state = "running"
    assert slot.takes_connections
    slot.leaving = True
    assert (slot.takes_connections, slot.lives_on) == (False, False)
    slot.begin()
    slot.wanted = False
    assert (slot.takes_connections, slot.lives_on) == (False, False)
    slot.cells.close()


def test_a_heartbeat_of_another_generation_is_none() -> None:
    slot = Slot(0, LAYOUT, ["a"])
    CellWriter(slot.cells.descriptor, LAYOUT).start(1, slot.next_generation() - 1, 5)
    assert slot.status().heartbeat_age_ms == -1
    assert (slot.status().state, slot.status().pid) == ("stopped", 0)
    slot.cells.close()
