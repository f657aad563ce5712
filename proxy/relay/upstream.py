"""An upstream: its endpoints, which of them a connection tries next, and which are left out because they failed.

Theory of operation. Each upstream has one object, shared by its listeners, so that all connections use what one of them finds out.

- *Round robin.* Connections take the endpoints that are up in turn. After a failed attempt a connection tries each other endpoint once; it is refused
  when all have failed.
- *Down.* A failed endpoint is down for ``FIRST_NS``. After that the next new connection probes it; all others still avoid it. So an endpoint that
  does not answer costs one connection its connect timeout. A failed probe doubles the back-off, up to ``MOST_NS``; a successful attempt ends it.
- *All down.* The back-off alone refuses no connection: one that has tried the endpoints that are up tries those that are down, the soonest due
  first, those that are being probed last.
- *Late results.* A failed attempt is ignored when a later attempt has succeeded before. An attempt that ended because its connection ended proves
  nothing; the next connection probes instead.

A refused login is no failure of the endpoint: see ``login``. Nor is the end of a connection that was READY.
"""

from typing import Final

from librt.vecs import vec
from mypy_extensions import i64

from framegate.proxy.cause import Cause
from framegate.proxy.cells import CONNECT_ERRORS, UPSTREAM_BLOCK
from framegate.proxy.config.address import format_sockaddr
from framegate.proxy.relay.counters import UpstreamCounters

__all__ = ["FIRST_NS", "MOST_NS", "Attempt", "Endpoint", "Tried", "Upstream", "connect_error"]

FIRST_NS: Final = 1_000_000_000
MOST_NS: Final = 30_000_000_000
TELL_NS: Final = 1_000_000_000  # the least time between two rows about one endpoint that is down

CONNECTING: Final = UPSTREAM_BLOCK.at("framegate.upstream.connection.count", "connecting")
ENDPOINTS: Final = UPSTREAM_BLOCK.at("framegate.upstream.endpoint.count")
DOWN: Final = UPSTREAM_BLOCK.at("framegate.upstream.endpoint.down")
PROBES: Final = UPSTREAM_BLOCK.at("framegate.upstream.endpoint.probes")
EJECTIONS: Final = {reason: UPSTREAM_BLOCK.at("framegate.upstream.endpoint.ejections", reason) for reason in CONNECT_ERRORS[1:]}


def connect_error(cause: Cause | None) -> int:
    """The index in ``CONNECT_ERRORS`` of an attempt that ended for a cause."""
    if cause is Cause.UPSTREAM_REFUSED:
        return CONNECT_ERRORS.index("refused")
    if cause is Cause.UPSTREAM_TIMEOUT:
        return CONNECT_ERRORS.index("timeout")
    return CONNECT_ERRORS.index("tls" if cause is Cause.TLS_FAILED else "other")


class Endpoint:
    """One address of an upstream, and its state.

    Attributes:
        family, address: as ``socket.connect`` takes them.
        server_name: the name that the certificate must have, and SNI unless it is an address; empty for plaintext.
        broker: the node id of the Kafka broker; -1: the bootstrap, or no cluster.
        text: the address as rows show it.
        listed: it belongs to the upstream; False after it was replaced.
        down: the last attempt failed, and connections avoid it.
        probed: it is down, and a connection tries it now.
        down_ns, due_ns, backoff_ns: since when it is down, when it may be probed, and the time between these.
        answered_ns: when an attempt succeeded last.
        failures: attempts that failed since it is down.
        reason, detail: of the failure that took it down, or of the last failed probe.
        told, told_ns: whether a row has reported that it is down, and the time of the last such row.
    """

    def __init__(self, family: int, address: object, server_name: str = "", broker: i64 = -1) -> None:
        self.family: Final = family
        self.address: Final = address
        self.server_name: Final = server_name
        self.broker: Final[i64] = broker
        self.text: Final = format_sockaddr(family, address)
        self.listed: bool = False
        self.down: bool = False
        self.probed: bool = False
        self.down_ns: i64 = 0
        self.due_ns: i64 = 0
        self.backoff_ns: i64 = 0
        self.answered_ns: i64 = 0
        self.failures: i64 = 0
        self.reason: str = ""
        self.detail: str = ""
        self.told: bool = False
        self.told_ns: i64 = 0

    @property
    def key(self) -> tuple[str, int, object, int]:
        """The identity of an endpoint: its address, the expected server name and the broker."""
        return self.server_name, self.family, self.address, int(self.broker)


class Attempt:
    """One connection's attempt to connect to an endpoint. Exactly one of ``Upstream.answered``, ``failed`` and ``abandoned`` ends it.

    Attributes:
        endpoint: where it connects.
        began_ns: on the selector's clock.
        probes: it is the endpoint's probe.
    """

    def __init__(self, endpoint: Endpoint, began_ns: i64, *, probes: bool) -> None:
        self.endpoint: Final = endpoint
        self.began_ns: Final[i64] = began_ns
        self.probes: Final[bool] = probes


class Tried:
    """The failed attempts of one connection.

    Attributes:
        endpoints: of all of them.
        cause, detail: of the last one.
    """

    def __init__(self) -> None:
        self.endpoints: Final[set[Endpoint]] = set()
        self.cause: Cause = Cause.UPSTREAM_REFUSED
        self.detail: str = ""

    def add(self, endpoint: Endpoint, cause: Cause, detail: str) -> None:
        """Add a failed attempt."""
        self.endpoints.add(endpoint)
        self.cause = cause
        self.detail = detail


class Upstream:
    """What all connections to one upstream share.

    Args:
        name: of the configuration.
        counters: what is counted.
        endpoints: where to connect.

    Attributes:
        endpoints: only ``replace`` changes them.
    """

    def __init__(self, name: str, counters: UpstreamCounters, endpoints: list[Endpoint]) -> None:
        self.name: Final = name
        self.counters: Final = counters
        self.endpoints: list[Endpoint] = []
        self._cells: vec[i64] = counters.counts.cells
        self._next_endpoint: i64 = 0
        self.replace(endpoints)

    def replace(self, endpoints: list[Endpoint]) -> None:
        """Replace the endpoints. One that was there before keeps its state. Connections and attempts go on."""
        known = {endpoint.key: endpoint for endpoint in self.endpoints}
        for endpoint in self.endpoints:
            endpoint.listed = False
        fresh: dict[tuple[str, int, object, int], Endpoint] = {}
        for endpoint in endpoints:
            fresh.setdefault(endpoint.key, known.get(endpoint.key, endpoint))
        self.endpoints = list(fresh.values())
        down: i64 = 0
        for endpoint in self.endpoints:
            endpoint.listed = True
            down += 1 if endpoint.down else 0
        self._cells[ENDPOINTS] = i64(len(self.endpoints))
        self._cells[DOWN] = down

    def pick(self, tried: Tried | None, now_ns: i64, broker: i64 = -1) -> Attempt | None:
        """The next attempt of a connection; None: it has tried all endpoints.

        Args:
            tried: the failed attempts of this connection; None for its first attempt.
            now_ns: the selector's clock.
            broker: the endpoints of this broker are tried; -1: those of the bootstrap, or of an upstream without brokers.
        """
        endpoint = self._choose(tried, now_ns, broker)
        if endpoint is None:
            return None
        probes = endpoint.down and not endpoint.probed and now_ns >= endpoint.due_ns
        if probes:
            endpoint.probed = True
            self._cells[PROBES] += 1
        self._cells[CONNECTING] += 1
        return Attempt(endpoint, now_ns, probes=probes)

    def _choose(self, tried: Tried | None, now_ns: i64, broker: i64) -> Endpoint | None:
        if tried is None and self._cells[DOWN] > 0:
            due = self._soonest(None, broker)
            if due is not None and not due.probed and now_ns >= due.due_ns:
                return due
        endpoints = self.endpoints
        count: i64 = len(endpoints)
        for step in range(count):
            number: i64 = (self._next_endpoint + step) % count
            endpoint = endpoints[number]
            if endpoint.broker == broker and not endpoint.down and (tried is None or endpoint not in tried.endpoints):
                self._next_endpoint = number + 1
                return endpoint
        return self._soonest(tried, broker)

    def _soonest(self, tried: Tried | None, broker: i64) -> Endpoint | None:
        """The broker's endpoint that is due first, of those that are down and not tried; one that is being probed only if there is no other."""
        best: Endpoint | None = None
        for endpoint in self.endpoints:
            if endpoint.broker != broker or not endpoint.down or (tried is not None and endpoint in tried.endpoints):
                continue
            if best is None or (best.probed and not endpoint.probed) or (best.probed == endpoint.probed and endpoint.due_ns < best.due_ns):
                best = endpoint
        return best

    def answered(self, attempt: Attempt, now_ns: i64, *, refused: bool = False) -> bool:
        """The attempt's channel is READY, or would be without a ``refused`` login; True: report that the endpoint is up."""
        self._settle(attempt, connect_error(Cause.AUTH_FAILED) if refused else 0, now_ns)
        endpoint = attempt.endpoint
        endpoint.answered_ns = now_ns
        if not endpoint.down:
            return False
        endpoint.down = False
        endpoint.backoff_ns = 0
        if endpoint.listed:
            self._cells[DOWN] -= 1
        return endpoint.told

    def failed(self, attempt: Attempt, cause: Cause | None, detail: str, now_ns: i64) -> bool:
        """The attempt has failed; True: report that the endpoint is down."""
        error = connect_error(cause)
        self._settle(attempt, error, now_ns)
        endpoint = attempt.endpoint
        if not endpoint.listed or endpoint.answered_ns > attempt.began_ns:
            return False
        before = endpoint.backoff_ns
        if not endpoint.down:
            self._take_down(endpoint, error, now_ns)
        elif attempt.probes:
            endpoint.backoff_ns = min(2 * before, MOST_NS)
        else:
            endpoint.failures += 1
            return False
        endpoint.failures += 1
        endpoint.due_ns = now_ns + endpoint.backoff_ns
        endpoint.reason = CONNECT_ERRORS[error]
        endpoint.detail = detail
        if endpoint.backoff_ns == before or (endpoint.told_ns != 0 and now_ns - endpoint.told_ns < TELL_NS):
            return False
        endpoint.told = True
        endpoint.told_ns = now_ns
        return True

    def _take_down(self, endpoint: Endpoint, error: int, now_ns: i64) -> None:
        endpoint.down = True
        endpoint.down_ns = now_ns
        endpoint.backoff_ns = FIRST_NS
        endpoint.failures = 0
        endpoint.told = False
        self._cells[DOWN] += 1
        self._cells[EJECTIONS[CONNECT_ERRORS[error]]] += 1

    def abandoned(self, attempt: Attempt, now_ns: i64) -> None:
        """The attempt ended for another reason than its endpoint; a later connection may probe the endpoint."""
        self._settle(attempt, connect_error(None), now_ns)

    def _settle(self, attempt: Attempt, error: int, now_ns: i64) -> None:
        self._cells[CONNECTING] -= 1
        self.counters.durations[error].observe(now_ns - attempt.began_ns)
        if attempt.probes:
            attempt.endpoint.probed = False
