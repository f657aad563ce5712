"""Endpoints of upstreams, and the brokers of clusters, from the rows that control sends (``messages.Endpoints``, ``messages.ClusterRow``)."""

import socket
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from framegate.proxy.cells import OTHERS, Place, broker_place, endpoint_place
from framegate.proxy.config.address import parse_address
from framegate.proxy.config.model import UpstreamConfig
from framegate.proxy.errors import ConfigError
from framegate.proxy.kafka.addresses import AdvertisedBrokers, SeenBroker
from framegate.proxy.relay.counters import EndpointCounters
from framegate.proxy.relay.upstream import Endpoint
from framegate.proxy.server.messages import AdvertisedRow, ClusterRow

Address = list[str | int]  # one of ``messages.Endpoints``
CountersOf = Mapping[Place, EndpointCounters]
MOST_ID: Final = 2147483647
MOST_HOST: Final = 255
MOST_PORT: Final = 65535


class BrokersInForce(NamedTuple):
    """The brokers of one cluster: their endpoints, themselves, and what the clients of each listener are told."""

    endpoints: list[Endpoint]
    brokers: list[SeenBroker]
    advertised: dict[str, AdvertisedBrokers]


def literal(endpoint: str) -> Address:
    """The row of an endpoint that is a number or a Unix socket. Raises ConfigError: it is a name."""
    address = parse_address(endpoint)
    if address.kind == "name":
        raise ConfigError(f"the endpoint {endpoint} came without an address")
    return ["", address.family, address.host] if address.kind == "unix" else [address.host, address.family, address.host, address.port]


def endpoints_of(upstream: UpstreamConfig, rows: list[Address], counters: CountersOf) -> list[Endpoint]:
    """The endpoints of rows, with the counters of their places. Raises ConfigError: a row has a host that the configuration does not name."""
    hosts = {_host(endpoint) for endpoint in upstream.addresses}
    for row in rows:
        if row[0] not in hosts:
            raise ConfigError(f"the upstream {upstream.name} has no endpoint with the host {row[0]!r}")
    items = {item.address: item for item in upstream.each_endpoint}
    known = {(_host(text), parse_address(text).port or text): text for text in upstream.addresses}
    found = []
    for host, family, *rest in rows:
        text = known.get((str(host), f"unix:{rest[0]}" if family == socket.AF_UNIX else rest[1]), "")
        item = items.get(text)
        weight, zone = (1, "") if item is None else (item.weight, item.zone)
        own = counters.get(endpoint_place(upstream.name, text)) if text else None
        found.append(_endpoint(upstream, [host, family, *rest], -1, weight=weight, zone=zone, counters=own))
    return found


def server_names(upstream: UpstreamConfig) -> set[str]:
    """The server names of the endpoints that the configuration names."""
    return {_server_name(upstream, _host(endpoint)) for endpoint in upstream.addresses}


def read_cluster(upstream: UpstreamConfig, listeners: Collection[str], row: ClusterRow, counters: CountersOf) -> BrokersInForce:
    """The brokers of a row. ``listeners``: those in front of it; each must have its addresses in the row. Raises ConfigError: the row contradicts
    itself or the configuration.
    """
    whose = f"the brokers of {upstream.name}"
    if upstream.kafka is None:
        raise ConfigError(f"the upstream {upstream.name} has brokers, and is no cluster")
    endpoints: list[Endpoint] = []
    brokers: dict[int, SeenBroker] = {}
    for each in row["brokers"]:
        node = _new_id(each["id"], brokers, whose)
        host, port = "", 0
        for address in reversed(each["addresses"]):
            if len(address) != 4 or address[1] not in (socket.AF_INET, socket.AF_INET6):
                raise ConfigError(f"{whose}: {node} has the address {address}, which is not host, family, address and port")
            host, port = _reachable(address[0], address[3], f"{whose}: {node}")
        own = counters.get(broker_place(upstream.name, str(node))) or counters.get(broker_place(upstream.name, OTHERS))
        endpoints += [_endpoint(upstream, address, node, zone=each["rack"], counters=own) for address in each["addresses"]]
        brokers[node] = SeenBroker(node, host, port, each["rack"] or None)
    fronts = row["listeners"]
    if set(fronts) != set(listeners):
        raise ConfigError(f"{whose} are told by {', '.join(sorted(fronts)) or 'no listener'}, and not by {', '.join(sorted(listeners)) or 'none'}")
    return BrokersInForce(endpoints, list(brokers.values()), {name: _advertised(whose, brokers, each) for name, each in fronts.items()})


def _advertised(whose: str, brokers: Collection[int], row: AdvertisedRow) -> AdvertisedBrokers:
    if len(row["bootstrap"]) != 2 or any(len(each) != 3 for each in row["brokers"]):
        raise ConfigError(f"{whose}: what clients are told is not host and port, with the id of a broker before them")
    told: dict[int, tuple[str, int]] = {}
    for number, host, port in row["brokers"]:
        node = _new_id(number, told, whose)
        if node not in brokers:
            raise ConfigError(f"{whose}: clients are told an address of {node}, which is none of them")
        told[node] = _reachable(host, port, f"{whose}: {node}")
    host, port = row["bootstrap"]
    return AdvertisedBrokers(*_reachable(host, port, f"{whose}: the bootstrap"), told)


def _new_id(node: str | int, known: Collection[int], whose: str) -> int:
    if not isinstance(node, int) or not 0 <= node <= MOST_ID or node in known:
        raise ConfigError(f"{whose}: the id {node} is no number of a broker, or is there twice")
    return node


def _reachable(host: str | int, port: str | int, whose: str) -> tuple[str, int]:
    if not isinstance(host, str) or not isinstance(port, int) or not 0 < len(host) <= MOST_HOST or not 0 < port <= MOST_PORT:
        raise ConfigError(f"{whose} has the host {host!r:.80} and the port {port!r:.80}, which is no address")
    return host, port


def _endpoint(
    upstream: UpstreamConfig, row: Address, broker: int, *, weight: int = 1, zone: str = "", counters: EndpointCounters | None = None
) -> Endpoint:
    host, family, *rest = row
    place = str(rest[0]) if family == socket.AF_UNIX else (str(rest[0]), int(rest[1]))
    return Endpoint(int(family), place, _server_name(upstream, str(host)), broker, weight=weight, zone=zone, counters=counters)


def _host(endpoint: str) -> str:
    """The host of an endpoint: a name as the configuration writes it, a number in its shortest form; empty for a Unix socket."""
    address = parse_address(endpoint)
    return "" if address.kind == "unix" else address.host


def _server_name(upstream: UpstreamConfig, host: str) -> str:
    """The name that an endpoint's certificate must have, also sent as SNI if it is no number; empty for plaintext. A final dot only tells a resolver
    not to try search domains; it is no part of the name in SNI or in a certificate.
    """
    if upstream.tls is None:
        return ""
    return upstream.tls.server_name or host.rstrip(".") or "localhost"
