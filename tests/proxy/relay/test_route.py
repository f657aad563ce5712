"""Routes."""

from framegate.proxy.network.options import ChannelOptions
from framegate.proxy.network.receive import ReceiveLimit
from framegate.proxy.relay.counters import ListenerCounters
from framegate.proxy.relay.route import Route
from framegate.proxy.relay.upstream import Upstream
from tests.fakes.cases import each_of


@each_of(("protocol", "kafka"), [("kafka", True), ("framed", False)])
def test_the_protocol_says_whether_requests_are_paired(protocol, kafka):
    counters = ListenerCounters()
    upstream = Upstream("u", [])
    options = ChannelOptions(side="downstream", limit=ReceiveLimit(1), stats=counters.downstream)
    route = Route(
        listener="l",
        upstream=upstream,
        protocol=protocol,
        options=options,
        upstream_options={},
        half_close_ns=1,
        waits_before_data=False,
        counters=counters,
    )
    assert (route.kafka, route.upstream) == (kafka, upstream)
