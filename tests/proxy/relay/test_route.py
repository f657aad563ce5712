"""Routes."""

import pytest

from proxy.network.options import ChannelOptions
from proxy.network.receive import ReceiveLimit
from proxy.relay.counters import ListenerCounters, UpstreamCounters
from proxy.relay.route import Route
from proxy.relay.upstream import Upstream


@pytest.mark.parametrize(("protocol", "kafka"), [("kafka", True), ("framed", False)])
def test_the_protocol_says_whether_requests_are_paired(protocol, kafka):
    counters = ListenerCounters()
    upstream = Upstream("u", UpstreamCounters(), [])
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
