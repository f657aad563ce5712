"""What control is told of a handler process."""

from collections import OrderedDict

from framegate.proxy.handler.activity import Activity
from framegate.proxy.handler.cells import HeartbeatSample


class Task:
    def __init__(self, began_ns: int) -> None:
        self.began_ns = began_ns


def test_nothing_is_going_on():
    assert Activity().heartbeat(100) == HeartbeatSample(0, 0, 0, 0, 0, 0)


def test_a_function_that_runs_and_what_waits_behind_it():
    activity = Activity()
    activity.batch_done(3, 40)
    activity.waiting = 2
    activity.began_ns = 70
    assert activity.heartbeat(100) == HeartbeatSample(handled=3, failed=0, busy_ns=70, in_handler=1, oldest_ns=30, queued=2)


def test_the_oldest_task_counts_and_the_time_of_all_is_counted_once():
    activity = Activity()
    activity.tasks = {"a": Task(20), "b": Task(50)}
    activity.tasks_since_ns = 10
    activity.waiting = 4
    activity.batch_done(1, 30)  # while tasks were under way
    assert activity.heartbeat(100) == HeartbeatSample(handled=1, failed=0, busy_ns=90, in_handler=2, oldest_ns=80, queued=4)
    activity.began_ns = 60
    assert activity.heartbeat(100)[2:5] == (90, 3, 80)


def test_a_task_that_has_not_begun_is_not_old():
    activity = Activity()
    activity.tasks = {"a": Task(0)}
    assert activity.heartbeat(100)[3:5] == (1, 0)


def test_a_clock_read_before_is_no_time_below_zero():
    activity = Activity()
    activity.began_ns = 101
    assert activity.heartbeat(100)[2:5] == (0, 1, 0)


def test_tasks_may_change_while_they_are_looked_at():
    class Changing(OrderedDict):
        changes = 3

        def values(self):
            if self.changes:
                self.changes -= 1
                raise RuntimeError("changed during iteration")
            return super().values()

    activity = Activity()
    activity.tasks = Changing(a=Task(20))
    assert activity.heartbeat(100).oldest_ns == 80
    activity.tasks.changes = 1000  # type: ignore[attr-defined]
    assert activity.heartbeat(100).oldest_ns == 0
