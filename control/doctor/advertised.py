"""Where the brokers of an upstream send clients: Kafka's clients connect to the addresses in Metadata, whatever address they came from.

Each of those must be a listener here that leads to this broker alone; else clients bypass framegate, or reach another broker than the one they want.
An upstream with ``kafka`` needs nothing of its brokers, since framegate writes its own addresses into their answers; only ports may be too few.
"""

from collections.abc import Collection
from typing import Any, Final

from framegate.control.accept.broker_list import Broker
from framegate.control.accept.broker_ports import BrokerPorts
from framegate.control.configuration.units import counted, first_of
from framegate.control.doctor.finding import Finding, judged
from framegate.proxy.config.address import parse_address
from framegate.proxy.config.model import ProxyConfig, UpstreamConfig

_SHOWN: Final = 3
_ADVICE: Final = (
    "name the brokers as kafka: {bootstrap: [...]} at the upstream, with brokers at the listener; or have each broker advertise a listener of "
    "framegate that leads to it alone"
)


def finding(subject: str, config: ProxyConfig, upstream: UpstreamConfig, addresses: Collection[Any], brokers: list[Broker]) -> Finding:
    """Judge the addresses in Metadata that an upstream's clients are sent to. ``subject``: the address that was asked. ``config``: its listeners are
    where clients should come back. ``addresses``: of all endpoints, as the link has them.
    """
    if upstream.kafka is not None:
        return _cluster(subject, config, upstream, brokers)
    ports = {_port(item.address) for item in config.listeners if item.protocol == "kafka"} - {None, 0}
    endpoints = set(upstream.addresses) | {f"{host}:{port}" for _, _, host, port in (wire for wire in addresses if len(wire) == 4)}
    past = [item for item in brokers if item.port not in ports or str(item) in endpoints]
    many, apart = len(brokers) > 1, len({str(item) for item in brokers}) == len(brokers)
    if past:
        words = f"Metadata sends clients to {first_of(past, _SHOWN)}, which is no listener here: they walk past framegate"
    elif not apart:
        words = f"Metadata has one address for several brokers, {first_of(brokers, _SHOWN)}: clients meet one that is not the one they want"
    elif many and len(addresses) > 1:
        words = f"its {len(addresses)} addresses are taken in turn, and Metadata names {len(brokers)} brokers: clients meet the wrong one"
    else:
        words = f"Metadata names {counted(len(brokers), 'broker')}, by ports of listeners here: {first_of(brokers, _SHOWN)}"
    wrong = bool(past) or not apart or (many and len(addresses) > 1)
    figures = {"brokers": len(brokers), "brokers_past_framegate": len(past)}
    return judged("upstreams", f"{subject}, where clients are sent", words, figures, warning=_ADVICE if wrong else None)


def _cluster(subject: str, config: ProxyConfig, upstream: UpstreamConfig, brokers: list[Broker]) -> Finding:
    listeners = [item for item in config.listeners if item.upstream == upstream.name and item.brokers is not None]
    words, figures = f"Metadata names {counted(len(brokers), 'broker')}; framegate writes its own addresses into answers", {"brokers": len(brokers)}
    for listener in listeners:
        assert listener.brokers is not None, "listeners without brokers are left out"
        if not listener.brokers.ports:
            continue
        placed = BrokerPorts(listener.brokers).assign(item.node for item in brokers)
        without = [item for item in brokers if item.node not in placed]
        if without:
            advice = f"widen brokers.ports of {listener.name}: clients that want a broker without a port get the bootstrap address instead"
            words += f"; the ports of {listener.name} have no place for node {first_of([item.node for item in without], _SHOWN)}"
            return judged("upstreams", f"{subject}, where clients are sent", words, {**figures, "brokers_without_port": len(without)}, warning=advice)
    return judged("upstreams", f"{subject}, where clients are sent", words, figures)


def _port(address: str) -> int | None:
    return parse_address(address, port_zero=True, unix=True).port
