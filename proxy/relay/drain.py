"""Drain (rule 8): no new pairs; a pair ends when nothing is in flight; a pair that stays busy is not read any more; the deadline ends the rest.

Problem: a client may send a request at any moment, until it sees the end of its stream. A request that was read must reach the upstream, and its
response the client, both before the deadline. A request that was not read is not lost: the client sees that it was not taken.

A pair goes through three phases, or ends in one of them:

1. Frames pass as before. A pair ends when nothing waits to be read or written, no frame is begun, and: with ``kafka``, no request is open, which is
   checked after each response, so that the client sees the end before it sends the next request; with ``framed`` (or after pairing is lost), right
   after a response with which the client has received as many frames as it sent, two or more; else when no byte passed for ``quiet_ns``, and the
   upstream's kernel has taken what it was sent.
2. The client is not read any more, from a frame's boundary on, and the pair ends as in 1. ``framed``: when a quarter of the time is left, or twice
   ``quiet_ns`` if that is more. ``kafka``: once ``quiet_ns`` have passed since the beginning and all that the
   client sent is read; or, whether it is or not, when a quarter of the time is left.
3. At the deadline the pair ends as it is, ``drain_timeout``: what was received is written for a second more, as in every end.

Pairs are checked every 20 ms, in slices of at most 1 ms a poll.
"""

from collections.abc import Iterator
from typing import Final

from mypy_extensions import i64

from framegate.proxy.cause import Cause
from framegate.proxy.clock import Clock
from framegate.proxy.network import mute
from framegate.proxy.network.channel import Channel
from framegate.proxy.network.selector import Selector
from framegate.proxy.network.timer import Timer
from framegate.proxy.relay import ending, tapping
from framegate.proxy.relay.pair import Pair, PairWatcher
from framegate.proxy.relay.state import PairState

__all__ = ["CHECK_EACH", "SLICE_NS", "TICK_NS", "Drain", "DrainTerms"]

TICK_NS: Final = 20_000_000
SLICE_NS: Final = 1_000_000
CHECK_EACH: Final = 16  # pairs between two readings of the clock
LAST_SHARE: Final = 4  # one part in so many of the time is left for requests that were read


class DrainTerms:
    """The times of one drain, on the selector's clock, and what to do with a pair at each.

    Args:
        quiet_ns: see the module.

    Attributes:
        until_ns: the deadline.
    """

    def __init__(self, quiet_ns: i64) -> None:
        self._quiet_ns: Final[i64] = quiet_ns
        self._started_ns: i64 = 0
        self.until_ns: i64 = 0
        self._stop_ns: i64 = 0  # when clients are not read any more
        self._stop_framed_ns: i64 = 0  # likewise, where quiet is to be seen afterwards

    def begin(self, now_ns: i64) -> None:
        """The drain begins."""
        self._started_ns = now_ns

    def limit(self, now_ns: i64, timeout_ns: i64) -> None:
        """Set the time that is left."""
        self.until_ns = now_ns + timeout_ns
        self._stop_ns = self.until_ns - timeout_ns // LAST_SHARE
        self._stop_framed_ns = min(self._stop_ns, self.until_ns - 2 * self._quiet_ns)

    def drain(self, pair: Pair, now_ns: i64) -> bool:
        """Do what a pair needs now; True: it was cut off at the deadline."""
        pair.drain_until_ns = self.until_ns
        if pair.state is PairState.CLOSED or pair.state is PairState.CLOSING:
            return False
        if now_ns >= self.until_ns:
            why = f"{pair.drain_detail}, and it was " if pair.drain_detail else ""
            ending.end(pair, Cause.DRAIN_TIMEOUT, f"{why}not quiet when the drain ended", "internal")
            return True
        if pair.state is PairState.HANDSHAKING or pair.state is PairState.CONNECTING_UPSTREAM:
            ending.end(pair, pair.drain_cause, pair.drain_detail, "internal")
            return False
        if not pair.draining:
            pair.draining = True
            tapping.forward(pair, pair.upstream)
        client = pair.client.channel
        if client is not None and self._is_to_stop(pair, client, now_ns):
            client.mute(mute.DRAIN)
        if self._is_over(pair, now_ns):
            ending.end(pair, pair.drain_cause, pair.drain_detail, "internal")
        return False

    def _is_to_stop(self, pair: Pair, client: Channel, now_ns: i64) -> bool:
        """Whether the client must not be read any more."""
        if not pair.counts_responses:
            return now_ns >= self._stop_framed_ns
        return now_ns >= self._stop_ns or (now_ns >= self._started_ns + self._quiet_ns and client.read_half.has_no_input())

    def _is_over(self, pair: Pair, now_ns: i64) -> bool:
        """Whether nothing is in flight."""
        client, upstream = pair.client.channel, pair.upstream.channel
        if not pair.counts_responses and client is not None and upstream is not None:
            last_ns = max(client.last_active_ns, upstream.last_active_ns, self._started_ns)
            if now_ns - last_ns < self._quiet_ns or upstream.wire_waiting != 0:
                return False
        return pair.has_no_open_request()


class Drain(Timer):
    """One drain of all pairs of a processor.

    Args:
        selector, clock: for timers, and for the time within a slice.
        pairs: those that are open, by id; it shrinks as they end.
        watcher: its ``drained`` is called once.
        quiet_ns: see the module.

    Attributes:
        active: it has begun, and ``drained`` was not called.
        quiet_ns: of a drain that begins later.
    """

    def __init__(self, selector: Selector, clock: Clock, pairs: dict[int, Pair], watcher: PairWatcher, quiet_ns: i64) -> None:
        super().__init__()
        self._selector: Final = selector
        self._clock: Final = clock
        self._pairs: Final = pairs
        self._watcher: Final = watcher
        self.quiet_ns: i64 = quiet_ns
        self._terms = DrainTerms(quiet_ns)
        self._round: Iterator[Pair] | None = None
        self._cut_off: i64 = 0
        self.active: bool = False

    def start(self, timeout_ns: i64) -> None:
        """Begin, or shorten the time that is left of a drain that goes on."""
        now_ns = self._selector.now_ns
        if self.active and now_ns + timeout_ns >= self._terms.until_ns:
            return
        if not self.active:
            self.active = True
            self._terms = DrainTerms(self.quiet_ns)
            self._terms.begin(now_ns)
        self._terms.limit(now_ns, timeout_ns)
        self._selector.call_at(now_ns, self)

    def fire(self, now_ns: i64) -> None:
        if not self._pairs:
            if self.active:
                self.active = False
                self._watcher.drained(int(self._cut_off))
            return
        if self._round is None:
            self._round = iter(list(self._pairs.values()))
        finished = self._slice(self._round, now_ns)
        if finished:
            self._round = None
        self._selector.call_at(now_ns + (TICK_NS if finished else 0), self)

    def _slice(self, pairs: Iterator[Pair], now_ns: i64) -> bool:
        """Check pairs until the slice is over; True: all were checked."""
        end_ns = i64(self._clock.now_ns()) + SLICE_NS
        for count, pair in enumerate(pairs, 1):
            try:
                if self._terms.drain(pair, now_ns):
                    self._cut_off += 1
            except Exception as error:
                ending.crash(pair, error)
            if count % CHECK_EACH == 0 and i64(self._clock.now_ns()) >= end_ns:
                return False
        return True
