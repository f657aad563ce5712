"""A queue drops the oldest events when it is full and reports them; a subscriber that is slow, fails or leaves does not affect the others."""

import asyncio
import functools
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from framegate.control.events import Bus, Event, EventLines, Gap, Subscription
from framegate.control.events.subscription import Backlog
from tests.fakes.cases import each_of

Item = Event | Gap


def in_a_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:

    @functools.wraps(test)
    def run(**arguments: Any) -> None:
        asyncio.run(test(**arguments))  # type: ignore[arg-type]

    return run


class Stage:
    """A bus, and what its subscribers raised."""

    def __init__(self) -> None:
        self.failures: list[Exception] = []
        self.bus = Bus(on_failure=self.failures.append)

    def publish(self, *names: str) -> None:
        for name in names:
            self.bus.publish({"event": name})


def numbers(items: list[Item]) -> list[int | Gap]:
    return [item.sequence if isinstance(item, Event) else item for item in items]


async def settle() -> None:
    """Let the tasks go as far as they can."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_slow_subscriber_gets_a_gap_for_what_it_missed_and_the_others_miss_nothing() -> None:
    at = Stage()
    slow, quick = at.bus.subscribe(("closed",), max_events=2), at.bus.subscribe()
    got: list[Item] = []
    for _ in range(5):
        at.publish("closed", "other")
        got += quick.take()
    assert numbers(got) == list(range(1, 11))
    assert numbers(slow.take()) == [Gap(1, 5, 3), 7, 9]
    at.publish("closed")
    assert numbers(slow.take()) == [11], "it has caught up"
    assert at.failures == []


@each_of(
    ("groups", "most", "most_bytes", "left"),
    [
        ((3, 3), 4, 100, [Gap(1, 2, 2), 3, 4, 5, 6]),
        ((2, 2, 5), 4, 100, [Gap(1, 5, 5), 6, 7, 8, 9]),
        ((1, 3, 1), 4, 100, [Gap(1, 1, 1), 2, 3, 4, 5]),
        ((3, 2), 9, 4, [Gap(1, 3, 3), 4, 5]),
        ((2, 1), 9, 1, [Gap(1, 2, 2), 3]),
    ],
)
def test_of_events_that_were_published_together_the_oldest_are_dropped_first(
    groups: tuple[int, ...], most: int, most_bytes: int, left: list[int | Gap]
) -> None:
    backlog = Backlog(most, most_bytes)
    first = 1
    for count in groups:
        backlog.extend(EventLines(first, 0, "closed", "info", ["{}"] * count, [0] * count, lambda number, text: {}), [2] * count)
        first += count
    assert len(backlog) == len(left) - 1
    assert [event.sequence for event, size in backlog if size == 2] == left[1:]
    assert numbers([item for _ in range(len(left) + 1) if (item := backlog.pop()) is not None]) == left
    backlog.extend([Event(first, 0, "audit", "info", {})], [9 * most_bytes])
    assert (numbers([backlog.pop() or pytest.fail("it is alone")]), len(backlog)) == ([first], 0)


@in_a_loop
async def test_a_waiting_subscriber_is_woken_by_any_thread() -> None:
    at = Stage()
    subscription = at.bus.subscribe()
    waiting = asyncio.ensure_future(anext(subscription))
    await settle()
    assert not waiting.done()
    thread = threading.Thread(target=at.publish, args=("closed",))
    thread.start()
    async with asyncio.timeout(5):
        event = await waiting
    thread.join()
    assert isinstance(event, Event)
    assert (event.sequence, event.name, event.row) == (1, "closed", {"event": "closed"})


@each_of("published_first", [False, True])
@in_a_loop
async def test_a_wait_that_is_cancelled_or_timed_out_has_taken_nothing(published_first: bool) -> None:
    at = Stage()
    subscription = at.bus.subscribe()
    waiting = asyncio.ensure_future(anext(subscription))
    await settle()
    if published_first:  # the waiter is woken, and cancelled before it runs
        at.publish("closed")
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    at.publish("closed")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await asyncio.sleep(1)
    first = await anext(subscription)
    assert numbers([first]) == [1]
    assert numbers(subscription.take()) == ([2] if published_first else [])


@in_a_loop
async def test_two_tasks_do_not_wait_on_one_queue() -> None:
    at = Stage()
    subscription = at.bus.subscribe()
    first = asyncio.ensure_future(anext(subscription))
    await settle()
    with pytest.raises(AssertionError, match="one task at a time"):
        await anext(subscription)
    at.publish("closed")
    assert numbers([await first]) == [1]


@in_a_loop
async def test_a_handler_that_raises_loses_only_that_event_and_other_subscribers_none() -> None:
    at = Stage()
    seen: list[Item] = []
    also: list[Item] = []

    def fail(item: Item) -> None:
        if isinstance(item, Event) and item.sequence == 2:
            raise ValueError("no")
        seen.append(item)

    failing, good = at.bus.subscribe(), at.bus.subscribe()
    tasks = [asyncio.create_task(failing.each(fail)), asyncio.create_task(good.each(also.append))]
    await settle()
    at.publish("closed", "closed", "closed")
    at.bus.close()
    await asyncio.wait_for(asyncio.gather(*tasks), 5)
    assert (numbers(seen), numbers(also), [repr(error) for error in at.failures]) == ([1, 3], [1, 2, 3], ["ValueError('no')"])


@in_a_loop
async def test_a_handler_of_many_events_lets_other_tasks_run() -> None:
    at = Stage()
    subscription = at.bus.subscribe()
    at.publish(*["closed"] * 1000)
    handled: list[Item] = []
    task = asyncio.create_task(subscription.each(handled.append))
    await settle()
    assert 0 < len(handled) < 1000
    at.bus.close()
    await asyncio.wait_for(task, 5)
    assert numbers(handled) == list(range(1, 1001))


@in_a_loop
async def test_a_closed_subscription_gets_no_events_and_its_iteration_ends() -> None:
    at = Stage()
    subscription, other = at.bus.subscribe(), at.bus.subscribe()
    task = asyncio.create_task(gather(subscription))
    await settle()
    subscription.close()
    subscription.close()
    at.publish("closed")
    assert await asyncio.wait_for(task, 5) == []
    assert (at.bus.subscriptions, numbers(other.take())) == ([other], [1])


def test_publishing_does_not_fail_if_the_loop_of_a_subscriber_is_closed() -> None:
    at = Stage()
    subscription = at.bus.subscribe()
    loop = asyncio.new_event_loop()
    waiting = anext(subscription)
    with pytest.raises(TimeoutError):
        loop.run_until_complete(asyncio.wait_for(waiting, 0))
    task = loop.create_task(gather(subscription))
    loop.run_until_complete(settle())
    held = subscription._waiter
    assert held is not None
    loop.close()
    at.publish("closed")
    assert (at.failures, numbers(subscription.take())) == ([], [1])
    task.get_coro().close()  # type: ignore[union-attr]
    task._log_destroy_pending = False  # type: ignore[attr-defined]


async def gather(subscription: Subscription) -> list[int | Gap]:
    return [item.sequence if isinstance(item, Event) else item async for item in subscription]


# --- the queue ---


def event(number: int) -> Event:
    return Event(number, 0, "closed", "info", {"event": "closed"})


def taken(backlog: Backlog) -> list[int | Gap]:
    """Everything, in order: numbers of events, and gaps."""
    found: list[int | Gap] = []
    while (item := backlog.pop()) is not None:
        found.append(item.sequence if isinstance(item, Event) else item)
    return found


@each_of(("count", "expected"), [(0, []), (1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (4, [Gap(1, 1, 1), 2, 3, 4]), (9, [Gap(1, 6, 6), 7, 8, 9])])
def test_the_queue_holds_its_number_of_events_and_reports_the_dropped_ones(count: int, expected: list[int | Gap]) -> None:
    backlog = Backlog(max_events=3)
    for number in range(1, count + 1):
        backlog.extend([event(number)], [1])
    assert taken(backlog) == expected
    assert len(backlog) == 0


@each_of(("size", "expected"), [(9, [1, 2]), (10, [1, 2]), (11, [Gap(1, 1, 1), 2]), (21, [Gap(1, 1, 1), 2])])
def test_the_queue_holds_its_number_of_bytes_and_always_the_newest_event(size: int, expected: list[int | Gap]) -> None:
    backlog = Backlog(max_bytes=20)
    backlog.extend([event(1)], [10])
    backlog.extend([event(2)], [size])
    assert taken(backlog) == expected
    backlog.extend([event(3)], [20])
    assert taken(backlog) == [3], "what was taken has given its bytes back"


def test_a_gap_counts_what_was_wanted_and_names_the_numbers_around_it() -> None:
    backlog = Backlog(max_events=1)
    for number in (2, 5, 9):
        backlog.extend([event(number)], [1])
    assert taken(backlog) == [Gap(2, 5, 2), 9]
    for number in (11, 12):
        backlog.extend([event(number)], [1])
    assert taken(backlog) == [Gap(11, 11, 1), 12], "a gap that was said is not said again"


def test_clearing_the_queue_removes_events_gap_and_bytes() -> None:
    backlog = Backlog(max_events=2, max_bytes=10)
    for number in (1, 2, 3):
        backlog.extend([event(number)], [5])
    backlog.clear()
    assert taken(backlog) == []
    backlog.extend([event(4)], [5])
    backlog.extend([event(5)], [5])
    assert taken(backlog) == [4, 5]
