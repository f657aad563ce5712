"""What is counted of handlers, and where."""

import pytest

from proxy.cells import LISTENER_BLOCK
from proxy.cells.metrics import HANDLER_ACTIONS
from proxy.relay import handler_wire as wire
from proxy.relay.counters import ListenerCounters
from proxy.relay.handler_metrics import HandlerMetrics


def test_the_actions_are_those_of_the_records() -> None:
    assert HANDLER_ACTIONS == wire.ACTIONS


@pytest.mark.parametrize("action", range(len(HANDLER_ACTIONS)))
def test_a_reply_counts_once_where_its_action_is(action: int) -> None:
    counters = ListenerCounters()
    metrics = HandlerMetrics(counters)
    metrics.begin()
    metrics.begin()
    metrics.forget(1)
    metrics.replied(action, 1_000, 3_000_000, 8_000_000, 50_000_000)
    cells = counters.counts.cells
    assert int(cells[LISTENER_BLOCK.at("framegate.handler.queue.size")]) == 1
    counted = {name: int(cells[LISTENER_BLOCK.at("framegate.handler.requests", name)]) for name in HANDLER_ACTIONS}
    assert counted == {name: int(name == HANDLER_ACTIONS[action]) for name in HANDLER_ACTIONS}
    times = (metrics.queue_time, metrics.local_time, metrics.response_queue_time, metrics.send_time)
    assert [int(histogram.sum) for histogram in times] == [2_999_000, 5_000_000, 42_000_000, 0]


def test_a_time_that_would_be_negative_is_none() -> None:
    metrics = HandlerMetrics(ListenerCounters())
    metrics.replied(0, 10, 5, 4, 3)
    assert [int(histogram.sum) for histogram in (metrics.queue_time, metrics.local_time, metrics.response_queue_time)] == [0, 0, 0]
