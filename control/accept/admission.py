"""Connection quotas (``quotas``) in the acceptor: which listeners wait, the delayed close of refused connections, and the log rows.

A listener that has to wait is not polled for connections; others go on. When there is room, the listener that has waited longest gets one connection
first. Everything runs in the acceptor's thread unless a docstring says otherwise.
"""

import collections
import dataclasses
import heapq
import os
import threading
from collections.abc import Callable
from typing import Final, NamedTuple

from framegate.control.accept.quotas import ConnectionQuotas, Refusal, Wait
from framegate.control.logs import RowLog
from framegate.control.meters import Meters
from framegate.proxy.config.limits import LimitsInForce, client_key
from framegate.proxy.relay.frequent import Frequent, Key

MAX_PARKED: Final = 1_000  # Connections that are closed later, at most
_ADDRESSES: Final = 50
_ROWS_NS: Final = 1_000_000_000  # least time between two rows about the same listener and reason; all of them are counted


class Refusals:
    """Refused connections by listener and address, in bounded memory. Any thread."""

    def __init__(self) -> None:
        self.clients = Frequent(_ADDRESSES)  # the addresses with most; totals: of all addresses, by listener
        self.totals: collections.Counter[str] = collections.Counter()
        self._lock: Final = threading.Lock()

    def add(self, listener: str, peer: str) -> None:
        with self._lock:
            self.clients.add((listener, "", "", client_key(peer)), 1)
            self.totals[listener] += 1

    def take(self) -> tuple[dict[Key, int], dict[str, int]]:
        with self._lock:
            taken = self.clients.counts, self.totals
            self.clients, self.totals = Frequent(_ADDRESSES), collections.Counter()
        return taken


class DelayedClose:
    """Rejected connections, each with the time at which it is closed: a client that is closed at once would try again at once. They are in a heap,
    the earliest first, and bounded, because each needs a descriptor. Used by one thread; ``len`` by any.
    """

    def __init__(self, most: int = MAX_PARKED) -> None:
        self._most: Final = most
        self._heap: Final[list[tuple[int, int]]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, descriptor: int, due_ns: int) -> bool:
        """Close a descriptor at a time; False when there are too many: the caller closes it."""
        if len(self._heap) >= self._most:
            return False
        heapq.heappush(self._heap, (due_ns, descriptor))
        return True

    @property
    def next_ns(self) -> int | None:
        """When the next one is to be closed; None: there is none."""
        return self._heap[0][0] if self._heap else None

    def close_due(self, now_ns: int) -> None:
        while self._heap and self._heap[0][0] <= now_ns:
            close_descriptor(heapq.heappop(self._heap)[1])

    def close(self) -> None:
        while self._heap:
            close_descriptor(self._heap.pop()[1])


def close_descriptor(descriptor: int) -> None:
    """Close a descriptor. The kernel may report an error of the connection; the descriptor is closed nevertheless."""
    try:  # noqa: SIM105 - for each connection, and cheaper than an object
        os.close(descriptor)
    except OSError:
        pass


@dataclasses.dataclass(slots=True)
class _Waiting:
    """One listener that waits."""

    wait: Wait
    since_ns: int


class _Told(NamedTuple):
    """The last row about a listener and reason, and how many events since then have no row yet."""

    at_ns: int
    event: str
    fields: dict[str, str]
    untold: int


class Admission:
    """Applies quotas to connections.

    Args:
        quotas: used by the acceptor's thread only.
        meters: gets ``connection.rejected`` and ``accept.limited.time``.
        log: gets ``rejected`` and ``accept_waits``, each listener and reason once a second at most.
        clock: monotonic, in ns.
    """

    def __init__(self, quotas: ConnectionQuotas, meters: Meters, log: RowLog, clock: Callable[[], int]) -> None:
        self.delayed_close: Final = DelayedClose()  # the connections that are closed later
        self._quotas: Final = quotas
        self._meters: Final = meters
        self._log: Final = log
        self._clock: Final = clock
        self._waiting: Final[dict[str, _Waiting]] = {}
        self._ended: Final[collections.deque[tuple[str, str]]] = collections.deque()
        self._told: Final[dict[tuple[str, str], _Told]] = {}  # by listener and reason
        self.refusals: Final = Refusals()  # the connections that were refused

    def set_limits(self, limits: LimitsInForce, protected: str | None) -> None:
        """Put other limits, and another protected listener, in force, from the next connection on. Any thread; the caller wakes the acceptor's."""
        self._quotas.limits, self._quotas.protected = limits, protected

    def forget(self, listener: str) -> None:
        self._waiting.pop(listener, None)

    def ended(self, listener: str, peer: str) -> bool:
        """A connection that was admitted has ended; whether the acceptor's thread must be woken for it. Event loop only."""
        self._ended.append((listener, client_key(peer)))
        return bool(self._waiting)

    def process_ended(self, failed: Callable[[Exception], None]) -> None:
        """Release connections that ended since the last call, and close delayed ones that are due. ``failed`` gets internal errors."""
        now_ns = self._clock()
        self.delayed_close.close_due(now_ns)
        self._report_rest(now_ns)
        while self._ended:
            try:
                self._quotas.give_back(*self._ended.popleft(), now_ns)
            except KeyError as error:
                failed(error)
        for name, waiting in self._waiting.items():
            self._meter(name, waiting, now_ns)

    def rest_s(self, most_s: float) -> float:
        """Seconds until there is something to do without a wake-up, at most ``most_s``."""
        if not self._waiting and self.delayed_close.next_ns is None:
            return most_s
        times = [waiting.wait.until_ns for waiting in self._waiting.values() if waiting.wait.until_ns]
        if self.delayed_close.next_ns is not None:
            times.append(self.delayed_close.next_ns)
        return min(most_s, max(0, min(times) - self._clock()) / 1e9) if times else most_s

    def waits(self, listener: str) -> bool:
        """Whether a listener with a new connection has to wait; ``resume`` returns it when it need not wait any more."""
        now_ns = self._clock()
        wait = self._quotas.wait(listener, now_ns)
        if wait is not None:
            self._waiting[listener] = _Waiting(wait, now_ns)
            self._report("accept_waits", listener, wait.reason, key=wait.key)
        return wait is not None

    @property
    def has_waiting_listener(self) -> bool:
        return bool(self._waiting)

    def resume(self) -> str | None:
        """The listener that waited longest of those that need not wait any more; it no longer counts as waiting."""
        now_ns = self._clock()
        for name, waiting in self._waiting.items():
            wait = self._quotas.wait(name, now_ns)
            if wait is None:
                self._meter(name, waiting, now_ns)
                del self._waiting[name]
                return name
            self._meter(name, waiting, now_ns)
            waiting.wait = wait
        return None

    def at_once(self, listener: str, most: int) -> int:
        """How many connections of a listener may be accepted before ``waits`` is called again and other listeners are served."""
        return 1 if self._quotas.limited(listener) else most

    def admit(self, listener: str, peer: str, key: str) -> Refusal | None:
        """Count a connection until it has ended or is taken back. Returns why it must be refused when its address (``key``, of ``client_key``) may
        not have it; then it is not counted.
        """
        now_ns = self._clock()
        refusal = self._quotas.check(key, now_ns)
        if refusal is None:
            self._quotas.take(listener, key, now_ns)
        else:
            self._refused(listener, peer, refusal)
        return refusal

    def refuse(self, descriptor: int, refusal: Refusal) -> None:
        """Close a connection, now or later."""
        if not refusal.delay_ns or not self.delayed_close.add(descriptor, self._clock() + refusal.delay_ns):
            close_descriptor(descriptor)

    def take_back(self, listener: str, peer: str) -> None:
        """Release a connection that was admitted but got no processor."""
        self._quotas.give_back(listener, client_key(peer), self._clock())

    def close(self) -> None:
        """Close the delayed connections, and write the rows that are due later."""
        self.delayed_close.close()
        self._report_rest(self._clock() + _ROWS_NS)

    def _refused(self, listener: str, peer: str, refusal: Refusal) -> None:
        self.refusals.add(listener, peer)
        self._meters.add("connection.rejected", listener, refusal.reason)
        self._report("rejected", listener, refusal.reason, key=refusal.key, peer=peer, cause="limit")

    def _meter(self, listener: str, waiting: _Waiting, now_ns: int) -> None:
        self._meters.add("accept.limited.time", listener, waiting.wait.reason, amount=(now_ns - waiting.since_ns) / 1e9)
        waiting.since_ns = now_ns

    def _report(self, event: str, listener: str, reason: str, **fields: str) -> None:
        now_ns = self._clock()
        last = self._told.get((listener, reason))
        if last is not None and now_ns - last.at_ns < _ROWS_NS:
            self._told[listener, reason] = last._replace(event=event, fields=fields, untold=last.untold + 1)
        else:
            self._write(listener, reason, _Told(now_ns, event, fields, 1 if last is None else last.untold + 1))

    def _report_rest(self, now_ns: int) -> None:
        """Write the rows that were held back for a second; no later event may come that would write them."""
        for (listener, reason), last in self._told.items():
            if last.untold and now_ns - last.at_ns >= _ROWS_NS:
                self._write(listener, reason, last._replace(at_ns=now_ns))

    def _write(self, listener: str, reason: str, told: _Told) -> None:
        self._told[listener, reason] = told._replace(untold=0)
        self._log.write(told.event, level="warning", listener=listener, reason=reason, **told.fields, count=told.untold)
