"""Routes and the texts of addresses."""

import socket

import pytest

from proxy.network.options import ChannelOptions
from proxy.network.receive import ReceiveLimit
from proxy.relay.counters import ListenerCounters, UpstreamCounters
from proxy.relay.route import Endpoint, Route, address_text


@pytest.mark.parametrize(
    ("family", "address", "text"),
    [
        (socket.AF_INET, ("10.0.0.1", 9092), "10.0.0.1:9092"),
        (socket.AF_INET6, ("::1", 9092), "[::1]:9092"),
        (socket.AF_UNIX, "/run/kafka.sock", "unix:/run/kafka.sock"),
    ],
)
def test_addresses_read_as_they_are_written(family, address, text):
    assert address_text(family, address) == text


def test_endpoints_take_turns_even_when_their_number_changes():
    counters = ListenerCounters()
    limit = ReceiveLimit(1)
    options = ChannelOptions(side="upstream", limit=limit, stats=counters.upstream)
    endpoints = [Endpoint(socket.AF_INET, ("127.0.0.1", port), options) for port in (1, 2, 3)]
    route = Route(
        listener="l",
        upstream="u",
        protocol="kafka",
        options=ChannelOptions(side="downstream", limit=limit, stats=counters.downstream),
        upstream_limit=limit,
        half_close_ns=1,
        waits_before_data=False,
        counters=counters,
        upstream_counters=UpstreamCounters(),
        endpoints=endpoints,
    )
    assert route.kafka
    assert [route.next_endpoint() for _ in range(4)] == [*endpoints, endpoints[0]]
    route.endpoints = endpoints[:1]
    assert route.next_endpoint() is endpoints[0]
