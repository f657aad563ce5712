"""Quotas in a processor: the buckets of the node, of each listener and of each client address, and which of them hold for a connection.

A rate is one for the whole node. Each processor has a part of it, in millionths: the ``default`` one, which is the same in each, and all of it where
there is one processor. Where somebody waits for a rate, control moves parts of it (``set_parts``): processors say five times a second what was used
of such a key, and how many waited (``demands``).

An address has buckets from its first connection to its last one's end, and until what it owes is paid: who comes again does not begin anew. What
is kept of those that are gone is bounded (``MOST_GONE``).
"""

import abc
from collections.abc import Sequence
from typing import Final

from librt.vecs import vec
from mypy_extensions import i64, mypyc_attr

from proxy.cells import LISTENER_BLOCK, PROCESSOR_BLOCK, RATE_LEVELS, TAP_DIRECTIONS
from proxy.config.limits import UNLIMITED, AddressLimits, LimitsInForce, RateLimits, client_key
from proxy.network.channel import Channel
from proxy.network.event_loop import EventLoop
from proxy.network.timer import NEVER, Timer
from proxy.relay.bucket import WHOLE, Bucket, Tally
from proxy.relay.counters import Counters, LoopCounters
from proxy.relay.throttle import Meter, Throttle

__all__ = [
    "ADDRESS",
    "COUNTERS",
    "LISTENER",
    "LISTENER_LIMITS",
    "MOST_GONE",
    "NODE",
    "NODE_LIMITS",
    "THROTTLED",
    "DemandWatcher",
    "KeyDemand",
    "Quotas",
]

NODE: Final = "node"
LISTENER: Final = "listener"
ADDRESS: Final = "address"
COUNTERS: Final = ("request_bytes", "request_frames", "response_bytes", "response_frames")
"""What is counted of a key, each in a bucket of its own: the two of requests, and the two of responses."""
DIRECTION: Final = 2  # buckets of one direction
THROTTLED: Final = {level: PROCESSOR_BLOCK.at("framegate.rate.throttled", level) for level in RATE_LEVELS}
NODE_LIMITS: Final = [PROCESSOR_BLOCK.at(f"framegate.rate.node.{unit}.limit", way) for way in TAP_DIRECTIONS for unit in ("io", "frame")]
LISTENER_LIMITS: Final = [LISTENER_BLOCK.at(f"framegate.rate.{unit}.limit", way) for way in TAP_DIRECTIONS for unit in ("io", "frame")]
TICK_NS: Final = 200_000_000
MOST_GONE: Final = 4096
MOST_SEEN: Final = 1024  # addresses in one look at demands


def rates_of(limits: RateLimits) -> list[int]:
    """Of the counters."""
    return [limits.request_bytes_rate, limits.request_frames_rate, limits.response_bytes_rate, limits.response_frames_rate]


class Quota:
    """The buckets of one key.

    Attributes:
        buckets: by counter; None: no rate.
        users: channels that it holds for.
    """

    def __init__(self, level: str, name: str) -> None:
        self.level: Final = level
        self.name: Final = name
        self.buckets: Final[list[Bucket | None]] = [None] * len(COUNTERS)
        self.users: i64 = 0

    @property
    def waiting(self) -> i64:
        """Channels that wait for its tokens."""
        waiting: i64 = 0
        for bucket in self.buckets:
            if bucket is not None:
                waiting += bucket.waiting
        return waiting


class KeyDemand:
    """What was asked of one bucket: millionths of the rate that were used; the others: see ``bucket.Demand``."""

    def __init__(self, level: str, name: str, counter: str, used: i64, waiting: i64, wanting: i64) -> None:
        self.level: Final = level
        self.name: Final = name
        self.counter: Final = counter
        self.used: Final[i64] = used
        self.waiting: Final[i64] = waiting
        self.wanting: Final[i64] = wanting


@mypyc_attr(allow_interpreted_subclasses=True)
class DemandWatcher(abc.ABC):
    """Who divides the rates."""

    @abc.abstractmethod
    def demanded(self, demands: list[KeyDemand]) -> None:
        """Five times a second: the keys that somebody waits for, or that have a part of their own. Not told while there is none, or nobody to share
        with.
        """


class _Tick(Timer):
    def __init__(self, quotas: "Quotas") -> None:
        super().__init__()
        self._quotas: Final = quotas

    def fire(self, now_ns: i64) -> None:
        self._quotas.tick(now_ns)


class Quotas:
    """All of a processor's.

    Args:
        loop: for time and timers.
        counts: of the processor.

    Attributes:
        limits: in force.
        active: there is a rate that may hold for somebody.
        default: the part of a key that control has said nothing of.
        watcher: is told of demands.
        node: of all connections.
    """

    def __init__(self, loop: EventLoop, counts: LoopCounters) -> None:
        self.limits: LimitsInForce = LimitsInForce(UNLIMITED, {}, AddressLimits(UNLIMITED))
        self.active: bool = False
        self.default: i64 = WHOLE
        self.watcher: DemandWatcher | None = None
        self._loop: Final = loop
        self._cells: vec[i64] = counts.counts.cells
        self._shown: Counters | None = None
        self._tallies: Final = {level: Tally(counts.counts.cells, at) for level, at in THROTTLED.items()}
        self.node: Final = Quota(NODE, "")
        self._listeners: Final[dict[str, Quota]] = {}
        self._addresses: Final[dict[str, Quota]] = {}
        self._gone: dict[str, Quota] = {}  # addresses without a connection that owe something, oldest first
        self._parts: Final[dict[tuple[str, str, str], int]] = {}  # by level, name and counter
        self._tick: Final = _Tick(self)
        self._round: list[str] = []  # addresses that are still to be looked at
        self._by_address: bool = False  # some address has a rate

    # What is in force.

    def set_limits(self, limits: LimitsInForce) -> None:
        """Other rates, in force at once in the buckets that there are. Channels that are open are to ``join`` again."""
        self.limits = limits
        self._put(self.node, limits.node)
        for name, rates in limits.listeners.items():
            if name not in self._listeners:
                self._listeners[name] = Quota(LISTENER, name)
            self._put(self._listeners[name], rates)
        for name, quota in [*self._addresses.items(), *self._gone.items()]:
            self._put(quota, limits.addresses.of(name).limits)
        self._by_address = any(any(rates_of(kind)) for kind in limits.addresses.kinds)
        self.active = self._by_address or any(self._is_limited(quota) for quota in (self.node, *self._listeners.values()))
        self._show()
        self._wake()

    def show_in(self, counters: Counters) -> None:
        """Name the counters that show which rates are in force here: this processor's part of each, so that those of all sum up to it."""
        self._shown = counters
        self._show()

    def _show(self) -> None:
        if self._shown is None:
            return
        for counter, bucket in enumerate(self.node.buckets):
            self._cells[NODE_LIMITS[counter]] = 0 if bucket is None else bucket.rate * bucket.part // WHOLE
        for name, quota in self._listeners.items():
            cells = self._shown.listeners[name].counts.cells
            for counter, bucket in enumerate(quota.buckets):
                cells[LISTENER_LIMITS[counter]] = 0 if bucket is None else bucket.rate * bucket.part // WHOLE

    def _is_limited(self, quota: Quota) -> bool:
        return any(bucket is not None for bucket in quota.buckets)

    def _put(self, quota: Quota, limits: RateLimits) -> None:
        """Give a key its rates."""
        for counter, rate in enumerate(rates_of(limits)):
            bucket = quota.buckets[counter]
            part = self._part(quota, counter)
            if bucket is None:
                if rate != 0:
                    frames = counter % DIRECTION == 1
                    quota.buckets[counter] = Bucket(self._loop, rate, part, frames=frames, tally=self._tallies[quota.level])
            elif rate != bucket.rate:
                bucket.set_rate(rate, part)
                if rate == 0:
                    quota.buckets[counter] = None

    def _part(self, quota: Quota, counter: int) -> i64:
        return self._parts.get((quota.level, quota.name, COUNTERS[counter]), int(self.default))

    @property
    def address_count(self) -> int:
        """Addresses that have buckets."""
        return len(self._addresses) + len(self._gone)

    # Whom they hold for.

    def join(
        self, throttle: Throttle | None, channel: Channel, listener: str, peer: str, *, requests: bool, answers: bool = False
    ) -> Throttle | None:
        """Have the quotas in force hold for a channel, in place of those that did.

        Args:
            throttle: of the channel, if it has one.
            listener: of its pair.
            peer: the client of its pair.
            requests: it is the client's, else the upstream's, which is charged with the answers.
            answers: it is the client's, and charged with the answers that it is sent: there is no upstream.

        Returns:
            The channel's throttle; None while it needs none.
        """
        address = self._address(peer)
        first = 0 if requests else DIRECTION
        buckets: list[Bucket] = []
        for quota in (address, self._listeners.get(listener), self.node):
            if quota is not None:
                buckets += [bucket for bucket in quota.buckets[first : first + DIRECTION] if bucket is not None]
        before = None if throttle is None else throttle.answers if answers else throttle.meter
        if before is not None and [stake.bucket for stake in before.stakes] == buckets:
            return throttle
        if throttle is not None:
            self._part_with(throttle, answers=answers)
        if buckets:
            if throttle is None:
                throttle = Throttle(channel)
            name = ""
            if address is not None:
                name = address.name
                address.users += 1
                self._addresses[name] = address
                self._gone.pop(name, None)
            meter = Meter(throttle, self._loop, buckets, name, answers=answers)
            if answers:
                throttle.answers = meter
            else:
                throttle.meter = meter
        return throttle

    def _address(self, peer: str) -> Quota | None:
        """The key of a client, with a bucket for each rate that it has; None when it has none."""
        if not self._by_address:
            return None
        name = client_key(peer)
        quota = self._addresses.get(name) or self._gone.get(name)
        if quota is not None:
            return quota if self._is_limited(quota) else None
        limits = self.limits.addresses.of(name).limits
        if not any(rates_of(limits)):
            return None
        quota = Quota(ADDRESS, name)
        self._put(quota, limits)
        return quota

    def leave(self, throttle: Throttle) -> None:
        """No quota holds for a channel any more; what it read is paid for. Harmless when that is so."""
        self._part_with(throttle, answers=False)
        self._part_with(throttle, answers=True)

    def _part_with(self, throttle: Throttle, *, answers: bool) -> None:
        meter = throttle.answers if answers else throttle.meter
        if meter is None:
            return
        if answers:
            throttle.answers = None
        else:
            throttle.meter = None
        meter.leave()
        if not meter.address:
            return
        quota = self._addresses[meter.address]
        quota.users -= 1
        if quota.users == 0:
            del self._addresses[quota.name]
            self._keep(quota)

    def _keep(self, quota: Quota) -> None:
        """The last connection of an address is gone: keep what it owes."""
        if self._is_new(quota, self._loop.now_ns):
            self._drop(quota)
            return
        self._gone[quota.name] = quota
        if len(self._gone) > MOST_GONE:
            self._drop(self._gone.pop(next(iter(self._gone))))
        self._wake()

    def _is_new(self, quota: Quota, now_ns: i64) -> bool:
        """Whether a key's buckets are as they would be if they were made now."""
        return all(bucket is None or bucket.is_full(now_ns) for bucket in quota.buckets)

    def _drop(self, quota: Quota) -> None:
        for bucket in quota.buckets:
            if bucket is not None:
                self._loop.cancel(bucket)

    # The parts of several processors.

    def set_parts(self, default: int, parts: Sequence[tuple[str, str, str, int]]) -> None:
        """Other parts of the rates.

        Args:
            default: of keys that have none of their own.
            parts: level, name, counter, and the part; -1: the default again. What is not named stays.
        """
        for level, name, counter, part in parts:
            if part < 0:
                self._parts.pop((level, name, counter), None)
            else:
                self._parts[level, name, counter] = part
            quota = self._quota(level, name) if default == self.default else None
            if quota is not None:
                self._move(quota, COUNTERS.index(counter))
        if default != self.default:
            self.default = default
            for quota in self._all():
                for number in range(len(COUNTERS)):
                    self._move(quota, number)
        self._show()
        self._wake()

    def _quota(self, level: str, name: str) -> Quota | None:
        if level == NODE:
            return self.node
        return self._listeners.get(name) if level == LISTENER else self._addresses.get(name) or self._gone.get(name)

    def _all(self) -> list[Quota]:
        return [self.node, *self._listeners.values(), *self._addresses.values(), *self._gone.values()]

    def _move(self, quota: Quota, counter: int) -> None:
        bucket = quota.buckets[counter]
        if bucket is not None:
            bucket.set_rate(bucket.rate, self._part(quota, counter))

    def tick(self, now_ns: i64) -> None:
        """Forget addresses that are gone and owe nothing, and tell what is in demand."""
        for quota in [quota for quota in self._gone.values() if self._is_new(quota, now_ns)]:
            self._drop(self._gone.pop(quota.name))
        watcher = self.watcher
        if watcher is not None and self.default < WHOLE:
            demands = self.demands(now_ns)
            if demands:
                watcher.demanded(demands)
        self._wake()

    def _wake(self) -> None:
        """See that the next tick comes, if there is something for it to do."""
        if self._tick.deadline_ns == NEVER and (self._gone or (self.active and self.default < WHOLE)):
            self._loop.call_at(self._loop.now_ns + TICK_NS, self._tick)

    def demands(self, now_ns: i64) -> list[KeyDemand]:
        """What somebody waits for, or has a part of its own; of the addresses, ``MOST_SEEN`` at a time."""
        demands: list[KeyDemand] = []
        for quota in (self.node, *self._listeners.values()):
            self._look_at(quota, now_ns, demands)
        if not self._round:
            self._round = list(self._addresses)
        for name in self._round[:MOST_SEEN]:
            found = self._addresses.get(name)
            if found is not None:
                self._look_at(found, now_ns, demands)
        del self._round[:MOST_SEEN]
        demands += [
            KeyDemand(level, name, counter, 0, 0, 0) for level, name, counter in self._parts if level == ADDRESS and name not in self._addresses
        ]
        return demands

    def _look_at(self, quota: Quota, now_ns: i64, demands: list[KeyDemand]) -> None:
        for number, bucket in enumerate(quota.buckets):
            if bucket is None:
                continue
            counter = COUNTERS[number]
            asked = bucket.demand(now_ns)
            if asked.waiting != 0 or (quota.level, quota.name, counter) in self._parts:
                used = min(asked.passed, bucket.rate) * WHOLE // bucket.rate
                demands.append(KeyDemand(quota.level, quota.name, counter, used, asked.waiting, asked.wanting))
