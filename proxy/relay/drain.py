"""Drain (rule 8): pairs end one after the other, each when nothing is in flight; a busy one is not read any more; the deadline ends the rest.

Problem: a client may send a request at any moment, until it sees the end of its stream. A request that was read must reach the upstream, and its
response the client, both before the deadline. A request that was not read was not processed, which the client knows, because its stream ended in
order without an answer. But a client that does not try again has lost it. So the end must come while the client does not send:

1. *Answers are held*, for ``quiet_ns`` at most, while requests pass as before. A client that waits for answers then stops by itself: when it has as
   many requests open as it allows itself. When all of them are answered, and nothing passed for 120 ms and two round trips (containers that have
   used up their share of a CPU stand still for up to 100 ms), the answers are written, and the end of the stream with them: in one segment, or with
   TLS in one record, if they are small. So a client finds the end with the answers, before its next request.
   Needed: the number of open requests (``kafka``), or as many responses as requests, two or more (``framed``).
2. *The pair ends at its next rest*, if it had none in 1, since it sends whatever is answered, or its answers are large or late: right behind the
   answer after which no request is open (``kafka``), or with which the client has received as many frames as it sent (``framed``, or after pairing is
   lost). In 1 and 2 it also ends when no byte passed for ``quiet_ns`` (``framed``: of the drain), and the upstream's kernel took what was sent.
3. *The client is not read any more*, from a frame's boundary on, when a quarter of the time is left (``framed``: twice ``quiet_ns``, if more).
   A client that comes later is read for ``quiet_ns``, if as much is left then. The pair ends as in 2. What this client sends now is not processed.
4. At the deadline the pair ends as it is, ``drain_timeout``: what was received is written for a second more, as in every end.

When the turn of a pair comes depends on the drain. ``start``, after which there are no new pairs: one after the other, at most 10 ms apart, within
half of the time. ``lead_in``, before the stop of a pod: spread evenly over half of the time, after a delay in which the pod's address is still used;
new pairs are taken, and end in their turn; those of clients in the pod stay.

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
from framegate.proxy.network.timer import Timer, spread
from framegate.proxy.relay import ending, tapping
from framegate.proxy.relay.pair import EVEN_FROM, Pair, PairWatcher
from framegate.proxy.relay.state import PairState

TICK_NS: Final = 20_000_000
APART_NS: Final = 10_000_000
REST_NS: Final = 120_000_000
NO_LEAD_IN: Final = -1  # in place of its delay
NO_TIME: Final = 1 << 62
SLICE_NS: Final = 1_000_000
CHECK_EACH: Final = 16  # pairs between two readings of the clock
LAST_SHARE: Final = 4  # one part in so many of the time is left for requests that were read


class DrainTerms:
    """The times of one drain, on the selector's clock, and what to do with a pair at each."""

    def __init__(self, quiet_ns: i64) -> None:
        self._quiet_ns: Final[i64] = quiet_ns
        self._started_ns: i64 = 0
        self.until_ns: i64 = 0  # the deadline
        self._stop_ns: i64 = 0  # when clients are not read any more
        self._stop_framed_ns: i64 = 0  # likewise, where quiet is to be seen afterwards

    def begin(self, now_ns: i64) -> None:
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
        if _opens(pair):
            ending.end(pair, pair.drain_cause, pair.drain_detail, "internal")
            return False
        if not pair.draining:
            pair.draining = True
            tapping.forward(pair, pair.upstream)
        client, upstream = pair.client.channel, pair.upstream.channel
        if client is None:
            return False
        stop_ns = self._stop_ns if pair.counts_responses else self._stop_framed_ns
        if now_ns >= max(stop_ns, min(pair.opened_ns, self.until_ns - 2 * self._quiet_ns) + self._quiet_ns):
            client.mute(mute.DRAIN)
        last_ns = client.last_active_ns if upstream is None else max(client.last_active_ns, upstream.last_active_ns)
        is_over = self._holds(pair, client, now_ns) and self._client_waits(pair, client, now_ns - last_ns)
        if (is_over or self._is_quiet(pair, client, upstream, now_ns, last_ns)) and pair.has_no_open_request():
            ending.end(pair, pair.drain_cause, pair.drain_detail, "internal")
        return False

    def _client_waits(self, pair: Pair, client: Channel, pause_ns: i64) -> bool:
        """Whether a client waits for answers that are held, and these are all. ``pause_ns``: since the last byte."""
        writes = client.write_half
        rest_ns = min(REST_NS + 2 * writes.round_trip_ns(), self._quiet_ns)
        return writes.pending.active and pause_ns >= rest_ns and (pair.counts_responses or pair.is_even())

    def _holds(self, pair: Pair, client: Channel, now_ns: i64) -> bool:
        """Whether answers are held: from the pair's turn on, once, as far as time and memory allow."""
        writes = client.write_half
        if writes.holding:
            if now_ns - pair.held_ns >= self._quiet_ns or not writes.may_hold:
                writes.release_held()
            return writes.holding
        if pair.held_ns != 0 or not _may_hold(pair, client) or not writes.hold():
            return False
        pair.held_ns = now_ns
        return True

    def _is_quiet(self, pair: Pair, client: Channel, upstream: Channel | None, now_ns: i64, last_ns: i64) -> bool:
        """Whether nothing passed for the quiet time, or nothing more is read that could be answered."""
        if upstream is None:
            return True
        if pair.counts_responses:
            return now_ns - last_ns >= self._quiet_ns or client.mute_causes & mute.DRAIN != 0 or pair.client.ended
        return now_ns - max(last_ns, self._started_ns) >= self._quiet_ns and upstream.wire_waiting == 0


def _opens(pair: Pair) -> bool:
    return pair.state is PairState.HANDSHAKING or pair.state is PairState.CONNECTING_UPSTREAM


def _may_hold(pair: Pair, client: Channel) -> bool:
    """Whether a pair's answers may be held: it will be known when all requests are answered."""
    if pair.state is not PairState.OPEN or pair.route.handler is not None or client.mute_causes & mute.DRAIN:
        return False
    if pair.renewal is not None and pair.renewal.mutes_client:
        return False
    return pair.counts_responses or EVEN_FROM <= client.frames_received >= client.write_half.frames_sent


class Drain(Timer):
    """The drains of all pairs of a processor. ``pairs``: those that are open, by id; it shrinks as they end. ``watcher``: its ``drained`` is called
    once.
    """

    def __init__(self, selector: Selector, clock: Clock, pairs: dict[int, Pair], watcher: PairWatcher, quiet_ns: i64) -> None:
        super().__init__()
        self._selector: Final = selector
        self._clock: Final = clock
        self._pairs: Final = pairs
        self._watcher: Final = watcher
        self.quiet_ns: i64 = quiet_ns  # of a drain that begins later
        self._terms = DrainTerms(quiet_ns)
        self._round: Iterator[Pair] | None = None
        self._round_ns: i64 = 0  # when it began
        self._cut_off: i64 = 0
        self._turns: dict[int, int] = {}  # when each pair that was open at the beginning ends, by id
        self._lead_ns: i64 = 0  # a lead-in goes on, and its turns begin then; 0: none does
        self._window_ns: i64 = 0  # all of them come within this time
        self.active: bool = False  # ``start`` was called, and ``drained`` was not

    def lead_in(self, delay_ns: i64, timeout_ns: i64) -> None:
        """Begin a lead-in, unless there is a drain. ``timeout_ns``: from the end of the delay to its deadline."""
        if self.active or self._lead_ns != 0:
            return
        self._lead_ns = max(self._selector.now_ns + delay_ns, 1)
        self._begin(self._lead_ns, timeout_ns)
        self._selector.call_at(self._lead_ns, self)

    def start(self, timeout_ns: i64) -> None:
        """Begin, or shorten the time that is left of a drain that goes on."""
        now_ns = self._selector.now_ns
        if self.active and now_ns + timeout_ns >= self._terms.until_ns:
            return
        if self.active:
            self._terms.limit(now_ns, timeout_ns)
            self._window_ns = timeout_ns // 2
            self._turns.clear()
        else:
            self.active = True
            self._lead_ns = 0
            self._begin(now_ns, timeout_ns)
        self._selector.call_at(now_ns, self)

    def _begin(self, at_ns: i64, timeout_ns: i64) -> None:
        self._terms = DrainTerms(self.quiet_ns)
        self._terms.begin(at_ns)
        self._terms.limit(at_ns, timeout_ns)
        self._window_ns = timeout_ns // 2
        self._round = None
        self._turns = {}

    def _take_turns(self, at_ns: i64) -> None:
        """Give each pair its turn: evenly within the window; without a lead-in, ``APART_NS`` apart at most. Those that had it go on."""
        numbers = [number for number, pair in self._pairs.items() if self._lead_ns == 0 or not pair.route.is_local]
        apart_ns = self._window_ns // max(i64(len(numbers)), 1)
        if self._lead_ns == 0:
            apart_ns = min(apart_ns, APART_NS)
        for place, number in enumerate(numbers):
            self._turns[number] = int(at_ns if self._pairs[number].draining else at_ns + place * apart_ns)

    def _turn_of(self, pair: Pair) -> i64:
        """When a pair is to end; ``NO_TIME``: not in this drain."""
        turn = self._turns.get(int(pair.id), -1)
        if turn >= 0 or self._lead_ns == 0:
            return i64(turn)
        if pair.route.is_local or pair.opened_ns >= self._terms.until_ns:
            return NO_TIME
        return self._lead_ns + spread(int(pair.id), self._window_ns)  # it came after the beginning

    def _is_due(self, pair: Pair, now_ns: i64) -> bool:
        """Whether a pair has its turn. In a lead-in, one that opens may have a request already, and is waited for."""
        if self._lead_ns != 0 and _opens(pair) and now_ns < self._terms.until_ns:
            return False
        return self._turn_of(pair) <= now_ns

    def fire(self, now_ns: i64) -> None:
        if not self._pairs and self.active:
            self.active = False
            cut_off, self._cut_off = int(self._cut_off), 0
            self._watcher.drained(cut_off)
            return
        if not self.active and self._lead_ns == 0:
            return
        if self._round is None:
            if not self._turns:
                self._take_turns(now_ns)
            self._round = iter(list(self._pairs.values()))
            self._round_ns = now_ns
        finished = self._slice(self._round, now_ns)
        if finished:
            self._round = None
        if self.active or not finished or self._round_ns < self._terms.until_ns:  # else it was the last round of a lead-in
            self._selector.call_at(now_ns + (TICK_NS if finished else 0), self)

    def _slice(self, pairs: Iterator[Pair], now_ns: i64) -> bool:
        """Check pairs until the slice is over; True: all were checked."""
        end_ns = i64(self._clock.now_ns()) + SLICE_NS
        for count, pair in enumerate(pairs, 1):
            try:
                if self._is_due(pair, now_ns) and self._terms.drain(pair, now_ns):
                    self._cut_off += 1
            except Exception as error:
                ending.crash(pair, error)
            if count % CHECK_EACH == 0 and i64(self._clock.now_ns()) >= end_ns:
                return False
        return True
