"""What is known of a connection whose frames are handled, by who hands them over."""

from proxy.network.run import Run
from proxy.relay import handler_wire as wire
from proxy.relay.counters import ListenerCounters
from proxy.relay.handled_connection import HandledConnection, Handles, Load, Request
from proxy.relay.handler_metrics import HandlerMetrics
from tests.fakes.handled import HandledWorld, leg_of
from tests.fakes.world import frame


def test_what_a_handler_said_of_itself() -> None:
    handles = Handles(wire.HandlerFacts(directions=["response"]))
    assert (handles.requests, handles.responses) == (False, True)


def test_both_directions_are_under_way() -> None:
    world = HandledWorld()
    try:
        _, pair = world.served()
        party = leg_of(pair).handled
        facts = wire.Facts(id="", listener="l", peer="", principal="", principal_type="", tls=None, upstream=True)
        connection = HandledConnection(7, Load(), party, HandlerMetrics(ListenerCounters()), facts)
        data = frame(b"body")
        run = Run(None, 0, data, 0, len(data), 1, 0)
        request = Request(0, run, 1, b"", expects=False, withheld=False)
        assert request.size == 8
        connection.requests.append(request)
        connection.responses.append(request)
        assert (connection.under_way, connection.party, connection.facts) == (2, party, facts)
    finally:
        world.close()
