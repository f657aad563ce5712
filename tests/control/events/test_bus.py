"""The bus: events of all threads are numbered in one order, gaps are reported, and waiting events are delivered before the end."""

import asyncio
import threading

import pytest

from framegate.control.errors import FailedPreconditionError
from framegate.control.events import Bus, Event, Gap, Row, Subscriber, Subscription
from tests.fakes.cases import each_of

THREADS = 8
EACH = 200


class Listed(Subscriber):
    """Keeps what it is offered; raises at the numbers it is told."""

    def __init__(self, *fails_at: int) -> None:
        self.offered: list[tuple[int, Row | str, int]] = []
        self._fails_at = fails_at

    def offer(self, event: Event, line: Row | str, size: int) -> None:
        if event.sequence in self._fails_at:
            raise ValueError(f"no {event.sequence}")
        self.offered.append((event.sequence, line, size))


def bus_of(*subscribers: Subscriber, **bounds: int) -> tuple[Bus, list[Exception]]:
    failures: list[Exception] = []
    return Bus(subscribers, on_failure=failures.append, **bounds), failures


def fill(bus: Bus, count: int, name: str = "closed") -> None:
    for number in range(count):
        bus.publish({"event": name, "n": number})


def numbers(subscription: Subscription) -> list[int | Gap]:
    return [item.sequence if isinstance(item, Event) else item for item in subscription.take()]


def test_events_of_all_threads_are_numbered_without_holes() -> None:
    log = Listed()
    bus, failures = bus_of(log)
    subscription = bus.subscribe(max_events=THREADS * EACH)
    own: list[list[int]] = [[] for _ in range(THREADS)]
    together = threading.Barrier(THREADS)

    def publish(thread: int) -> None:
        together.wait()
        for number in range(EACH):
            own[thread].append(bus.publish({"event": "closed", "thread": thread, "n": number}))

    threads = [threading.Thread(target=publish, args=(thread,)) for thread in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    everything = list(range(1, THREADS * EACH + 1))
    assert sorted(number for some in own for number in some) == everything
    assert all(some == sorted(some) for some in own), "what one thread publishes has its order"
    taken = subscription.take()
    assert [item.sequence for item in taken if isinstance(item, Event)] == everything
    assert [sequence for sequence, _, _ in log.offered] == everything
    for thread, some in enumerate(own):
        rows = [item.row["n"] for item in taken if isinstance(item, Event) and item.row["thread"] == thread]
        assert (rows, len(some)) == (list(range(EACH)), EACH)
    assert failures == []


def test_subscribers_come_and_go_while_events_are_published() -> None:
    bus, failures = bus_of()
    steady = bus.subscribe(max_events=THREADS * EACH)
    done = threading.Event()
    seen: list[list[int | Gap]] = []

    def come_and_go() -> None:
        last = False
        while not last:
            last = done.is_set()
            subscription = bus.subscribe(max_events=THREADS * EACH)  # the thread may stand for as long as all others take
            found = numbers(subscription)
            first = subscription.after + 1
            assert found == list(range(first, first + len(found)))
            subscription.close()
            assert numbers(subscription) == []
            seen.append(found)

    visitors = [threading.Thread(target=come_and_go) for _ in range(2)]
    publishers = [threading.Thread(target=fill, args=(bus, EACH)) for _ in range(THREADS)]
    for thread in (*visitors, *publishers):
        thread.start()
    for thread in publishers:
        thread.join()
    done.set()
    for thread in visitors:
        thread.join()
    assert numbers(steady) == list(range(1, THREADS * EACH + 1))
    assert (bus.subscriptions, failures, len(seen) >= 2) == ([steady], [], True)


@each_of("together", [False, True])
def test_the_others_get_an_event_at_which_a_subscriber_raises(together: bool) -> None:
    first, raising, last = Listed(), Listed(2), Listed()
    bus, failures = bus_of(first, raising, last)
    subscription = bus.subscribe()
    if together:
        bus.publish_lines("closed", ["{}"] * 3, lambda number, text: {})
    else:
        fill(bus, 3)
        assert [sequence for sequence, _, _ in raising.offered] == [1, 3]
    assert [[sequence for sequence, _, _ in item.offered] for item in (first, last)] == [[1, 2, 3]] * 2
    assert (numbers(subscription), [str(failure) for failure in failures]) == ([1, 2, 3], ["no 2"])


def test_the_callback_for_failures_may_publish() -> None:
    told: list[int] = []
    bus = Bus((Listed(1),), on_failure=lambda error: told.append(bus.publish({"event": "subscriber_failed"})))
    assert (bus.publish({"event": "closed"}), told) == (1, [2])


def test_the_log_is_given_the_line_that_was_meant_for_it() -> None:
    log = Listed()
    bus, _ = bus_of(log)
    bus.publish({"event": "processor_died", "level": "error", "slot": 1}, level="error")
    bus.publish({"event": "closed", "id": 5}, line={"id": "0-1-5"}, size=7)
    bus.publish({"event": "closed", "id": 6}, line='{"id": "0-1-6"}')
    assert [line for _, line, _ in log.offered] == [{"slot": 1}, {"id": "0-1-5"}, '{"id": "0-1-6"}']
    assert [size for _, _, size in log.offered][1:] == [7, 15]


@each_of(("published", "kept"), [(2, [1, 2]), (3, [1, 2, 3]), (4, [2, 3, 4])])
def test_the_last_events_are_kept_for_those_that_come_back(published: int, kept: list[int]) -> None:
    bus, _ = bus_of(max_events=3)
    fill(bus, published)
    oldest = kept[0]
    for after in range(oldest - 1, published + 1):
        subscription = bus.subscribe(after=after)
        assert (subscription.after, numbers(subscription)) == (after, list(range(after + 1, published + 1)))
        assert numbers(bus.subscribe(after=after, only_kept=True)) == list(range(after + 1, published + 1))
    assert bus.newest == published
    assert bus.oldest == oldest
    if oldest > 1:
        assert numbers(bus.subscribe(after=oldest - 2)) == [Gap(oldest - 1, oldest - 1, 1), *kept], "what is no longer kept is a gap"


@each_of("after", [-1, 1, 3])
def test_a_number_that_was_not_given_to_an_event_is_refused(after: int) -> None:
    bus, _ = bus_of()
    fill(bus, 2 if after == 3 else 0)
    with pytest.raises(FailedPreconditionError) as caught:
        bus.subscribe(after=after)
    assert (caught.value.reason, bus.subscriptions) == ("EVENTS_UNKNOWN", [])


def test_the_history_is_bounded_in_bytes_too() -> None:
    bus, _ = bus_of(max_bytes=100)
    for size in (60, 40, 1):
        bus.publish({"event": "audit"}, size=size)
    assert numbers(bus.subscribe(after=1)) == [2, 3]
    assert numbers(bus.subscribe(after=0)) == [Gap(1, 1, 1), 2, 3]


def test_a_subscriber_that_reconnects_gets_the_events_since_and_the_new_ones() -> None:
    bus, _ = bus_of()
    fill(bus, 2)
    fill(bus, 2, "audit")
    subscription = bus.subscribe(("audit",), after=1)
    fill(bus, 1, "audit")
    assert numbers(subscription) == [3, 4, 5]
    assert (bus.subscribe().after, numbers(bus.subscribe())) == (5, [])


def test_the_queue_of_a_subscriber_that_reconnects_has_its_own_bound() -> None:
    bus, _ = bus_of()
    fill(bus, 5)
    assert numbers(bus.subscribe(after=0, max_events=2)) == [Gap(1, 3, 3), 4, 5]


def test_at_the_end_what_waits_is_taken_and_the_log_gets_what_comes_later() -> None:
    async def main() -> None:
        log = Listed()
        bus, _ = bus_of(log)
        early, waiting = bus.subscribe(), bus.subscribe(("audit",))
        ends = asyncio.ensure_future(anext(waiting, None))
        await asyncio.sleep(0)
        fill(bus, 2)
        bus.close()
        bus.close()
        fill(bus, 1)
        assert await asyncio.wait_for(ends, 5) is None
        assert [item.sequence async for item in early if isinstance(item, Event)] == [1, 2]
        assert [item.sequence async for item in bus.subscribe(after=1) if isinstance(item, Event)] == [2, 3]
        assert ([sequence for sequence, _, _ in log.offered], bus.subscriptions) == ([1, 2, 3], [])
        early.close()

    asyncio.run(main())


def test_events_that_happened_together_have_numbers_in_their_order_and_are_read_when_asked_for() -> None:
    log = Listed()
    bus, failures = bus_of(log)
    everything, closed, others = bus.subscribe(), bus.subscribe(("closed",)), bus.subscribe(("audit",))
    read: list[int] = []

    def reader(number: int, text: str) -> Row:
        read.append(number)
        assert text == f'{{"id": {number}}}'
        return {"event": "closed", "id": number}

    bus.publish({"event": "audit"})
    bus.publish_lines("closed", [f'{{"id": {number}}}' for number in (7, 8, 9)], reader, subjects=[7, 8, 9])
    bus.publish_lines("closed", [], reader)
    bus.publish({"event": "audit"})
    assert (numbers(everything), numbers(others), bus.newest) == ([1, 2, 3, 4, 5], [1, 5], 5)
    assert log.offered[1:4] == [(2, '{"id": 7}', 9), (3, '{"id": 8}', 9), (4, '{"id": 9}', 9)]
    assert read == []
    events = [item for item in closed.take() if isinstance(item, Event)]
    assert [(item.sequence, item.subject, item.name, item.level) for item in events] == [(n - 5, n, "closed", "info") for n in (7, 8, 9)]
    assert [events[1].row, events[1].row, events[0].row] == [{"event": "closed", "id": 8}] * 2 + [{"event": "closed", "id": 7}]
    assert read == [8, 7]
    assert numbers(bus.subscribe(("closed",), after=2)) == [3, 4], "they are kept for those that come back"
    assert failures == []
