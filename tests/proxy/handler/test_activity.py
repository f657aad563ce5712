"""What control is told of a handler process, and the cells that tell it."""

import os
from collections import OrderedDict

from framegate.proxy.handler.activity import Activity, HeartbeatCells, HeartbeatSample, create_cells
from tests.fakes.cases import each_of


class Task:
    def __init__(self, began_ns: int) -> None:
        self.began_ns = began_ns


def activity_of(**attributes: object) -> Activity:
    made = Activity()
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


@each_of(
    ("attributes", "batch", "beat"),
    [
        ({}, (0, 0), (0, 0, 0, 0, 0, 0)),
        ({"waiting": 2, "began_ns": 70}, (3, 40), (3, 0, 70, 1, 30, 2)),
        # the oldest task counts, and the time of all is counted once: a batch beside them is within it
        ({"tasks": {"a": Task(20), "b": Task(50)}, "tasks_since_ns": 10, "waiting": 4}, (1, 30), (1, 0, 90, 2, 80, 4)),
        ({"tasks": {"a": Task(20), "b": Task(50)}, "tasks_since_ns": 10, "began_ns": 60}, (1, 30), (1, 0, 90, 3, 80, 0)),
        ({"tasks": {"a": Task(0)}}, (0, 0), (0, 0, 0, 1, 0, 0)),  # a task that has not begun is not old
        ({"began_ns": 101}, (0, 0), (0, 0, 0, 1, 0, 0)),  # a clock read before is no time below zero
    ],
)
def test_a_heartbeat_at_100_ns(attributes: dict[str, object], batch: tuple[int, int], beat: tuple[int, ...]) -> None:
    activity = activity_of(**attributes)
    activity.batch_done(*batch)
    assert activity.heartbeat(100) == beat


def test_tasks_may_change_while_they_are_looked_at():
    class Changing(OrderedDict):
        changes = 3

        def values(self):
            if self.changes:
                self.changes -= 1
                raise RuntimeError("changed during iteration")
            return super().values()

    activity = activity_of(tasks=Changing(a=Task(20)))
    assert activity.heartbeat(100).oldest_ns == 80
    activity.tasks.changes = 1000  # type: ignore[attr-defined]
    assert activity.heartbeat(100).oldest_ns == 0


def test_what_one_end_of_the_cells_writes_the_other_reads() -> None:
    descriptor = create_cells("test")
    control, process = HeartbeatCells(descriptor), HeartbeatCells(descriptor)
    os.close(descriptor)
    assert (control.heartbeat_ns, control.read()) == (0, (0, 0, 0, 0, 0, 0))
    told = HeartbeatSample(handled=1, failed=2, busy_ns=2**62, in_handler=4, oldest_ns=5, queued=6)
    process.write(told, 7)
    assert (control.heartbeat_ns, control.read()) == (7, told)
