"""Drain (rule 8): no new pairs; clients stop at a frame boundary; a pair ends when it is quiet; at the deadline what is left is cut off.

Quiet is, for ``kafka``, that no answer is open; for ``framed`` (and when pairing is lost), that no byte passed for ``quiet_ns``; for both,
that nothing waits to be written, and no frame is cut through. Pairs are looked at every 20 ms, in slices of at most 1 ms a poll.
"""

from collections.abc import Iterator
from typing import Final

from mypy_extensions import i64

from proxy.clock import Clock
from proxy.network import mute
from proxy.network.cause import Cause
from proxy.network.selector import Selector
from proxy.network.timer import Timer
from proxy.relay.pair import Pair
from proxy.relay.state import PairState
from proxy.relay.watcher import PairWatcher

__all__ = ["Drain"]

TICK_NS: Final = 20_000_000
SLICE_NS: Final = 1_000_000
LOOK_EACH: Final = 16  # pairs between two looks at the clock


class Drain(Timer):
    """One drain of all pairs of a processor.

    Args:
        selector, clock: for timers, and for the time within a slice.
        pairs: those that are open, by id; it shrinks as they end.
        watcher: is told once.
        quiet_ns: see the module.
    """

    def __init__(self, selector: Selector, clock: Clock, pairs: dict[int, Pair], watcher: PairWatcher, quiet_ns: i64) -> None:
        super().__init__()
        self._selector: Final = selector
        self._clock: Final = clock
        self._pairs: Final = pairs
        self._watcher: Final = watcher
        self._quiet_ns: Final[i64] = quiet_ns
        self._started_ns: i64 = 0
        self._until_ns: i64 = 0
        self._round: Iterator[Pair] | None = None
        self._cut_off: i64 = 0
        self.active: bool = False

    def start(self, timeout_ns: i64) -> None:
        """Begin, or change the deadline of a drain that goes on."""
        now_ns = self._selector.now_ns
        if not self.active:
            self.active = True
            self._started_ns = now_ns
        self._until_ns = now_ns + timeout_ns
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
        """Look at pairs until the slice is over; True when all were looked at."""
        end_ns = i64(self._clock.now_ns()) + SLICE_NS
        for count, pair in enumerate(pairs, 1):
            try:
                self._look(pair, now_ns)
            except Exception as error:
                pair.crash(error)
            if count % LOOK_EACH == 0 and i64(self._clock.now_ns()) >= end_ns:
                return False
        return True

    def _look(self, pair: Pair, now_ns: i64) -> None:
        if pair.state is PairState.CLOSED or pair.state is PairState.CLOSING:
            return
        if now_ns >= self._until_ns:
            self._cut_off += 1
            pair.abort(Cause.DRAIN_TIMEOUT, "not quiet when the drain ended", "internal")
            return
        if pair.state is PairState.HANDSHAKING or pair.state is PairState.CONNECTING_UPSTREAM:
            pair.abort(Cause.DRAINED, "", "internal")
            return
        client = pair.client.channel
        if client is not None and not pair.draining:
            pair.draining = True
            client.mute(mute.DRAIN)
        if self._is_quiet(pair, now_ns):
            pair.end(Cause.DRAINED, "", "internal")

    def _is_quiet(self, pair: Pair, now_ns: i64) -> bool:
        client, upstream = pair.client.channel, pair.upstream.channel
        if client is None or upstream is None:
            return True
        if client.pending_send != 0 or upstream.pending_send != 0 or (not client.mute_in_force and not pair.client.ended):
            return False
        if upstream.is_within_cut:
            return False
        pairing = pair.pairing
        if pairing is not None and not pairing.lost:
            return pairing.open == 0
        last_ns = max(client.last_active_ns, upstream.last_active_ns, self._started_ns)
        return now_ns - last_ns >= self._quiet_ns
