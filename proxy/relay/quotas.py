"""Quotas in a processor: the buckets of the node, of listeners, limit rules and client addresses, and which of them apply to a connection.

A rate is that of the whole node. Each processor has a part of it, in millionths: the ``default`` part, which is the same in each processor, and the
whole with one processor. Where connections wait for a rate, the control process changes the parts (``set_parts``): the processors report five times
a second how much of such a rate was used, and how many channels waited (``demands``).

An address has buckets from its first connection until its last one has ended and the debt is paid, so that a client does not get a new burst by
connecting again. At most ``MOST_GONE`` addresses without a connection are kept.
"""

import abc
from collections.abc import Sequence
from typing import Final, NamedTuple

from librt.vecs import vec
from mypy_extensions import i64, mypyc_attr

from framegate.proxy.cells import LISTENER_BLOCK, PROCESSOR_BLOCK, RATE_LEVELS, TAP_DIRECTIONS
from framegate.proxy.config.limits import UNLIMITED, AddressLimits, LimitRule, LimitsInForce, RateLimits, client_key
from framegate.proxy.network.channel import Channel
from framegate.proxy.network.selector import Selector
from framegate.proxy.network.timer import NEVER, CallbackTimer
from framegate.proxy.relay.bucket import WHOLE, Bucket, RateKey, Waits
from framegate.proxy.relay.counters import Counters, LoopCounters
from framegate.proxy.relay.limit_rules import rates_key
from framegate.proxy.relay.throttle import Meter, PairRates, Throttle

NODE: Final = "node"
LISTENER: Final = "listener"
RULE: Final = "rule"
ADDRESS: Final = "address"
COUNTERS: Final = ("request_bytes", "request_frames", "response_bytes", "response_frames")
"""The counters of a level and name, each with a bucket: two of requests, then two of responses."""
DIRECTION: Final = 2  # counters of one direction
THROTTLED: Final = {level: PROCESSOR_BLOCK.at("framegate.rate.throttled", level) for level in RATE_LEVELS}
NODE_LIMITS: Final = [PROCESSOR_BLOCK.at(f"framegate.rate.node.{unit}.limit", way) for way in TAP_DIRECTIONS for unit in ("io", "frame")]
LISTENER_LIMITS: Final = [LISTENER_BLOCK.at(f"framegate.rate.{unit}.limit", way) for way in TAP_DIRECTIONS for unit in ("io", "frame")]
TICK_NS: Final = 200_000_000
MOST_GONE: Final = 4096
MOST_TOLD: Final = 1024  # demands in one message


def rates_of(limits: RateLimits | LimitRule) -> list[int]:
    """The rates, in the order of ``COUNTERS``."""
    return [limits.request_bytes_rate, limits.request_frames_rate, limits.response_bytes_rate, limits.response_frames_rate]


class KeyDemand(NamedTuple):
    """The use of one rate; see ``Bucket.demand``."""

    level: str
    name: str
    counter: str
    used: int
    waiting: int
    wanting: int


@mypyc_attr(allow_interpreted_subclasses=True)
class DemandWatcher(abc.ABC):
    """Passes the demands to the control process, which divides the rates by them."""

    @abc.abstractmethod
    def demanded(self, demands: list[KeyDemand]) -> None:
        """Called five times a second with the rates that channels wait for or that have a part of their own, if there are several processors."""


class Quotas:
    """All quotas of a processor."""

    def __init__(self, loop: Selector, counts: LoopCounters) -> None:
        self.limits: LimitsInForce = LimitsInForce(UNLIMITED, {}, AddressLimits(UNLIMITED))  # in force
        self.active: bool = False  # there is a rate that may apply to a connection
        self.default: i64 = WHOLE  # the part of rates without a part of their own
        self.watcher: DemandWatcher | None = None  # receives the demands
        self.buckets: Final[dict[RateKey, Bucket]] = {}  # by key
        self._loop: Final = loop
        self._cells: vec[i64] = counts.counts.cells
        self._shown: Counters | None = None
        self._waited: Final[dict[RateKey, None]] = {}  # see ``Waits``; also the rates that have a part of their own
        self._waits: Final = {level: Waits(self._waited, counts.counts.cells, at) for level, at in THROTTLED.items()}
        self._channels: Final[dict[str, int]] = {}  # their number, by address with buckets
        self._gone: Final[dict[str, None]] = {}  # addresses without a channel that have a debt, oldest first
        self._parts: Final[dict[RateKey, int]] = {}
        self._timer: Final = CallbackTimer(self._tick)
        self._by_address: bool = False  # some address has a rate

    # What is in force.

    def set_limits(self, limits: LimitsInForce) -> None:
        """Change the rates; existing buckets change at once. The caller calls ``join`` again for each open channel."""
        self.limits = limits
        self._put(NODE, "", limits.node)
        rules = {name for level, name, _ in self.buckets if level == RULE and name.partition("/")[0] in limits.listeners}
        for name, rates in limits.listeners.items():
            self._put(LISTENER, name, rates)
            for rule in rates.rules:
                rules.discard(rates_key(name, rule.name))
                self._put(RULE, rates_key(name, rule.name), rule)
        for name in rules:
            self._put(RULE, name, UNLIMITED)
        for name in self._channels:
            self._put(ADDRESS, name, limits.addresses.of(name).limits)
        self._by_address = any(any(rates_of(kind)) for kind in limits.addresses.kinds)
        self.active = self._by_address or bool(self.buckets)
        self._show()
        self._wake()

    def show_in(self, counters: Counters) -> None:
        """Name the counters that show the rates in force: this processor's part of each, so that all processors together show the rate."""
        self._shown = counters
        self._show()

    def _show(self) -> None:
        if self._shown is None:
            return
        for number, counter in enumerate(COUNTERS):
            self._cells[NODE_LIMITS[number]] = self._in_force((NODE, "", counter))
            for name in self.limits.listeners:
                self._shown.listeners[name].counts.cells[LISTENER_LIMITS[number]] = self._in_force((LISTENER, name, counter))

    def _in_force(self, key: RateKey) -> i64:
        bucket = self.buckets.get(key)
        return 0 if bucket is None else bucket.rate * bucket.part // WHOLE

    def _put(self, level: str, name: str, limits: RateLimits | LimitRule) -> None:
        """Set the rates of the buckets of one name."""
        for number, rate in enumerate(rates_of(limits)):
            key = (level, name, COUNTERS[number])
            bucket = self.buckets.get(key)
            if bucket is not None:
                bucket.set_rate(rate, self._part(key))
                if rate == 0:
                    self._drop(key)
            elif rate != 0:
                self.buckets[key] = Bucket(self._loop, rate, self._part(key), frames=number % DIRECTION == 1, key=key, waits=self._waits[level])

    def _part(self, key: RateKey) -> i64:
        return self._parts.get(key, int(self.default))

    def _drop(self, key: RateKey) -> None:
        bucket = self.buckets.pop(key, None)
        if bucket is not None:
            self._loop.cancel(bucket)
            if key not in self._parts:
                self._waited.pop(key, None)

    # The connections that they apply to.

    def join(
        self,
        throttle: Throttle | None,
        channel: Channel,
        listener: str,
        peer: str,
        rule: str = "",
        *,
        requests: bool,
        answers: bool = False,
        rates: PairRates | None = None,
    ) -> Throttle | None:
        """Apply the quotas in force to a channel, in place of those before.

        Args:
            rule: the key of the limit rule that the client matches (``rates_key``); empty: none.
            requests: the channel is the client's; otherwise it is charged with responses.
            answers: the channel is the client's, and is charged with what it is sent, because there is no upstream.

        Returns the channel's throttle; None if it needs none.
        """
        address = self._address(peer)
        counters = COUNTERS[:DIRECTION] if requests else COUNTERS[DIRECTION:]
        levels = ((ADDRESS, address), (RULE, rule), (LISTENER, listener), (NODE, ""))
        keys = [(level, name, counter) for level, name in levels for counter in counters]
        own = None if rates is None else rates.requests if requests else rates.responses
        buckets = [self.buckets[key] for key in keys if key in self.buckets]
        if own is not None:
            buckets.insert(0, own)
        before = None if throttle is None else throttle.answers if answers else throttle.meter
        if before is not None and before.buckets == buckets:
            return throttle
        if address:
            self._channels[address] += 1
            self._gone.pop(address, None)
        if throttle is not None:
            self._part_with(throttle, answers=answers)
        if buckets:
            if throttle is None:
                throttle = Throttle(channel)
            meter = Meter(throttle, self._loop, buckets, address, answers=answers)
            if answers:
                throttle.answers = meter
            else:
                throttle.meter = meter
        elif address:
            self._leave_address(address)
        return throttle

    def _address(self, peer: str) -> str:
        """The client's address if quotas apply to it, whose buckets are made if necessary; else an empty text."""
        name = client_key(peer) if self._by_address else ""
        if name and name not in self._channels:
            limits = self.limits.addresses.of(name).limits
            if not any(rates_of(limits)):
                return ""
            self._channels[name] = 0
            self._put(ADDRESS, name, limits)
        return name

    def leave(self, throttle: Throttle) -> None:
        """No quota applies to a channel any more; what it read is charged. A second call has no effect."""
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
        if meter.address:
            self._leave_address(meter.address)

    def _leave_address(self, name: str) -> None:
        self._channels[name] -= 1
        if self._channels[name] == 0:
            self._gone[name] = None
            if self._is_rested(name):
                self._forget(name)
            elif len(self._gone) > MOST_GONE:
                self._forget(next(iter(self._gone)))
            self._wake()

    def _is_rested(self, name: str) -> bool:
        """Whether the buckets of an address are like new ones."""
        buckets = [self.buckets.get((ADDRESS, name, counter)) for counter in COUNTERS]
        return all(bucket is None or bucket.is_full(self._loop.now_ns) for bucket in buckets)

    def _forget(self, name: str) -> None:
        del self._gone[name]
        del self._channels[name]
        for counter in COUNTERS:
            self._drop((ADDRESS, name, counter))

    # The parts of several processors.

    def set_parts(self, default: int, parts: Sequence[tuple[str, str, str, int]]) -> None:
        """Change the parts of the rates. ``parts``: level, name, counter, and the part; -1: the default again. Others stay as they are."""
        moved = [(level, name, counter) for level, name, counter, _ in parts] if default == self.default else list(self.buckets)
        self.default = default
        for level, name, counter, part in parts:
            if part < 0:
                self._parts.pop((level, name, counter), None)
            else:
                self._parts[level, name, counter] = part
                self._waited[level, name, counter] = None
        for key in moved:
            bucket = self.buckets.get(key)
            if bucket is not None:
                bucket.set_rate(bucket.rate, self._part(key))
        self._show()
        self._wake()

    def _tick(self) -> None:
        """Forget addresses without a connection and a debt, and report demands."""
        for name in [name for name in self._gone if self._is_rested(name)]:
            self._forget(name)
        watcher = self.watcher
        if watcher is not None and self.default < WHOLE:
            demands = self.demands()
            if demands:
                watcher.demanded(demands)
        self._wake()

    def _wake(self) -> None:
        """Set the timer of the next tick, if one is needed."""
        if self._timer.deadline_ns == NEVER and (self._gone or (self.active and self.default < WHOLE)):
            self._loop.call_at(self._loop.now_ns + TICK_NS, self._timer)

    def demands(self) -> list[KeyDemand]:
        """Of the rates that were waited for since they were reported last, or that have a part of their own; ``MOST_TOLD`` at a time, in turn."""
        demands: list[KeyDemand] = []
        for key in list(self._waited)[:MOST_TOLD]:
            bucket = self.buckets.get(key)
            asked: tuple[i64, i64, i64] = (0, 0, 0)
            del self._waited[key]
            if bucket is not None:
                asked = bucket.demand(self._loop.now_ns)
            if key in self._parts or (bucket is not None and bucket.waiting != 0):
                self._waited[key] = None
            level, name, counter = key
            used, waiting, wanting = asked
            demands.append(KeyDemand(level, name, counter, int(used), int(waiting), int(wanting)))
        return demands
