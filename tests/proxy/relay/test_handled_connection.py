"""What is known of a connection whose frames are handled, by who hands them over; and what is counted."""

from collections.abc import Callable

from framegate.proxy.cells import LISTENER_BLOCK
from framegate.proxy.cells.metrics import HANDLER_ACTIONS
from framegate.proxy.network.run import Run
from framegate.proxy.relay import handler_wire as wire
from framegate.proxy.relay.counters import ListenerCounters
from framegate.proxy.relay.handled_connection import HandledConnection, HandlerMetrics, Request
from tests.fakes.cases import each_of
from tests.fakes.handled import HandledWorld, leg_of
from tests.fakes.world import frame


def test_both_directions_are_under_way(make_handled: Callable[..., HandledWorld]) -> None:
    _, pair = make_handled().served()
    party = leg_of(pair).handled
    facts = wire.Facts(id="", listener="l", peer="", principal="", principal_type="", tls=None, upstream=True)
    connection = HandledConnection(7, party, HandlerMetrics(ListenerCounters()), facts)
    data = frame(b"body")
    request = Request(0, Run(None, 0, data, 0, len(data), 1, 0), 1, b"", expects=False, withheld=False)
    assert request.size == 8
    connection.requests.append(request)
    connection.responses.append(request)
    assert (connection.under_way, connection.party, connection.facts) == (2, party, facts)


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
