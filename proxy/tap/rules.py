"""Which connections are tapped, and how: asked once for each direction of a connection that becomes READY.

The first rule that matches decides. No rule: None, and the relay never calls the tap for that direction.
"""

import ipaddress
from typing import Final

from mypy_extensions import i64

from proxy.config.model import TapRule
from proxy.tap.point import TapPoint
from proxy.tap.record import CAPTURES, DIRECTIONS, PROTOCOLS
from proxy.tap.writer import TapWriter

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address

SAMPLE_SCALE: Final = 1 << 32
# 2^64 divided by the golden ratio: multiplying by it spreads consecutive ids evenly (Knuth's multiplicative hash).
HASH_FACTOR: Final = 0x9E3779B97F4A7C15


class CompiledRule:
    """One rule, ready to be asked."""

    def __init__(self, rule: TapRule) -> None:
        self.name = rule.name
        self.capture: i64 = CAPTURES.index(rule.capture)
        self.max_frame_bytes: i64 = rule.max_frame_bytes
        self.mutes = rule.on_full == "mute"
        self._listeners = frozenset(rule.listeners)
        self._directions = frozenset(DIRECTIONS.index(direction) for direction in rule.directions)
        self._principals = frozenset(rule.principals)
        self._networks: list[Network] = [ipaddress.ip_network(network, strict=False) for network in rule.networks]
        self._sample_below = round(rule.sample_connections * SAMPLE_SCALE)

    def matches(self, listener: str, direction: int, principal: str | None, address: Address | None) -> bool:
        """Whether the rule holds for one direction of a connection; ``address`` is None for a client without an IP address."""
        if self._listeners and listener not in self._listeners:
            return False
        if direction not in self._directions:
            return False
        if self._principals and principal not in self._principals:
            return False
        if not self._networks:
            return True
        return address is not None and any(address in network for network in self._networks)

    def samples(self, connection: int) -> bool:
        """Whether the rule's share of connections holds this one; the same answer for both directions."""
        return ((connection * HASH_FACTOR) & 0xFFFFFFFFFFFFFFFF) >> 32 < self._sample_below


class TapRules:
    """The rules of a configuration, in order."""

    def __init__(self, rules: tuple[TapRule, ...], writer: TapWriter) -> None:
        """Compile the rules.

        Args:
            rules: validated; a wrong network raises ValueError.
            writer: where matched frames go.
        """
        self._rules = [CompiledRule(rule) for rule in rules]
        self._writer = writer

    def match(
        self,
        listener: str,
        protocol: str,
        direction: int,
        principal: str | None,
        peer: str | None,
        connection: int,
    ) -> TapPoint | None:
        """The point through which one direction of a connection is tapped; None: it is not.

        Args:
            listener: its name.
            protocol: the listener's: ``framed`` or ``kafka``.
            direction: ``DIRECTION_REQUEST`` or ``DIRECTION_RESPONSE``.
            principal: who the client is; None: nobody.
            peer: the client's address as the connection row shows it: ``host:port``, ``[v6]:port``; anything else matches no network.
            connection: the pair's id.
        """
        address = parse_address(peer)
        for rule in self._rules:
            if rule.matches(listener, direction, principal, address):
                return TapPoint(
                    self._writer,
                    rule.name,
                    listener,
                    PROTOCOLS.index(protocol),
                    direction,
                    principal,
                    peer,
                    connection,
                    rule.capture,
                    rule.max_frame_bytes,
                    rule.mutes,
                    not rule.samples(connection),
                )
        return None


def parse_address(peer: str | None) -> Address | None:
    """The IP address in ``host:port`` or ``[v6]:port``; an IPv4 client of a dual-stack socket is IPv4. None when there is none."""
    if peer is None:
        return None
    host = peer.rpartition(":")[0].strip("[]").partition("%")[0]
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address
