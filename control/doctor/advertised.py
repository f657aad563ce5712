"""Where the brokers of an upstream send clients: Kafka's clients connect to the addresses in Metadata, whatever address they came from.

Each of those must be a listener here that leads to this broker alone; else clients bypass framegate, or reach another broker than the one they want.
"""

from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple

from framegate.control.configuration.units import counted
from framegate.control.doctor.finding import Finding, judged
from framegate.proxy.auth.messages import ApiRange, RequestHeader, answer_reader, request_writer
from framegate.proxy.auth.wire import Reader
from framegate.proxy.config.address import parse_address
from framegate.proxy.config.model import ProxyConfig, UpstreamConfig

__all__ = ["Broker", "brokers_in", "finding", "metadata_question"]

_METADATA: Final = 3
_LEAST: Final = 1
_MOST: Final = 8
"""Versions that are asked: before 1 an empty list of topics means all topics, and from 9 on the encoding is another one."""
_CORRELATION: Final = 1
_SHOWN: Final = 3
_ADVICE: Final = (
    "have each broker advertise a listener of framegate that leads to it alone: for each broker one entry of listeners, and one of upstreams "
    "with one endpoint"
)


class Broker(NamedTuple):
    """A broker of a cluster, as Metadata names it to clients."""

    node: int
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def metadata_question(ranges: Sequence[ApiRange]) -> tuple[int, bytes] | None:
    """The newest version that both know, and the frame, with its size, that asks for all brokers and no topic; None: there is no such version."""
    known = next((item for item in ranges if item.key == _METADATA), None)
    if known is None or known.most < _LEAST or known.least > _MOST:
        return None
    version = min(known.most, _MOST)
    request = request_writer(RequestHeader(_METADATA, version, _CORRELATION, "framegate"))
    request.count(0)
    body = request.message() + bytes(
        0 if version < 4 else 1 if version < 8 else 3
    )  # no topics are created, and no authorized operations are asked for
    return version, len(body).to_bytes(4, "big") + body


def brokers_in(body: bytes, version: int) -> list[Broker]:
    """The brokers in an answer without its size. Raises MalformedError: it does not answer the question."""
    reader = answer_reader(body, RequestHeader(_METADATA, version, _CORRELATION))
    if version >= 3:
        reader.int32("throttle time")
    return reader.array("brokers", lambda: _broker(reader), 12)


def _broker(reader: Reader) -> Broker:
    found = Broker(reader.int32("node id"), reader.string("host"), reader.int32("port"))
    reader.nullable_string("rack")
    return found


def finding(subject: str, config: ProxyConfig, upstream: UpstreamConfig, addresses: Collection[Any], brokers: list[Broker]) -> Finding:
    """Judge the addresses in Metadata that an upstream's clients are sent to. ``subject``: the address that was asked. ``config``: its listeners are
    where clients should come back. ``addresses``: of all endpoints, as the link has them.
    """
    ports = {_port(item.address) for item in config.listeners if item.protocol == "kafka"} - {None, 0}
    endpoints = set(upstream.addresses) | {f"{host}:{port}" for _, _, host, port in (wire for wire in addresses if len(wire) == 4)}
    past = [item for item in brokers if item.port not in ports or str(item) in endpoints]
    many, apart = len(brokers) > 1, len({str(item) for item in brokers}) == len(brokers)
    if past:
        words = f"Metadata sends clients to {_named(past)}, which is no listener here: they walk past framegate"
    elif not apart:
        words = f"Metadata has one address for several brokers, {_named(brokers)}: clients meet one that is not the one they want"
    elif many and len(addresses) > 1:
        words = f"its {len(addresses)} addresses are taken in turn, and Metadata names {len(brokers)} brokers: clients meet the wrong one"
    else:
        words = f"Metadata names {counted(len(brokers), 'broker')}, by ports of listeners here: {_named(brokers)}"
    wrong = bool(past) or not apart or (many and len(addresses) > 1)
    figures = {"brokers": len(brokers), "brokers_past_framegate": len(past)}
    return judged("upstreams", f"{subject}, where clients are sent", words, figures, warning=_ADVICE if wrong else None)


def _named(brokers: list[Broker]) -> str:
    more = f" and {len(brokers) - _SHOWN} more" if len(brokers) > _SHOWN else ""
    return ", ".join(map(str, brokers[:_SHOWN])) + more


def _port(address: str) -> int | None:
    return parse_address(address, port_zero=True, unix=True).port
