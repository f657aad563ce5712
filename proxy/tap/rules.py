"""Which frames are tapped, and how: applied to each direction of a connection that becomes READY, and again when rules change.

The first rule that matches decides. Without one, the relay never calls the tap for that direction. A rule that takes all frames of a direction need
not examine them; if a rule before it examines frames, ``selection`` finds the rule of each frame.
"""

import dataclasses
import fnmatch
import ipaddress
import json
import re
from json.encoder import encode_basestring
from typing import Final, NamedTuple

from mypy_extensions import i64

from framegate.proxy.config.limits import MAX_INT32
from framegate.proxy.config.model import TapRule
from framegate.proxy.config.selection import api_key, byte_range, overlap
from framegate.proxy.tap.frame_tap import FrameTap
from framegate.proxy.tap.gap import Gap
from framegate.proxy.tap.point import TapPoint
from framegate.proxy.tap.record import CAPTURE_FULL, CAPTURES, DIRECTION_REQUEST, DIRECTIONS, FRAMINGS, PROTOCOLS, REASON_NONE
from framegate.proxy.tap.redaction import Redaction
from framegate.proxy.tap.rule_use import RuleUse
from framegate.proxy.tap.selection import SAMPLE_SCALE, Candidate, Conditions, SelectingTap
from framegate.proxy.tap.writer import TapWriter

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# 2^64 divided by the golden ratio: multiplying by it spreads consecutive ids evenly (Knuth's multiplicative hash).
HASH_FACTOR: Final = 0x9E3779B97F4A7C15


class TurnedOff(NamedTuple):
    """A rule that exceeded a limit of its own and matches nothing any more: ``cause`` is ``loss`` or ``cpu``."""

    rule: str
    cause: str
    percent: float
    limit: float


NEVER_NS: Final = (1 << 63) - 1
KAFKA: Final = PROTOCOLS.index("kafka")


class CompiledRule:
    """One rule, compiled."""

    def __init__(self, rule: TapRule) -> None:
        self.rule = rule
        self.name = rule.name
        self.capture: i64 = CAPTURES.index(rule.capture)
        self.max_frame_bytes: i64 = rule.max_frame_bytes
        self.mutes = rule.on_full == "mute"
        self._listeners = frozenset(rule.listeners)
        self._directions = frozenset(DIRECTIONS.index(direction) for direction in rule.directions)
        self._principals = frozenset(rule.principals)
        self._networks: list[Network] = [ipaddress.ip_network(network, strict=False) for network in rule.networks]
        self._sample_below = round(rule.sample_connections * SAMPLE_SCALE)
        self._reads_kafka = bool(rule.apis or rule.clients)
        self.redaction = _redaction(rule)
        self.conditions = _conditions(rule)
        self.use: RuleUse | None = None
        if rule.max_loss_percent > 0 or rule.max_cpu_percent > 0:
            self.use = RuleUse(rule.name, rule.max_loss_percent, rule.max_cpu_percent)
        self.takes_all = self.use is None and _takes_all(rule)

    @property
    def is_off(self) -> bool:
        """Whether the rule exceeded a limit of its own."""
        return self.use is not None and self.use.off

    def matches(self, listener: str, protocol: i64, direction: int, principal: str | None, address: Address | None) -> bool:
        """Whether the rule may match frames of one direction of a connection; ``address`` is None for a client without an IP address."""
        if self.is_off or (self._reads_kafka and protocol != KAFKA):
            return False
        if self._listeners and listener not in self._listeners:
            return False
        if direction not in self._directions:
            return False
        if self._principals and principal not in self._principals:
            return False
        if not self._networks:
            return True
        return address is not None and any(address in network for network in self._networks)

    def applies(self, listener: str, protocol: i64, principal: str | None, address: Address | None) -> bool:
        """Whether the rule may match frames of a connection, of either direction, and has not expired."""
        if self.conditions.expired:
            return False
        return any(self.matches(listener, protocol, direction, principal, address) for direction in self._directions)

    def samples(self, connection: int) -> bool:
        """Whether the rule's share of connections includes this one; the same for both directions."""
        return ((connection * HASH_FACTOR) & 0xFFFFFFFFFFFFFFFF) >> 32 < self._sample_below


class TapRules:
    """Rules in order."""

    def __init__(self, rules: tuple[TapRule, ...], writer: TapWriter) -> None:
        """Compile the rules. They apply after ``begin``, or to a connection that is matched. ``rules``: as in the configuration. ``writer``: gets
        matched frames. Raises ValueError: a rule is not valid: a wrong network, API or range, ranges that overlap, a name used twice.
        """
        names = [rule.name for rule in rules]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"{name}: is the name of two rules")
        self._rules = [_compiled(rule) for rule in rules]
        self._writer = writer
        self._turned_off: list[RuleUse] = []
        self._asks_address = any(rule.networks for rule in rules)
        self._next_ns: i64 = 0
        self.expire(0)

    @property
    def text(self) -> str:
        """The rules in force as in the log: a JSON array of objects, keys sorted, every field of ``TapRule``."""
        in_force = [dataclasses.asdict(rule.rule) for rule in self._rules if not rule.is_off]
        return json.dumps(in_force, sort_keys=True, separators=(",", ":"), ensure_ascii=False)

    def inherit(self, before: "TapRules", changed: str) -> None:
        """Keep unchanged rules turned off that were turned off; before ``begin``. ``before``: the rules in force. ``changed``: the name of the rule
        that the change is about: it is on again, even when it is equal to before.
        """
        known = {rule.name: rule for rule in before._rules if rule.is_off and rule.name != changed}
        for rule in self._rules:
            was = known.get(rule.name)
            if was is not None and was.rule == rule.rule:
                rule.use = was.use

    def begin(self, now_ns: i64) -> None:
        """Apply the rules to all later chunks, and record that; ``now_ns``: wall clock."""
        watched: dict[str, RuleUse] = {}
        for rule in self._rules:
            if rule.use is not None:
                watched[rule.name] = rule.use
        self._writer.watched = watched
        self._writer.set_rules(self.text, now_ns)

    def expire(self, now_ns: i64) -> bool:
        """Find rules that have expired; ``now_ns``: wall clock. Returns whether any did since the last call."""
        if now_ns < self._next_ns:
            return False
        found = False
        self._next_ns = NEVER_NS
        for rule in self._rules:
            conditions = rule.conditions
            if conditions.expires_ns == 0 or conditions.expired:
                continue
            if conditions.expires_ns <= now_ns:
                conditions.expired = found = True
            elif conditions.expires_ns < self._next_ns:
                self._next_ns = conditions.expires_ns
        return found

    def take_turned_off(self, now_ns: i64) -> list[TurnedOff]:
        """The rules turned off since the last call; the rules that are left are recorded. Nearly always empty."""
        if not self._turned_off:
            return []
        found = [TurnedOff(use.rule, use.cause, use.percent, use.limit) for use in self._turned_off]
        self._turned_off.clear()
        self._writer.set_rules(self.text, now_ns)
        return found

    def match(
        self,
        listener: str,
        protocol: str,
        direction: int,
        principal: str | None,
        peer: str | None,
        connection: int,
        framing: str = "int32",
    ) -> FrameTap | None:
        """The tap of one direction of a connection; None: it is not tapped.

        Args:
            protocol: the listener's: ``framed`` or ``kafka``.
            direction: ``DIRECTION_REQUEST`` or ``DIRECTION_RESPONSE``.
            principal: of the client; None: none.
            peer: the client's address as in the connection row: ``host:port``, ``[v6]:port``; anything else matches no network.
        """
        address = parse_address(peer) if self._asks_address else None
        spoken = PROTOCOLS.index(protocol)
        candidates: list[Candidate] = []
        for rule in self._rules:
            if rule.matches(listener, spoken, direction, principal, address):
                point = TapPoint(
                    writer=self._writer,
                    rule=rule.name,
                    listener=listener,
                    protocol=spoken,
                    framing=FRAMINGS.index(framing),
                    direction=direction,
                    principal=principal,
                    peer=peer,
                    connection=connection,
                    capture=rule.capture,
                    max_frame_bytes=rule.max_frame_bytes,
                    mutes=rule.mutes,
                    sampled_out=not rule.samples(connection),
                    redaction=rule.redaction,
                )
                if rule.takes_all and not candidates:
                    return point
                candidates.append(Candidate(point, rule.conditions, rule.use))
                if rule.takes_all:
                    break
        return SelectingTap(candidates, connection, direction, self._turned_off) if candidates else None

    def note_end(
        self, row: str, listener: str, protocol: str, principal: str | None, peer: str | None, connection: int, opened_ns: i64, closed_ns: i64
    ) -> None:
        """Record the end of a connection, if a rule applies to it; the share of connections that a rule takes does not matter.

        Args:
            row: what the connection was, a JSON object that is not empty.
            listener, protocol, principal, peer, connection: as for ``match``.
            opened_ns, closed_ns: when it was accepted, and when it ended, wall clock.
        """
        address = parse_address(peer) if self._asks_address else None
        spoken = PROTOCOLS.index(protocol)
        for rule in self._rules:
            if rule.applies(listener, spoken, principal, address):
                text = f'{{"tap_rule":{encode_basestring(rule.name)},{row[1:]}'
                if not text.isascii():
                    text = text.encode(errors="replace").decode()  # a name of a Unix socket may have bytes that are no text
                end = Gap(connection=connection, direction=DIRECTION_REQUEST, reason=REASON_NONE, protocol=spoken, from_ns=opened_ns, rule=text)
                end.listener, end.principal, end.peer = listener, principal, peer
                end.add(0, 0, closed_ns)
                self._writer.note_end(end)
                return


def _compiled(rule: TapRule) -> CompiledRule:
    try:
        return CompiledRule(rule)
    except ValueError as error:
        raise ValueError(f"{rule.name}: {error}") from error


def _takes_all(rule: TapRule) -> bool:
    """Whether the rule need not examine frames while it is in force."""
    if rule.min_size > 0 or rule.max_size > 0 or rule.expires_ns != 0:
        return False
    return rule.sample_frames >= 1.0 and not rule.apis and not rule.clients


def _conditions(rule: TapRule) -> Conditions:
    apis: bytes | None = None
    if rule.apis:
        keys = {api_key(api) for api in rule.apis}
        apis = bytes(1 if key in keys else 0 for key in range(max(keys) + 1))
    clients: list[re.Pattern[str]] | None = None
    if rule.clients:
        clients = [re.compile(fnmatch.translate(pattern)) for pattern in rule.clients]
    if 0 < rule.max_size < rule.min_size:
        raise ValueError("min_size is above max_size")
    sample_below = round(rule.sample_frames * SAMPLE_SCALE)
    return Conditions(rule.min_size, rule.max_size or MAX_INT32, apis, clients, sample_below, rule.expires_ns)


def _redaction(rule: TapRule) -> Redaction | None:
    """The ranges of bodies that the rule replaces; None: there are none, or bodies are not kept."""
    blank = [byte_range(text) for text in rule.blank]
    hashed = [byte_range(text) for text in rule.hash]
    if overlap(blank + hashed):
        raise ValueError("bytes are in two ranges of blank and hash together")
    if not (blank or hashed) or CAPTURES.index(rule.capture) != CAPTURE_FULL:
        return None
    return Redaction([(item.start, item.end) for item in blank], [(item.start, item.end) for item in hashed])


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
