from control.fleet.slot import Slot
from proxy.cells import CellLayout, CellWriter
from tests.fakes.fleet import fleet_config

LAYOUT = CellLayout.of(fleet_config(1))


def test_generations_grow_over_lives_and_over_slots_of_the_same_number() -> None:
    slot = Slot(3, LAYOUT, ["a"])
    first = slot.next_generation()
    assert 0 < first < 2**28
    assert slot.next_generation() == first + 1
    slot.cells.close()
    ahead = Slot(3, LAYOUT, ["a"], generation=first + 1000)
    assert ahead.next_generation() == first + 1001
    ahead.cells.close()


def test_pauses_double_up_to_a_bound_and_begin_anew_after_a_good_run() -> None:
    slot = Slot(0, LAYOUT, ["a"])
    assert [slot.next_pause(0.0) for _ in range(9)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]
    assert [slot.next_pause(10.0), slot.next_pause(0.0)] == [0.1, 0.2]
    slot.begin()
    assert slot.next_pause(0.0) == 0.1
    slot.cells.close()


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
