"""A route: one listener, the upstream behind it, and what all their pairs share."""

import socket
from typing import Final

from mypy_extensions import i64

from proxy.network.options import ChannelOptions
from proxy.network.receive import ReceiveLimit
from proxy.relay.counters import ListenerCounters, UpstreamCounters

__all__ = ["Endpoint", "Route", "address_text"]


def address_text(family: int, address: object) -> str:
    """An address as rows show it: ``host:port``, ``[v6]:port`` or ``unix:PATH``."""
    if not isinstance(address, tuple):
        return f"unix:{address}"
    host, port = address[0], address[1]
    return f"[{host}]:{port}" if family == socket.AF_INET6 else f"{host}:{port}"


class Endpoint:
    """One address of an upstream, as one listener's pairs use it.

    Attributes:
        family, address: as ``socket.connect`` takes them.
        text: the address as rows show it.
        options: of the channels to it.
    """

    def __init__(self, family: int, address: object, options: ChannelOptions) -> None:
        self.family: Final = family
        self.address: Final = address
        self.text: Final = address_text(family, address)
        self.options: Final = options


class Route:
    """What the pairs of one listener share.

    Attributes:
        listener, upstream: names.
        protocol: ``framed`` or ``kafka``.
        kafka: requests are paired with answers.
        options: of client channels; ``options.limit`` is the listener's max_receive_size.
        upstream_limit: the max_receive_size of answers.
        half_close_ns: how long one direction may outlive the other without a byte passing.
        waits_before_data: a client that ends its stream before its first byte may read what the server says first.
        counters, upstream_counters: what is counted.
        endpoints: where to connect, taken in turn.
    """

    def __init__(
        self,
        *,
        listener: str,
        upstream: str,
        protocol: str,
        options: ChannelOptions,
        upstream_limit: ReceiveLimit,
        half_close_ns: i64,
        waits_before_data: bool,
        counters: ListenerCounters,
        upstream_counters: UpstreamCounters,
        endpoints: list[Endpoint],
    ) -> None:
        self.listener: Final = listener
        self.upstream: Final = upstream
        self.protocol: Final = protocol
        self.kafka: Final[bool] = protocol == "kafka"
        self.options: Final = options
        self.upstream_limit: Final = upstream_limit
        self.half_close_ns: Final[i64] = half_close_ns
        self.waits_before_data: Final[bool] = waits_before_data
        self.counters: Final = counters
        self.upstream_counters: Final = upstream_counters
        self.endpoints = endpoints
        self._turn: i64 = 0

    def next_endpoint(self) -> Endpoint:
        """The endpoint whose turn it is. There must be one."""
        turn = self._turn % i64(len(self.endpoints))
        self._turn = turn + 1
        return self.endpoints[turn]
