"""framegate.proxy.network.timer: in order of deadline, once, and stale entries do not pile up."""

from collections.abc import Callable

from framegate.proxy.network.faults import Faults
from framegate.proxy.network.timer import COMPACT_FROM, NEVER, CallbackTimer, DelayedRefusals, Timer, TimerHeap


class Note(Timer):
    """Notes that it fired, and does what the test says."""

    def __init__(self, log: list["Note"]) -> None:
        super().__init__()
        self.log = log
        self.action: Callable[[], None] | None = None

    def fire(self, now_ns: int) -> None:
        self.log.append(self)
        if self.action is not None:
            self.action()


def test_timers_fire_once_in_order_of_deadline() -> None:
    heap, log = TimerHeap(lambda: 0, Faults()), list[Note]()
    late, early, same = Note(log), Note(log), Note(log)
    heap.arm(late, 30)
    heap.arm(early, 10)
    heap.arm(same, 10)
    assert (heap.next_ns(), len(heap)) == (10, 3)
    heap.fire_due(9)
    assert log == []
    heap.fire_due(10)
    assert log == [early, same]
    heap.fire_due(100)
    assert log == [early, same, late]
    assert (heap.next_ns(), len(heap)) == (NEVER, 0)


def test_arming_again_moves_and_cancelling_removes() -> None:
    heap, log = TimerHeap(lambda: 0, Faults()), list[Note]()
    moved, gone = Note(log), Note(log)
    heap.arm(moved, 10)
    heap.arm(moved, 20)
    heap.arm(gone, 15)
    heap.cancel(gone)
    heap.cancel(gone)
    assert (heap.next_ns(), len(heap)) == (10, 1), "a void deadline may wake the selector once, to no effect"
    heap.fire_due(10)
    assert (heap.next_ns(), log) == (20, []), "all that are void before the next one are thrown out"
    heap.fire_due(19)
    assert log == []
    heap.fire_due(20)
    assert log == [moved]
    heap.arm(gone, 30)
    heap.cancel(gone)
    assert heap.next_ns() == NEVER


def test_a_timer_moved_back_and_forth_fires_once() -> None:
    heap, log = TimerHeap(lambda: 0, Faults()), list[Note]()
    timer = Note(log)
    for deadline in (10, 20, 10):
        heap.arm(timer, deadline)
    heap.fire_due(30)
    assert log == [timer]


def test_what_is_armed_while_firing_waits_for_the_next_call() -> None:
    heap, log = TimerHeap(lambda: 0, Faults()), list[Note]()
    again = Note(log)
    again.action = lambda: heap.arm(again, 1)
    heap.arm(again, 5)
    heap.fire_due(10)
    assert log == [again]
    heap.fire_due(10)
    assert log == [again, again]


def test_stale_entries_are_thrown_out() -> None:
    heap, log = TimerHeap(lambda: 0, Faults()), list[Note]()
    keep = Note(log)
    heap.arm(keep, 1)
    for index in range(3 * COMPACT_FROM):
        timer = Note(log)
        heap.arm(timer, 1000 + index)
        heap.cancel(timer)
    assert len(heap._entries) <= COMPACT_FROM + 1
    heap.fire_due(10_000)
    assert log == [keep]


def test_a_callback_is_called_until_its_timer_is_released() -> None:
    heap, log = TimerHeap(lambda: 0, Faults()), list[int]()
    timer = CallbackTimer(lambda: log.append(1))
    for _ in range(2):
        heap.arm(timer, 5)
        heap.fire_due(10)
    assert log == [1, 1]
    heap.arm(timer, 5)
    timer.release()
    heap.fire_due(10)
    assert log == [1, 1]


def test_one_more_refusal_than_may_wait_fires_the_oldest_timer() -> None:
    refusals, log = DelayedRefusals(2), list[Note]()
    first, second, third, fourth = (Note(log) for _ in range(4))
    refusals.add(first, 0)
    refusals.add(second, 0)
    assert (len(refusals), log) == (2, [])
    refusals.add(third, 0)
    assert (len(refusals), log) == (2, [first])
    for timer in (first, second, second):
        refusals.remove(timer)
    refusals.add(fourth, 0)
    assert (len(refusals), log) == (2, [first])
