"""What an endpoint is called, and whether connections avoid it."""

import socket

from framegate.proxy.relay.endpoint import Endpoint


def test_an_address_reads_as_it_is_written_and_is_out_if_it_is_down_or_fails_its_checks() -> None:
    addresses = [(socket.AF_INET, ("10.0.0.1", 9092)), (socket.AF_INET6, ("::1", 9092)), (socket.AF_UNIX, "/run/kafka.sock")]
    assert [Endpoint(*address).text for address in addresses] == ["10.0.0.1:9092", "[::1]:9092", "unix:/run/kafka.sock"]
    endpoint = Endpoint(*addresses[0])
    found = [endpoint.is_out]
    for endpoint.down, endpoint.failing in ((True, ""), (False, "no answer"), (True, "no answer"), (False, "")):
        found.append(endpoint.is_out)
    assert found == [False, True, True, True, False]
