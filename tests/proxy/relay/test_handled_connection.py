"""What is known of a connection whose frames are handled, by who hands them over; and what is counted."""

from framegate.proxy.cells import LISTENER_BLOCK
from framegate.proxy.cells.metrics import HANDLER_ACTIONS
from framegate.proxy.relay import handler_wire as wire
from framegate.proxy.relay.counters import ListenerCounters
from framegate.proxy.relay.handled_connection import HandlerMetrics
from tests.fakes.cases import each_of


@each_of("action", range(len(HANDLER_ACTIONS)))
def test_a_reply_counts_once_where_its_action_is_and_no_time_is_below_zero(action: int) -> None:
    assert HANDLER_ACTIONS == wire.ACTIONS
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
    metrics.replied(0, 10, 5, 4, 3)
    times = (metrics.queue_time, metrics.local_time, metrics.response_queue_time, metrics.send_time)
    assert [int(histogram.sum) for histogram in times] == [2_999_000, 5_000_000, 42_000_000, 0]
