"""The node's clock is stepped under load, forth and back: the whole machine's, for clocks have no namespace. Only who asks for it has it stepped."""

import collections
import os
import time

import pytest

from framegate.proxy.tap.completeness import verify
from tests.cluster.load import Load, Scene
from tests.cluster.room import Room

STEP_S = 90.0
ASK = "FRAMEGATE_STEP_CLOCK"


def step(seconds: float) -> None:
    """Set the clock forth, or back."""
    time.clock_settime(time.CLOCK_REALTIME, time.time() + seconds)


@pytest.mark.skipif(os.environ.get(ASK) != "1", reason=f"steps this machine's clock: {ASK}=1 make cluster-test")
def test_a_step_of_the_nodes_clock_forth_and_back_disturbs_nothing_and_the_record_says_so(room: Room) -> None:
    scene = Scene(room)
    load = Load(scene)
    broker, before = scene.application(), scene.sidecar()
    step(STEP_S)
    try:
        scene.wait_traffic()
        time.sleep(5.0)  # probes, looks at files and names go on by the new clock
        scene.wait_traffic()
    finally:
        step(-STEP_S)
    scene.wait_traffic()
    time.sleep(5.0)
    outcome = load.end()
    assert (scene.application(), scene.sidecar()) == (broker, before)
    rows = room.rows(scene.pod)
    assert [row for row in rows if row["event"] == "closed" and row["cause"] != "peer_closed"] == []
    verdict = verify(str(scene.tap))
    assert verdict.faults == []
    windows = collections.Counter(row.state for row in verdict.rows)
    print(f"\ncluster: clock stepped by {STEP_S:g} s and back: {outcome}, windows {dict(windows)}, {sorted({row['event'] for row in rows})}")
