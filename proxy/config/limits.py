"""Limits of clients: sizes of frames, and quotas on connections and on traffic per second, of the node, of listeners and of client addresses.

The same six keys (``RateLimits``) hold for the node, a listener and an address. An address is an IPv4 address or the /64 of an IPv6 address
(``client_key``); clients of Unix sockets have none. The limits of an address are those of ``per_address``, with the keys of the most specific
override for it (``AddressLimits``). Control applies the limits on connections, processors those on bytes and frames; both use ``LimitsInForce``.

A listener may also have rules (``LimitRule``), of which the first that matches a connection gives it another size and further rates.
"""

import dataclasses
import ipaddress
import socket
from collections.abc import Iterable, Mapping
from typing import Annotated, Final, Literal, NamedTuple

from framegate.proxy.config.key import Key

Access = Literal["allow", "deny"]
CONNECTIONS: Final = Key(range=(0, 10_000_000))
CONNECTION_RATE: Final = Key(range=(0, 1_000_000))
REQUEST_BYTES: Final = Key("bytes/s", (0, 1024**4))
RESPONSE_BYTES: Final = Key("bytes/s", (0, 1024**4))
REQUEST_FRAMES: Final = Key(range=(0, 1_000_000_000))
RESPONSE_FRAMES: Final = Key(range=(0, 1_000_000_000))
MAX_INT32: Final = 2**31 - 1  # the largest body of a frame that a size header of 4 bytes can state
MAX_RECEIVE_SIZE: Final = Key("bytes", (1, MAX_INT32), effect="now")  # of a listener and of its rules; changes over the API use its range
_IPV6_PREFIX: Final = 64
_MAPPED: Final = bytes(10) + b"\xff\xff"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RateLimits:
    """The limits of the node, a listener or a client address. 0 is unlimited."""

    connections: Annotated[int, CONNECTIONS] = 0
    connection_rate: Annotated[int, CONNECTION_RATE] = 0
    request_bytes_rate: Annotated[int, REQUEST_BYTES] = 0
    response_bytes_rate: Annotated[int, RESPONSE_BYTES] = 0
    request_frames_rate: Annotated[int, REQUEST_FRAMES] = 0
    response_frames_rate: Annotated[int, RESPONSE_FRAMES] = 0


UNLIMITED: Final = RateLimits()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LimitRule:
    """The limits of those connections of a listener whose client matches: one pattern or network of each list that is not empty. The first rule that
    matches is used. Its size, if it has one, replaces the listener's; with ``report_only`` frames above it are counted, and those above the
    listener's are refused. Its rates are shared by all its connections, and apply besides those of the address, the listener and the node.
    """

    name: str
    principals: tuple[str, ...] = ()
    client_ids: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    max_receive_size: Annotated[int | None, MAX_RECEIVE_SIZE] = None
    request_bytes_rate: Annotated[int, REQUEST_BYTES] = 0
    response_bytes_rate: Annotated[int, RESPONSE_BYTES] = 0
    request_frames_rate: Annotated[int, REQUEST_FRAMES] = 0
    response_frames_rate: Annotated[int, RESPONSE_FRAMES] = 0
    report_only: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ListenerLimits(RateLimits):
    """The limits of a listener, and those of some of its clients, in the order in which they are asked."""

    rules: tuple[LimitRule, ...] = ()


UNLIMITED_LISTENER: Final = ListenerLimits()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LimitOverride:
    """The limits of each client address of a network. Only the most specific network of an address counts; None: as in ``per_address``."""

    network: str
    access: Access = "allow"
    connections: Annotated[int | None, CONNECTIONS] = None
    connection_rate: Annotated[int | None, CONNECTION_RATE] = None
    request_bytes_rate: Annotated[int | None, REQUEST_BYTES] = None
    response_bytes_rate: Annotated[int | None, RESPONSE_BYTES] = None
    request_frames_rate: Annotated[int | None, REQUEST_FRAMES] = None
    response_frames_rate: Annotated[int | None, RESPONSE_FRAMES] = None

    def over(self, limits: RateLimits) -> RateLimits:
        given = {name: value for name in _NAMES if (value := getattr(self, name)) is not None}
        return dataclasses.replace(limits, **given)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LimitsConfig(RateLimits):
    """The limits of the node and of addresses; a listener has its own."""

    protected_listener: str | None = None
    per_address: RateLimits = UNLIMITED
    overrides: tuple[LimitOverride, ...] = ()


UNLIMITED_NODE: Final = LimitsConfig()
_NAMES: Final = tuple(field.name for field in dataclasses.fields(RateLimits))
ANY_ADDRESS: Final = ""  # the network of addresses without an override
_NO_ADDRESS: Final = ""  # the key of a Unix socket's client


def client_key(peer: str) -> str:
    """The client address of ``host:port`` or ``[v6]:port`` (``format_peer``): an IPv4 address (also one written as IPv6), or the /64 of an IPv6
    address. Empty for a client of a Unix socket.
    """
    if peer.startswith("unix:"):
        return _NO_ADDRESS
    host = peer.rpartition(":")[0]
    if not host.startswith("["):
        return host
    packed = socket.inet_pton(socket.AF_INET6, host[1:-1].partition("%")[0])
    if packed.startswith(_MAPPED):
        return socket.inet_ntop(socket.AF_INET, packed[12:])
    return f"{socket.inet_ntop(socket.AF_INET6, packed[:8] + bytes(8))}/{_IPV6_PREFIX}"


def parse_network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    """The network of an override. Raises ValueError with a sentence that describes the fault."""
    network = ipaddress.ip_network(text)
    if network.version == 6 and network.prefixlen > _IPV6_PREFIX:
        raise ValueError(f"{text} is part of a /{_IPV6_PREFIX}, and of IPv6 the whole of that counts as one address")
    if str(network) != text:
        raise ValueError(f"{text} is written {network}")
    return network


class AddressLimit(NamedTuple):
    """The limits of one address, and the network of its override (``ANY_ADDRESS``: none)."""

    limits: RateLimits
    network: str = ANY_ADDRESS
    denied: bool = False


class AddressLimits:
    """The limits of all client addresses. Immutable. ``overrides``: with valid networks, no two of which are equal."""

    def __init__(self, per_address: RateLimits, overrides: Iterable[LimitOverride] = ()) -> None:
        self._others: Final = AddressLimit(per_address)
        self._networks: Final[dict[tuple[int, int, int], AddressLimit]] = {}
        for override in overrides:
            network = parse_network(override.network)
            limit = AddressLimit(override.over(per_address), str(network), override.access == "deny")
            self._networks[network.version, network.prefixlen, int(network.network_address) >> (network.max_prefixlen - network.prefixlen)] = limit
        self._lengths: Final = {version: sorted({length for of, length, _ in self._networks if of == version}, reverse=True) for version in (4, 6)}

    @property
    def kinds(self) -> list[RateLimits]:
        """All different limits: of addresses without an override, and of each network."""
        return [self._others.limits, *(limit.limits for limit in self._networks.values())]

    def of(self, key: str) -> AddressLimit:
        """The limits of an address (``client_key``); an empty one is not limited."""
        if not self._networks or key == _NO_ADDRESS:
            return self._others if key != _NO_ADDRESS else _UNLIMITED
        if ":" in key:
            version, bits, packed = 6, 128, socket.inet_pton(socket.AF_INET6, key.partition("/")[0])
        else:
            version, bits, packed = 4, 32, socket.inet_pton(socket.AF_INET, key)
        number = int.from_bytes(packed, "big")
        for length in self._lengths[version]:
            found = self._networks.get((version, length, number >> (bits - length)))
            if found is not None:
                return found
        return self._others


_UNLIMITED: Final = AddressLimit(UNLIMITED)


class LimitsInForce(NamedTuple):
    """All quotas: of the node (the protected listener is exempt from its ``connections`` and ``connection_rate``), of listeners, and of addresses."""

    node: RateLimits
    listeners: dict[str, ListenerLimits]
    addresses: AddressLimits


def limits_in_force(limits: LimitsConfig, listeners: Mapping[str, ListenerLimits]) -> LimitsInForce:
    """All quotas; ``listeners``: of each listener, by name."""
    return LimitsInForce(limits, dict(listeners), AddressLimits(limits.per_address, limits.overrides))
