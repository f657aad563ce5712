"""Connection quotas: how many connections may be open, and be accepted each second, of the node, a listener and a client address.

The acceptor calls, in this order: ``wait`` before it accepts a connection: when the count or rate of the node or the listener is used up, the
connection stays in the backlog; ``check`` for an accepted connection: its address may be denied, have too many connections, or connect too often, and
then nothing is taken from the rates of the node and the listener; ``take`` when the connection is admitted; ``give_back`` when it has ended.

A rate is a token bucket that holds one second's worth (``_Rate``): after a pause that many connections pass at once. A change of limits keeps what
was taken. All of this is used by one thread; only ``limits`` may be replaced by another thread, at any time: each call uses the old or the new ones.
"""

import collections
from typing import Final, NamedTuple

from framegate.proxy.config.limits import ANY_ADDRESS, UNLIMITED, LimitsInForce, RateLimits

_SECOND: Final = 1_000_000_000
WAITS: Final = ("node_connections", "node_connection_rate", "listener_connections", "listener_connection_rate")
REFUSALS: Final = ("address_denied", "address_connections", "address_connection_rate")
NODE_COUNT, NODE_RATE, LISTENER_COUNT, LISTENER_RATE = WAITS
DENIED, ADDRESS_COUNT, ADDRESS_RATE = REFUSALS


class Wait(NamedTuple):
    """Why a listener accepts nothing now. ``reason``: of ``WAITS``; ``key``: what says so, as the configuration calls it; ``until_ns``: when to ask
    again, 0: when a connection has ended, or limits are changed.
    """

    reason: str
    key: str
    until_ns: int = 0


class Refusal(NamedTuple):
    """Why a connection is not taken. ``reason``: of ``REFUSALS``; ``key``: as ``Wait``'s; ``delay_ns``: it is to be closed after so long."""

    reason: str
    key: str
    delay_ns: int = 0


class _Rate:
    """What was taken of a rate: until when that lasts, if each takes its part of a second. There may be a second's worth ahead of time."""

    __slots__ = ("_until_ns",)

    def __init__(self) -> None:
        self._until_ns = 0

    def wait_ns(self, rate: int, now_ns: int) -> int:
        """How long until one more may be taken; 0: it may be now. At most a second, whatever the rate was before."""
        return max(0, self._until_ns - (_SECOND - _SECOND // rate) - now_ns)

    def take(self, rate: int, now_ns: int) -> None:
        self._until_ns = max(self._until_ns, now_ns) + _SECOND // rate

    def rested(self, now_ns: int) -> bool:
        return self._until_ns <= now_ns


class _Address(_Rate):
    """What is known of one client address: what it took of its rate, and its connections."""

    __slots__ = ("open",)

    def __init__(self) -> None:
        super().__init__()
        self.open = 0


def _where(network: str) -> str:
    """What the configuration calls the limits of an address, by the network that decides."""
    return "limits.per_address" if network == ANY_ADDRESS else f"limits.overrides[{network}]"


class ConnectionQuotas:
    """Counts connections and holds them against limits."""

    def __init__(self, limits: LimitsInForce, protected: str | None = None) -> None:
        self.limits = limits  # in force from the next question on; a listener without any has none
        self.protected = protected  # the listener that the node's count and rate do not hold; None: they hold all
        self._open: Final[dict[str, int]] = {}  # by listener with connections
        self._node_rate: Final = _Rate()
        self._rates: Final[dict[str, _Rate]] = {}  # by listener with a rate
        self._addresses: Final[dict[str, _Address]] = {}
        self._leaving: Final[collections.OrderedDict[str, int]] = collections.OrderedDict()  # addresses without a connection, and when to look again

    @property
    def addresses(self) -> int:
        """How many addresses are known: those with a connection, and those that had or wanted one within the last seconds."""
        return len(self._addresses)

    def open(self, listener: str | None = None) -> int:
        return sum(self._open.values()) if listener is None else self._open.get(listener, 0)

    def of_address(self, key: str) -> int:
        found = self._addresses.get(key)
        return 0 if found is None else found.open

    def _of(self, listener: str) -> RateLimits:
        return self.limits.listeners.get(listener, UNLIMITED)

    def limited(self, listener: str) -> bool:
        """Whether any limit can make connections of a listener wait."""
        mine, node = self._of(listener), self.limits.node
        return bool(mine.connections or mine.connection_rate or (listener != self.protected and (node.connections or node.connection_rate)))

    def wait(self, listener: str, now_ns: int) -> Wait | None:
        """Whether the next connection of a listener has to wait."""
        mine, node = self._of(listener), self.limits.node
        guarded = listener != self.protected
        if 0 < mine.connections <= self.open(listener):
            return Wait(LISTENER_COUNT, f"listeners[{listener}].limits.connections")
        if guarded and 0 < node.connections <= self.open():
            return Wait(NODE_COUNT, "limits.connections")
        own_ns = self._rate(listener).wait_ns(mine.connection_rate, now_ns) if mine.connection_rate else 0
        node_ns = self._node_rate.wait_ns(node.connection_rate, now_ns) if guarded and node.connection_rate else 0
        if own_ns == node_ns == 0:
            return None
        if own_ns >= node_ns:
            return Wait(LISTENER_RATE, f"listeners[{listener}].limits.connection_rate", now_ns + own_ns)
        return Wait(NODE_RATE, "limits.connection_rate", now_ns + node_ns)

    def _rate(self, listener: str) -> _Rate:
        return self._rates.setdefault(listener, _Rate())

    def check(self, key: str, now_ns: int) -> Refusal | None:
        """Whether an address (its ``client_key``) may have one more connection. A connection above the rate is not counted for the rate; one above
        the count is, so that an address cannot try without end.
        """
        limits, network, denied = self.limits.addresses.of(key)
        if denied:
            return Refusal(DENIED, f"{_where(network)}.access")
        if limits.connection_rate:
            delay_ns = self._come(key, limits.connection_rate, now_ns)
            if delay_ns:
                return Refusal(ADDRESS_RATE, f"{_where(network)}.connection_rate", delay_ns)
        if 0 < limits.connections <= self.of_address(key):
            return Refusal(ADDRESS_COUNT, f"{_where(network)}.connections")
        return None

    def _come(self, key: str, rate: int, now_ns: int) -> int:
        """Take one connection of an address' rate; returns the wait in ns when the rate is used up, else 0."""
        self._forget(now_ns)
        address = self._addresses.get(key)
        if address is None:
            address = self._addresses[key] = _Address()
            self._leaving[key] = now_ns + _SECOND
        delay_ns = address.wait_ns(rate, now_ns)
        if delay_ns == 0:
            address.take(rate, now_ns)
        return delay_ns

    def take(self, listener: str, key: str, now_ns: int) -> None:
        self._open[listener] = self.open(listener) + 1
        address = self._addresses.get(key)
        if address is None:
            address = self._addresses[key] = _Address()
        elif address.open == 0:
            self._leaving.pop(key, None)
        address.open += 1
        limits, rate = self.limits, self._of(listener).connection_rate
        if rate:
            self._rate(listener).take(rate, now_ns)
        if listener != self.protected and limits.node.connection_rate:
            self._node_rate.take(limits.node.connection_rate, now_ns)

    def give_back(self, listener: str, key: str, now_ns: int) -> None:
        """A connection that was taken has ended. Raises KeyError when none of that listener, or address, was: our bug."""
        address = self._addresses.get(key)
        if address is None or address.open == 0 or not self._open.get(listener):
            raise KeyError(f"no connection of {key or 'a client without an address'} is open at {listener}")
        self._open[listener] -= 1
        if self._open[listener] == 0:
            del self._open[listener]
            if listener not in self.limits.listeners:
                self._rates.pop(listener, None)
        address.open -= 1
        if address.open == 0:
            if address.rested(now_ns):
                del self._addresses[key]
            else:
                self._leaving[key] = now_ns + _SECOND
        self._forget(now_ns)

    def _forget(self, now_ns: int) -> None:
        """Forget addresses without connections whose rate is unused again."""
        while self._leaving:
            key, due_ns = next(iter(self._leaving.items()))
            if due_ns > now_ns:
                return
            del self._leaving[key]
            if self._addresses[key].rested(now_ns):
                del self._addresses[key]
            else:
                self._leaving[key] = now_ns + _SECOND
