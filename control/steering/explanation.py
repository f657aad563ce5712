"""What channels wait for, who holds them up, and since when: one channel, or all of a listener, in sentences with figures.

The rows of the processors say why framegate does not read a peer, since when, what the peer has not taken, and how old the oldest request is. Waits
of one kind, and for one endpoint, are put together; only their sums, the oldest and the largest are kept, so a listener may have any number of
channels.
"""

import dataclasses
import heapq
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Literal, NamedTuple

from framegate.control.configuration.units import counted, format_about, format_size
from framegate.control.errors import NotFoundError
from framegate.control.fleet.supervisor import Supervisor
from framegate.control.status import Holder, ListenerStatus, PoolStatus
from framegate.control.steering.channels import Channels
from framegate.control.steering.listeners import Listeners, Upstreams, find_listener
from framegate.control.steering.pool import Pool
from framegate.proxy.config.limits import UNLIMITED_LISTENER, LimitRule, RateLimits, client_key, limits_in_force
from framegate.proxy.config.model import ProxyConfig
from framegate.proxy.network.connection_id import format_connection_id, slot_of
from framegate.proxy.server.rows import EndpointRow, OpenRow

Kind = Literal[
    "operator", "client", "endpoint", "answer", "memory", "quota", "handler", "tap", "drain", "handshake", "connect", "failed_endpoint", "accept"
]  # fmt: skip
SHOWN: Final = 5  # Channels that a wait names
SLOW_NS: Final = 1_000_000_000  # a request without an answer is a wait from this age on
UNSENT: Final = 64 * 1024  # Bytes: less than this is on its way to a peer that reads
HOLDERS: Final = 3
_CAUSES: Final[Mapping[str, Kind]] = {
    "admin": "operator", "memory": "memory", "throttle": "quota", "handler": "handler", "tap": "tap", "drain": "drain"
}  # fmt: skip
_SIDES: Final[Mapping[Kind, str]] = {
    "client": "downstream", "handshake": "downstream", "endpoint": "upstream", "answer": "upstream", "connect": "upstream",
    "failed_endpoint": "upstream",
}  # fmt: skip


class Wait(NamedTuple):
    """What channels wait for.

    Attributes:
        side: that holds them up: ``downstream``, ``upstream`` or ``internal``.
    """

    kind: Kind
    text: str
    since_ns: int = 0  # since when the first of them waits, since 1970; 0: not known
    endpoint: str = ""  # that they wait for; empty: none
    waiting: int = 0  # how many channels wait; ``channels``: the ids of at most ``SHOWN``, those with most bytes first
    channels: tuple[int, ...] = ()
    unsent: int = 0  # bytes that the peer has not taken; ``held``: of the memory pool. Of all these channels.
    held: int = 0

    @property
    def side(self) -> str:
        return _SIDES.get(self.kind, "internal")


class Explanation(NamedTuple):
    """A summary as a sentence, and what is waited for; operators and peers first."""

    summary: str
    waits: tuple[Wait, ...]


@dataclasses.dataclass(slots=True)
class _Group:
    """Channels that wait for the same. ``since_ns``, ``oldest``: of the one that waits longest; ``largest``: bytes and row."""

    kind: Kind
    endpoint: str
    count: int = 0
    since_ns: int = 0
    unsent: int = 0
    held: int = 0
    in_flight: int = 0
    largest: list[tuple[int, int, OpenRow]] = dataclasses.field(default_factory=list)

    def add(self, row: OpenRow, since_ns: int, unsent: int) -> None:
        self.count += 1
        self.unsent += unsent
        self.held += row["leased"]
        self.in_flight += row["in_flight"]
        self.since_ns = min(filter(None, (self.since_ns, since_ns)), default=0)
        heapq.heappush(self.largest, (unsent + row["leased"], -row["id"], row))
        if len(self.largest) > SHOWN:
            heapq.heappop(self.largest)

    def rows(self) -> list[OpenRow]:
        """The largest first."""
        return [row for _, _, row in sorted(self.largest, key=lambda item: item[:2], reverse=True)]


class _Groups:
    """The waits of rows, put together."""

    def __init__(self, now_ns: int) -> None:
        self.now_ns = now_ns
        self.found: dict[tuple[Kind, str], _Group] = {}
        self.channels = self.waiting = 0

    def add(self, row: OpenRow) -> None:
        waits = list(_waits(row, self.now_ns))
        self.channels += 1
        self.waiting += bool(waits)
        for kind, since_ns, unsent in waits:
            endpoint = (row["endpoint"] or "") if _SIDES.get(kind) == "upstream" else ""
            self.found.setdefault((kind, endpoint), _Group(kind, endpoint)).add(row, since_ns, unsent)


def _waits(row: OpenRow, now_ns: int) -> Iterator[tuple[Kind, int, int]]:
    """What one channel waits for: the kind, since when, and the bytes that the peer has not taken."""
    if row["state"] == "handshaking":
        yield "handshake", row["opened_ns"], 0
        return
    if row["state"] == "connecting_upstream":
        yield "connect", row["opened_ns"], 0
        return
    for cause in dict.fromkeys((*row["muted"], *row["muted_upstream"])):
        if cause in _CAUSES:
            yield _CAUSES[cause], row["muted_ns"] if cause in row["muted"] else row["muted_upstream_ns"], 0
    requests, answers = row["unsent"]["request"] or 0, row["unsent"]["response"] or 0
    held_up = "peer" in row["muted_upstream"]
    if held_up or answers >= UNSENT:
        yield "client", row["muted_upstream_ns"] if held_up else 0, answers
    if "peer" in row["muted"] or requests >= UNSENT:
        yield "endpoint", row["muted_ns"] if "peer" in row["muted"] else 0, requests
    if row["oldest_ns"] and now_ns - row["oldest_ns"] >= SLOW_NS and not held_up and answers < UNSENT:
        yield "answer", row["oldest_ns"], 0


class Explanations:
    """Explains what channels wait for. Event loop only. ``clock_ns``: since 1970."""

    def __init__(
        self,
        supervisor: Supervisor,
        channels: Channels,
        listeners: Listeners,
        upstreams: Upstreams,
        pool: Pool,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._supervisor = supervisor
        self._channels = channels
        self._listeners = listeners
        self._upstreams = upstreams
        self._pool = pool
        self._clock_ns = clock_ns

    async def channel(self, number: int) -> Explanation:
        """Explain one open channel. Raises NotFoundError; UnavailableError: a processor does not answer."""
        row = await self._channels.describe(number)
        groups = _Groups(self._clock_ns())
        groups.add(row)
        software = " ".join(filter(None, (row["software"], row["software_version"])))
        told = "; ".join(filter(None, (row["principal"], row["client_id"] and f"client id {row['client_id']}", software)))
        server = " ".join(filter(None, (row["upstream"], row["endpoint"]))) or "a handler"
        listener = f"listener {row['listener']}" + (f", limit rule {row['limit_rule']}" if row["limit_rule"] else "")
        unknown = row["oldest_ns"] and not row["in_flight"]
        in_flight = "it waits for an answer" if unknown else f"{counted(row['in_flight'], 'request')} in flight"
        summary = (
            f"channel {format_connection_id(row['id'])}: {row['peer']}{f' ({told})' if told else ''} on {listener}, to {server}; "
            f"{row['state']}, accepted {_age(groups.now_ns - row['opened_ns'])} ago, {in_flight}; "
            f"the last byte passed {_age(groups.now_ns - row['last_active_ns'])} ago"
        )
        return Explanation(summary, await self._texts(groups))

    async def listener(self, name: str) -> Explanation:
        """Explain the open channels of a listener. Raises NotFoundError; UnavailableError: a processor does not answer."""
        found = find_listener(self._supervisor.desired.config, name)
        groups = _Groups(self._clock_ns())
        async for rows in self._channels.each(name):
            for row in rows:
                groups.add(row)
        status = next((item for item in self._listeners.statuses() if item.name == name), None)
        if status is None:
            raise NotFoundError("listener", name)
        waits = [*_refuses(status), *await self._texts(groups, found.upstream or "")]
        waiting = f"{groups.waiting} of them {'waits' if groups.waiting == 1 else 'wait'}" if groups.waiting else "none of them waits"
        return Explanation(f"listener {name}: {counted(groups.channels, 'channel')} open, {waiting}", tuple(waits))

    async def _texts(self, groups: _Groups, upstream: str = "") -> tuple[Wait, ...]:
        """The waits with their sentences; with an upstream also its endpoints that have failed."""
        found, now_ns = groups.found, groups.now_ns
        endpoints: dict[str, EndpointRow] = {}
        if upstream or any(kind in ("answer", "connect") for kind, _ in found):
            endpoints = {
                row["endpoint"]: row for status in await self._upstreams.statuses() for row in status.states if upstream in ("", status.name)
            }
        holders = await self._channels.top_holders(HOLDERS) if ("memory", "") in found else []
        facts = _Facts(self._supervisor.desired.config, self._pool.status(), endpoints, holders, now_ns)
        order = {kind: number for number, kind in enumerate(_TEXTS)}
        waits = [facts.wait(group) for group in sorted(found.values(), key=lambda group: (order[group.kind], -group.count, group.endpoint))]
        return (*waits, *(_failed(row, now_ns) for row in endpoints.values() if upstream and row["out"]))


class _Facts(NamedTuple):
    """What sentences need besides the waiting channels. ``endpoints``: by address."""

    config: ProxyConfig
    pool: PoolStatus
    endpoints: Mapping[str, EndpointRow]
    holders: list[Holder]
    now_ns: int

    def wait(self, group: _Group) -> Wait:
        rows = group.rows()
        text = _TEXTS[group.kind](self, group, rows)
        channels = tuple(row["id"] for row in rows)
        return Wait(group.kind, text, group.since_ns, group.endpoint, group.count, channels, group.unsent, group.held)

    def age(self, group: _Group) -> str:
        """``for 12s``; empty if it is not known since when."""
        return f" for {_age(self.now_ns - group.since_ns)}" if group.since_ns else ""

    def not_read(self, group: _Group, rows: list[OpenRow]) -> str:
        return f"framegate has not read from {_clients(group, rows)}{self.age(group)}"


def _age(length_ns: int) -> str:
    """A duration with two or three digits: ``250ms``, ``9.5s``, ``95s``, ``95m``, ``30h``."""
    seconds = max(length_ns, 0) / 1_000_000_000
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 10:
        return f"{seconds:.1f}".removesuffix(".0") + "s"
    return next(
        f"{seconds // length:.0f}{unit}" for unit, length, most in (("s", 1, 120), ("m", 60, 7_200), ("h", 3_600, math.inf)) if seconds < most
    )


def _clients(group: _Group, rows: list[OpenRow]) -> str:
    """``client 10.0.0.9:51000 (channel 0-1-7)``, or how many and the largest."""
    first = rows[0]
    told = f", client id {first['client_id']}" if first["client_id"] else ""
    one = f"client {first['peer']} (channel {format_connection_id(first['id'])}{told})"
    return one if group.count == 1 else f"{group.count} clients, the largest of them {one}"


def _has(group: _Group) -> str:
    return "has" if group.count == 1 else "have"


def _held(group: _Group) -> str:
    return f", and {format_about(group.held)} of the memory pool {'is' if group.count == 1 else 'are'} held for that" if group.held else ""


def _operator(facts: _Facts, group: _Group, rows: list[OpenRow]) -> str:
    reason = rows[0]["mute_reason"]
    return f"an operator has muted {_clients(group, rows)}{facts.age(group)}{f', for the reason: {reason}' if reason else ''}"


def _client(facts: _Facts, group: _Group, rows: list[OpenRow]) -> str:
    read = f"; framegate has not read further answers{facts.age(group)}" if group.since_ns else ""
    return f"{_clients(group, rows)} {_has(group)} not taken {format_about(group.unsent)} of answers{_held(group)}{read}"


def _endpoint(facts: _Facts, group: _Group, rows: list[OpenRow]) -> str:
    read = f"; {facts.not_read(group, rows)}" if group.since_ns else f" of {_clients(group, rows)}"
    return f"endpoint {group.endpoint} has not taken {format_about(group.unsent)} of requests{_held(group)}{read}"


def _answer(facts: _Facts, group: _Group, rows: list[OpenRow]) -> str:
    known = facts.endpoints.get(group.endpoint)
    usual = f"; on average its first answer takes {_age(known['latency_ns'])}" if known is not None and known["latency_ns"] else ""
    by = f"endpoint {group.endpoint}" if group.endpoint else "the handler"
    oldest = _age(facts.now_ns - group.since_ns)
    if not group.in_flight:  # its protocol has no requests that can be counted
        return f"{by} has not answered {_clients(group, rows)}; the oldest wait is {oldest} old{usual}"
    return f"{by} has not answered {counted(group.in_flight, 'request')} of {_clients(group, rows)}; the oldest is {oldest} old{usual}"


def _memory(facts: _Facts, group: _Group, rows: list[OpenRow]) -> str:
    slot = slot_of(rows[0]["id"])
    shares = [share for share in facts.pool.shares if share.slot == slot]
    used = "".join(f": processor {slot} holds {format_about(share.usage)} of its {format_about(share.share)}" for share in shares)
    held = ", ".join(
        f"channel {format_connection_id(item.channel)} of {item.peer} ({format_about(item.bytes)}{_WHAT.get((item.side, item.kind), '')})"
        for item in facts.holders
    )
    return f"the memory pool is short{used}; {facts.not_read(group, rows)}{f'; most is held by {held}' if held else ''}"


_WHAT: Final = {
    ("downstream", "begun"): ": a request that is not complete",
    ("downstream", "pending"): ": answers that it has not taken",
    ("upstream", "begun"): ": an answer that is not complete",
    ("upstream", "pending"): ": requests that the upstream has not taken",
}


def _quota(facts: _Facts, group: _Group, rows: list[OpenRow]) -> str:
    first, config = rows[0], facts.config
    limits = limits_in_force(config.limits, {item.name: item.limits for item in config.listeners})
    key = client_key(first["peer"])
    given = first.get("throttle")
    operator = RateLimits() if given is None else RateLimits(request_bytes_rate=given["request_rate"], response_bytes_rate=given["response_rate"])
    own = limits.listeners.get(first["listener"], UNLIMITED_LISTENER)
    levels: Iterable[tuple[str, RateLimits | LimitRule]] = (
        ("an operator's throttle", operator),
        *((f"limit rule {rule.name}", rule) for rule in own.rules if rule.name == first["limit_rule"]),
        (f"listener {first['listener']}", own),
        (f"address {key}", limits.addresses.of(key).limits),
        ("node", limits.node),
    )
    rates = [f"{level}: {text}" for level, limit in levels for text in _rates(limit)]
    return f"a quota is used up ({'; '.join(rates) or 'it has changed since'}); {facts.not_read(group, rows)}"


def _rates(limit: RateLimits | LimitRule) -> Iterator[str]:
    for direction in ("request", "response"):
        if size := getattr(limit, f"{direction}_bytes_rate"):
            yield f"{direction}_bytes_rate {format_size(size)}/s"
        if frames := getattr(limit, f"{direction}_frames_rate"):
            yield f"{direction}_frames_rate {frames}/s"


def _connect(facts: _Facts, group: _Group, rows: list[OpenRow]) -> str:
    known = facts.endpoints.get(group.endpoint)
    failed = f"; it is {known['state']}: {known['detail'] or known['reason']}" if known is not None and known["out"] else ""
    at = f" at {group.endpoint}" if group.endpoint else ""
    return f"upstream {rows[0]['upstream']} is not connected{at} for {_clients(group, rows)}{failed}; the oldest waits{facts.age(group)}"


_TEXTS: Final[Mapping[Kind, Callable[[_Facts, _Group, list[OpenRow]], str]]] = {
    "operator": _operator,
    "client": _client,
    "endpoint": _endpoint,
    "answer": _answer,
    "memory": _memory,
    "quota": _quota,
    "handler": lambda facts, group, rows: f"a handler works on frames; {facts.not_read(group, rows)}",
    "tap": lambda facts, group, rows: f"the tap's queue is full, and a tap rule says on_full: mute; {facts.not_read(group, rows)}",
    "drain": lambda facts, group, rows: f"framegate drains; {facts.not_read(group, rows)}",
    "handshake": lambda facts, group, rows: f"{_clients(group, rows)} {_has(group)} not completed the TLS handshake or the login{facts.age(group)}",
    "connect": _connect,
}  # the sentence of each kind, in the order of the answer: operators, peers, then framegate's own bounds


def _failed(row: EndpointRow, now_ns: int) -> Wait:
    state = f"has been {row['state']} for {_age(now_ns - row['since_ns'])}" if row["since_ns"] else f"is {row['state']}"
    why = ": ".join(filter(None, (row["reason"], row["detail"])))
    text = f"endpoint {row['endpoint']} of upstream {row['upstream']} {state} ({why})"
    return Wait("failed_endpoint", text, row["since_ns"], row["endpoint"])


def _refuses(status: ListenerStatus) -> Iterator[Wait]:
    if not status.accepting:
        yield Wait("accept", "the listener accepts no connections: framegate drains or has not started")
    elif status.max_connections and status.connections >= status.max_connections:
        yield Wait(
            "accept", f"the listener accepts no more connections: {status.connections} are open, and limits.connections is {status.max_connections}"
        )
