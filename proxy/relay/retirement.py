"""Ends connections that must not go on for ever, one by one: each is drained alone (``drain.DrainTerms``), so that open requests finish.

- *Replaced certificates.* Each pair ends at a time in the second half of ``max_age``, given by its id, so that clients do not all reconnect at once.
- *Removed listeners, replaced handlers.* Each pair ends at once.
- *Age.* A connection that is older than ``max_connection_age`` (``network.watchdog`` finds it) ends at once.
- *Bootstrap.* A client that was told the bootstrap address for a broker, because it had no other, takes its connection there for one to that broker,
  and keeps it although it gets errors and is told the right address later. So when the broker has an address, connections to the bootstrap end; and
  again 1, 2, 4 … seconds later, as long as clients may know the old address (``KNOWN_S``).

Pairs are found in slices of at most 1 ms per poll.
"""

import heapq
from collections import deque
from typing import Final

from mypy_extensions import i64

from framegate.proxy.cause import Cause
from framegate.proxy.clock import Clock
from framegate.proxy.network.selector import Selector
from framegate.proxy.network.timer import Timer, spread
from framegate.proxy.relay import ending
from framegate.proxy.relay.cluster import BOOTSTRAP
from framegate.proxy.relay.drain import CHECK_EACH, SLICE_NS, TICK_NS, DrainTerms
from framegate.proxy.relay.pair import Pair

DETAIL: Final = "its certificate was replaced"
REMOVED: Final = "its listener was removed, or handlers were replaced"
AT_BOOTSTRAP: Final = "the bootstrap is not the address of a certain broker any more"
KNOWN_S: Final = 512  # longer than clients use old metadata: ``metadata.max.age.ms`` is 300 s
SECOND_NS: Final = 1_000_000_000
ANY: Final = -1  # in place of the number of a store


class _Search:
    """The pairs to check: after one store was replaced, or a listener removed (``ANY``), or, without ``max_age_ns``, those to the bootstrap."""

    def __init__(self, listener: str, number: i64, since_ns: i64, max_age_ns: i64, ids: "deque[int]") -> None:
        self.listener: Final = listener
        self.number: Final[i64] = number
        self.since_ns: Final[i64] = since_ns
        self.max_age_ns: Final[i64] = max_age_ns
        self.ids: Final = ids


class Retirement(Timer):
    """The retirement of all pairs of a processor."""

    def __init__(self, selector: Selector, clock: Clock, pairs: dict[int, Pair], quiet_ns: i64, timeout_ns: i64) -> None:
        super().__init__()
        self._selector: Final = selector
        self._clock: Final = clock
        self._pairs: Final = pairs
        self._quiet_ns: i64 = quiet_ns
        self._timeout_ns: i64 = timeout_ns
        self._searches: Final[deque[_Search]] = deque()
        self._due: Final[list[tuple[int, int]]] = []  # a heap of times and ids
        self._looks: Final[list[tuple[int, int, str]]] = []  # at connections to the bootstrap: when, how many seconds after the first, of whom
        self._draining: Final[dict[int, DrainTerms]] = {}

    @property
    def waiting(self) -> int:
        """Pairs whose time has not come."""
        return len(self._due)

    def configure(self, quiet_ns: i64, timeout_ns: i64) -> None:
        """Set the times of later drains."""
        self._quiet_ns, self._timeout_ns = quiet_ns, timeout_ns

    def removed(self, listener: str) -> None:
        """A listener was removed, or its handler replaced: drain its connections."""
        self._search_all(_Search(listener, ANY, self._selector.now_ns, 0, deque(self._pairs)))

    def retire(self, number: int, cause: Cause = Cause.DRAINED, detail: str = REMOVED) -> None:
        """Drain one connection: its listener was removed, or it has another reason to end."""
        pair = self._pairs.get(number)
        if pair is not None and number not in self._draining:
            pair.drain_cause, pair.drain_detail = cause, detail
            heapq.heappush(self._due, (0, number))
            self._selector.call_at(self._selector.now_ns, self)

    def replaced(self, listener: str, number: i64, max_age_ns: i64) -> None:
        """A listener's store was replaced. ``number``: of the old store; handshakes that have begun use it. ``max_age_ns``: how long its connections
        may go on; 0: without limit.
        """
        if max_age_ns > 0:
            self._search_all(_Search(listener, number, self._selector.now_ns, max_age_ns, deque(self._pairs)))

    def _search_all(self, search: _Search) -> None:
        self._searches.append(search)
        self._selector.call_at(self._selector.now_ns, self)

    def gained(self, listener: str) -> None:
        """A broker has an address now of which the clients of a listener were told the bootstrap's."""
        self._looks[:] = [look for look in self._looks if look[2] != listener]
        self._looks.append((int(self._selector.now_ns), 0, listener))
        self._selector.call_at(self._selector.now_ns, self)

    def _look_at_bootstraps(self, now_ns: i64) -> i64:
        """Begin the searches that are due; returns when the next one is, -1: there is none."""
        next_ns: i64 = -1
        for index, (at_ns, seconds, listener) in enumerate(self._looks):
            if at_ns <= now_ns:
                self._searches.append(_Search(listener, 0, now_ns, 0, deque(self._pairs)))
                seconds_more = max(seconds, 1)
                at_ns, seconds = int(now_ns + seconds_more * SECOND_NS), seconds + seconds_more
                self._looks[index] = (at_ns, seconds, listener)
            next_ns = i64(at_ns) if next_ns < 0 else min(next_ns, i64(at_ns))
        self._looks[:] = [look for look in self._looks if look[1] <= KNOWN_S]
        return next_ns if self._looks else -1

    def fire(self, now_ns: i64) -> None:
        look_ns = self._look_at_bootstraps(now_ns)
        end_ns = i64(self._clock.now_ns()) + SLICE_NS
        if not self._search(end_ns):
            self._selector.call_at(now_ns, self)
            return
        while self._due and self._due[0][0] <= now_ns:
            self._retire(heapq.heappop(self._due)[1], now_ns)
        self._drain(now_ns)
        if self._draining:
            self._selector.call_at(now_ns + TICK_NS, self)
        elif self._due and (look_ns < 0 or self._due[0][0] <= look_ns):
            self._selector.call_at(self._due[0][0], self)
        elif look_ns >= 0:
            self._selector.call_at(look_ns, self)

    def _search(self, end_ns: i64) -> bool:
        """Set the times of pairs until the slice is over; True: all have one."""
        count: i64 = 0
        while self._searches:
            search = self._searches[0]
            while search.ids:
                self._look(search, search.ids.popleft())
                count += 1
                if count % CHECK_EACH == 0 and i64(self._clock.now_ns()) >= end_ns:
                    return False
            self._searches.popleft()
        return True

    def _look(self, search: _Search, number: int) -> None:
        pair = self._pairs.get(number)
        if pair is None or pair.route.listener != search.listener:
            return
        if search.number == ANY:
            self.retire(number)
            return
        client = pair.client.channel
        if search.max_age_ns == 0:
            may_log_in = client is None or client.opened_ns + SECOND_NS > search.since_ns  # with SASL that passes through: the next search finds it
            if pair.broker == BOOTSTRAP and not may_log_in and number not in self._draining:
                pair.drain_detail = AT_BOOTSTRAP
                heapq.heappush(self._due, (int(search.since_ns), number))
            return
        identity = None if client is None else client.identity
        if identity is None or identity.number == search.number:
            heapq.heappush(self._due, (int(search.since_ns + moment_of(number, search.max_age_ns)), number))

    def _retire(self, number: int, now_ns: i64) -> None:
        pair = self._pairs.get(number)
        if pair is None or number in self._draining:
            return
        pair.drain_detail = pair.drain_detail or DETAIL
        terms = DrainTerms(self._quiet_ns)
        terms.begin(now_ns)
        terms.limit(now_ns, self._timeout_ns)
        self._draining[number] = terms

    def _drain(self, now_ns: i64) -> None:
        for number, terms in list(self._draining.items()):
            pair = self._pairs.get(number)
            if pair is None:
                del self._draining[number]
                continue
            try:
                terms.drain(pair, now_ns)
            except Exception as error:  # the other pairs go on
                ending.crash(pair, error)


def moment_of(number: int, max_age_ns: i64) -> i64:
    """The time from the replacement to the end of a pair, by its id: in the second half of ``max_age_ns``."""
    half = max_age_ns // 2
    return half + spread(number, half)
