"""What control is told of a handler process."""

from collections import OrderedDict

from proxy.handler.activity import Activity
from proxy.handler.cells import Beat
from proxy.relay import handler_wire as wire

CLOSED = wire.encode_closed(1)


def request(sequence: int) -> bytes:
    return wire.request_head(0, 0, 1, sequence, 0, 1) + b"x"


class Task:
    def __init__(self, began_ns: int) -> None:
        self.began_ns = began_ns


def test_nothing_is_going_on():
    assert Activity().beat(100) == Beat(0, 0, 0, 0, 0, 0)


def test_a_function_that_runs_and_what_waits_behind_it():
    activity = Activity()
    activity.batch_done(3, 40)
    activity.batch = request(0) + request(1) + CLOSED + request(2) + request(3)[:-1]
    activity.position = len(request(0))
    activity.began_ns = 70
    assert activity.beat(100) == Beat(handled=3, failed=0, busy_ns=70, in_handler=1, oldest_ns=30, queued=2)


def test_a_batch_that_cannot_be_read_is_counted_as_far_as_it_can():
    activity = Activity()
    activity.batch = request(0) + b"GET / HTTP"
    assert activity.beat(1).queued == 1


def test_the_oldest_task_counts_and_the_time_of_all_is_counted_once():
    activity = Activity()
    activity.tasks = {"a": Task(20), "b": Task(50)}
    activity.tasks_since_ns = 10
    activity.waiting = 4
    activity.batch_done(1, 30)  # while tasks were under way
    assert activity.beat(100) == Beat(handled=1, failed=0, busy_ns=90, in_handler=2, oldest_ns=80, queued=4)
    activity.began_ns = 60
    assert activity.beat(100)[2:5] == (90, 3, 80)


def test_a_task_that_has_not_begun_is_not_old():
    activity = Activity()
    activity.tasks = {"a": Task(0)}
    assert activity.beat(100)[3:5] == (1, 0)


def test_a_clock_read_before_is_no_time_below_zero():
    activity = Activity()
    activity.began_ns = 101
    assert activity.beat(100)[2:5] == (0, 1, 0)


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
    assert activity.beat(100).oldest_ns == 80
    activity.tasks.changes = 1000  # type: ignore[attr-defined]
    assert activity.beat(100).oldest_ns == 0
