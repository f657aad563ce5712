"""Rules of Kafka clusters: upstreams with ``kafka``, and the listeners in front of them, which say how clients reach each broker."""

import ipaddress
from collections.abc import Sequence
from typing import Final

from framegate.control.configuration.document import WRONG, Document, Path, key_of
from framegate.control.configuration.tls_rules import HOST, host_warning
from framegate.proxy.config.address import Address, parse_address
from framegate.proxy.config.model import BrokersConfig, ListenerConfig, UpstreamConfig

ID: Final = "{id}"
_MOST_DIGITS: Final = "2147483647"  # the longest node id


def port_range(text: str) -> range:
    """The ports of ``FIRST-LAST``, both included, or of one number. Raises ValueError with a sentence that describes the fault."""
    first, dash, last = text.partition("-")
    if not all(part.isascii() and part.isdigit() for part in (first, last if dash else first)):
        raise ValueError('is not a range of ports: write FIRST-LAST, as in "9100-9199"')
    ports = range(int(first), int(last if dash else first) + 1)
    if not ports:
        raise ValueError("ends before it begins")
    if ports[0] < 1 or ports[-1] > 65_535:
        raise ValueError("has ports that are not from 1 to 65535")
    return ports


def advertised_host(listener: ListenerConfig) -> str:
    """The host that clients of a listener in front of a cluster are told for the bootstrap, and with ``ports`` for each broker; empty: not known."""
    assert listener.brokers is not None, "only listeners in front of a cluster advertise"
    if listener.brokers.advertise:
        return listener.brokers.advertise
    address = parse_address(listener.address, port_zero=True)
    return address.host if address.kind == "name" or (address.kind != "unix" and ipaddress.ip_address(address.host).is_loopback) else ""


def broker_host(brokers: BrokersConfig, node: int | str) -> str:
    """The host that clients are told for a broker, with ``hosts``."""
    return brokers.hosts.replace(ID, str(node))


def port_ranges(listeners: Sequence[tuple[Path, ListenerConfig]]) -> list[tuple[Path, Address, range]]:
    """Of each listener with a valid range of ports: its key, the listener's address, the range."""
    found = []
    for path, item in listeners:
        try:
            if item.brokers is not None and item.brokers.ports:
                found.append(((*path, "brokers", "ports"), parse_address(item.address, port_zero=True, unix=False), port_range(item.brokers.ports)))
        except ValueError:  # a fault of its own
            continue
    return found


def cluster_rules(document: Document, path: Path, upstream: UpstreamConfig) -> None:
    """Check that an upstream has either endpoints or a cluster."""
    if upstream.kafka is not None and upstream.endpoints:
        document.add((*path, "kafka"), "excludes endpoints: the brokers of the cluster are found through kafka.bootstrap")


def broker_rules(document: Document, path: Path, listener: ListenerConfig, upstreams: list[tuple[Path, UpstreamConfig]]) -> None:
    """Check ``brokers`` of one listener, which a listener in front of a cluster has, and no other."""
    upstream = next((item for _, item in upstreams if item.name == listener.upstream), None)
    clustered = upstream is not None and upstream.kafka is not None
    brokers, path = listener.brokers, (*path, "brokers")
    if brokers is None:
        if clustered:
            reason = f"is required: {listener.upstream} is a cluster, and clients are told how they reach each broker here: by ports, or by hosts"
            document.add(path, reason)
        return
    if upstream is not None and not clustered:
        document.add(path, f"needs an upstream that is a cluster, and {listener.upstream} has no kafka.bootstrap")
    if listener.protocol == "framed":
        document.add((*path[:-1], "protocol"), "must be kafka: with brokers, answers that hold addresses are rewritten", "framed")
    if listener.handler is not None and listener.handler is not WRONG:
        document.add((*path[:-1], "handler"), "cannot be used with brokers: a handler could pass answers with the brokers' own addresses on")
    if bool(brokers.ports) == bool(brokers.hosts):
        document.add(path, "needs ports, one for each broker, or hosts, a TLS server name for each, and not both")
        return
    try:
        address = parse_address(listener.address, port_zero=True)
    except ValueError:  # a fault of its own
        return
    if address.kind == "unix":
        document.add(path, f"needs a TCP address, and {key_of((*path[:-1], 'address'))} is a Unix socket: Kafka's clients connect to host and port")
        return
    (_ports if brokers.ports else _hosts)(document, path, listener, brokers, address)
    _advertise(document, path, listener, brokers)


def _ports(document: Document, path: Path, listener: ListenerConfig, brokers: BrokersConfig, address: Address) -> None:
    try:
        port_range(brokers.ports)
    except ValueError as error:
        document.add((*path, "ports"), str(error))
    if address.port == 0:
        document.add((*path[:-1], "address"), "needs a port of its own, not 0, beside brokers.ports: clients are told it")
    if brokers.advertise_port:
        document.warn((*path, "advertise_port"), "has no effect without hosts: clients are told the ports that are bound")


def _hosts(document: Document, path: Path, listener: ListenerConfig, brokers: BrokersConfig, address: Address) -> None:
    if brokers.hosts.count(ID) != 1:
        document.add((*path, "hosts"), f'needs {ID} once, where the node id stands, as in "broker-{ID}.kafka.example.org"')
    elif not HOST.fullmatch(longest := broker_host(brokers, _MOST_DIGITS)) or len(longest) > 253 or "*" in longest:
        document.add((*path, "hosts"), "is no host name with a node id in it")
    elif brokers.advertise and _is_broker(brokers, brokers.advertise):
        document.add((*path, "advertise"), "is also the name of a broker, by hosts: the bootstrap needs a name of its own")
    if listener.tls is None:
        document.add((*path, "hosts"), "needs tls at the listener: the broker is chosen by the TLS server name")
    elif document.files and not listener.tls.certificates:
        document.warn((*path, "hosts"), host_warning(listener.tls.certificate, broker_host(brokers, 0)))
    if (*path, "by") in document.texts:
        document.warn((*path, "by"), "has no effect without ports")


def _is_broker(brokers: BrokersConfig, name: str) -> bool:
    before, _, after = brokers.hosts.lower().partition(ID)
    node = name.lower().rstrip(".").removeprefix(before).removesuffix(after.rstrip("."))
    return node.isdigit() and name.lower().rstrip(".") == f"{before}{node}{after}".rstrip(".")


def _advertise(document: Document, path: Path, listener: ListenerConfig, brokers: BrokersConfig) -> None:
    key = (*path, "advertise")
    if not brokers.advertise:
        if brokers.hosts:
            document.add(key, "is required with hosts: the name by which clients reach the bootstrap")
        elif not advertised_host(listener):
            document.add(key, f"is required: clients may not reach {listener.address}; write the host that they connect to")
        return
    try:
        text = brokers.advertise
        advertised = parse_address(f"[{text}]:1" if ":" in text else f"{text}:1", unix=False)
    except ValueError:
        document.add(key, "is no host: write a name or an address, without a port")
        return
    if advertised.wildcard:
        document.add(key, "is a wildcard, to which no client can connect: write the host that clients connect to")
    elif brokers.hosts and advertised.kind != "name":
        document.add(key, "must be a name: with hosts, clients name the server that they want, and an address is none")
