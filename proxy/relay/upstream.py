"""An upstream: its endpoints, which of them a connection tries next, and which are left out because they failed.

Theory of operation. Each upstream has one object, shared by its listeners, so that all connections use what one of them finds out.

- *Balance.* Connections are divided among the endpoints that are up, by ``balance`` and weight: those of the node's zone, and the others only if none
  of these is up. After a failed attempt a connection tries each other endpoint once; it is refused when all have failed.
- *Round robin* is exact: in as many connections as the sum of the weights each endpoint has as many as its weight, evenly spread. Each choice adds
  the weights to the endpoints' ``current``, takes the largest, and subtracts the sum from it. Source: nginx, "smooth weighted round-robin".
- *Full.* An endpoint with ``max_connections`` (this processor's part of them) is not chosen. If all are full, the connection is refused.
- *Down.* A failed endpoint is down for ``FIRST_NS``. After that the next new connection probes it; all others still avoid it. So an endpoint that
  does not answer costs one connection its connect timeout. A failed probe doubles the back-off, up to ``MOST_NS``; a successful attempt ends it.
- *Counted as down.* The gauge counts an endpoint until 10 s after its back-off, and while a connection probes it. Without a connection nobody finds
  out that it is up again. New connections avoid it all the same.
- *Ejected.* An endpoint that fails again and again, or is slow beside the others, is down for longer, and must prove itself: see ``ejection``.
- *Checks.* Endpoints that fail the active checks of control are avoided, and not probed, while another is up.
- *All out.* If all that are up fail their checks, these are used. The back-off alone refuses no connection, either: one that has tried the endpoints
  that are up tries those that are down, the soonest due first, those that are being probed last.
- *Late results.* A failed attempt is ignored when a later attempt has succeeded before. An attempt that ended because its connection ended proves
  nothing; the next connection probes instead.

A refused login is no failure of the endpoint: see ``login``. Nor is the end of a connection that was READY, but for ``ejection``.
"""

from typing import Final

from mypy_extensions import i64

from framegate.proxy.cause import Cause
from framegate.proxy.cells import CONNECT_ERRORS, EJECTION_REASONS, ENDPOINT_BLOCK, Place
from framegate.proxy.config.model import EjectionConfig, UpstreamConfig
from framegate.proxy.relay.counters import EndpointCounters
from framegate.proxy.relay.ejection import Ejection
from framegate.proxy.relay.endpoint import Endpoint as Endpoint

FIRST_NS: Final = 1_000_000_000
MOST_NS: Final = 30_000_000_000
COUNTED_NS: Final = 10_000_000_000
"""An endpoint counts as down for so long after its back-off: clients that come each few seconds find it so each time."""
TELL_NS: Final = 1_000_000_000  # the least time between two rows about one endpoint that is down
WHOLE: Final = 1_000_000  # millionths, see ``Upstream.set_part``

CONNECTING: Final = ENDPOINT_BLOCK.at("framegate.upstream.connection.count", "connecting")
USED: Final = ENDPOINT_BLOCK.at("framegate.upstream.connection.count", "used")
ENDPOINTS: Final = ENDPOINT_BLOCK.at("framegate.upstream.endpoint.count")
DOWN: Final = ENDPOINT_BLOCK.at("framegate.upstream.endpoint.down")
PROBES: Final = ENDPOINT_BLOCK.at("framegate.upstream.endpoint.probes")
EJECTIONS: Final = {reason: ENDPOINT_BLOCK.at("framegate.upstream.endpoint.ejections", reason) for reason in EJECTION_REASONS}
ABANDONED: Final = CONNECT_ERRORS.index("abandoned")
UNRESOLVED: Final = CONNECT_ERRORS.index("resolution")
ERRORS: Final = {
    Cause.UPSTREAM_REFUSED: "refused",
    Cause.UPSTREAM_TIMEOUT: "timeout",
    Cause.TLS_FAILED: "tls",
    Cause.AUTH_FAILED: "authentication",
    Cause.PEER_RESET: "closed",
    Cause.PEER_CLOSED: "closed",
    Cause.NO_DATA: "closed",
}


def connect_error(cause: Cause) -> int:
    """The index in ``CONNECT_ERRORS`` of an attempt that failed for a cause."""
    return CONNECT_ERRORS.index(ERRORS.get(cause, "other"))


class Attempt:
    """One connection's attempt to connect to an endpoint. Exactly one of ``Upstream.answered``, ``failed`` and ``abandoned`` ends it."""

    def __init__(self, endpoint: Endpoint, began_ns: i64, *, probes: bool) -> None:
        self.endpoint: Final = endpoint  # where it connects
        self.began_ns: Final[i64] = began_ns  # on the selector's clock
        self.probes: Final[bool] = probes  # it is the endpoint's probe


class Tried:
    """The failed attempts of one connection."""

    def __init__(self) -> None:
        self.endpoints: Final[set[Endpoint]] = set()  # of all of them
        # cause, detail: of the last one
        self.cause: Cause = Cause.UPSTREAM_REFUSED
        self.detail: str = ""

    def add(self, endpoint: Endpoint, cause: Cause, detail: str) -> None:
        """Add a failed attempt."""
        self.endpoints.add(endpoint)
        self.cause = cause
        self.detail = detail


class Upstream:
    """What all connections to one upstream share. ``seed``: of the random choice, from 0 to 2^31 - 1."""

    def __init__(self, name: str, endpoints: list[Endpoint], config: UpstreamConfig | None = None, zone: str = "", seed: i64 = 1) -> None:
        config = config or UpstreamConfig(name=name)
        self.name: Final = name
        self.endpoints: list[Endpoint] = []  # only ``replace`` changes them
        self.places: dict[Place, EndpointCounters] = {}  # the counters of all endpoints of all upstreams, those without an address included
        self.ejection: Ejection | None = None  # of endpoints that fail or are slow; None: there is none
        self._ejects: EjectionConfig | None = None
        self._balance: str = config.balance
        self._zone: str = zone
        self._max_connections: i64 = 0
        self._limit: i64 = 0  # this processor's part; 0: none
        self._random: i64 = seed
        self._failing: dict[str, str] = {}
        self._out: i64 = 0  # endpoints that connections avoid
        self._looked_ns: i64 = 0  # the time of the last look while there were any
        self._counted: list[EndpointCounters] = []
        self.configure(config, zone)
        self.replace(endpoints)

    def configure(self, config: UpstreamConfig, zone: str) -> None:
        """Set how endpoints are chosen, before ``set_part`` and ``replace``; those that are there keep their state. ``zone``: the node's own; empty:
        it has none.
        """
        self._balance = config.balance
        self._zone = zone
        self._max_connections = self._limit = config.max_connections
        if config.ejection != self._ejects:
            self._ejects = config.ejection
            self.ejection = None if config.ejection is None else Ejection(config.ejection)
            if self.ejection is None:
                for endpoint in self.endpoints:
                    if endpoint.ejected:
                        self._return(endpoint, endpoint.answered_ns)

    def replace(self, endpoints: list[Endpoint]) -> None:
        """Replace the endpoints. One that was there before keeps its state. Connections and attempts go on. A bootstrap server that is also known as
        a broker has the zone of that broker, its rack.
        """
        known = {endpoint.key: endpoint for endpoint in self.endpoints}
        for endpoint in self.endpoints:
            endpoint.listed = False
        racks = {(endpoint.family, endpoint.address): endpoint.zone for endpoint in endpoints if endpoint.broker >= 0}
        fresh: dict[tuple[str, int, object, int], Endpoint] = {}
        for endpoint in endpoints:
            mine = fresh.setdefault(endpoint.key, known.get(endpoint.key, endpoint))
            if mine.counters is not endpoint.counters:
                _recount(mine, endpoint.counters)
            mine.weight, mine.zone = endpoint.weight, endpoint.zone or racks.get((endpoint.family, endpoint.address), "")
            mine.near = not self._zone or mine.zone == self._zone
            mine.listed = True
            mine.failing = self._failing.get(mine.text, "")
        self.endpoints = list(fresh.values())
        if self.ejection is not None:
            for endpoint in self.ejection.too_many(self.endpoints):
                self._return(endpoint, endpoint.answered_ns)
        self._count_out()

    def set_part(self, part: i64) -> None:
        """Set this processor's part of ``max_connections``, in millionths; rounded, and at least 1 connection to each endpoint."""
        if self._max_connections != 0:
            self._limit = max((self._max_connections * part + WHOLE // 2) // WHOLE, 1)

    def set_failing(self, failing: dict[str, str]) -> None:
        """Set which endpoints fail the active checks, and why, by their text; all others pass."""
        self._failing = failing
        for endpoint in self.endpoints:
            why = failing.get(endpoint.text, "")
            if why and not endpoint.failing:
                endpoint.counters.counts.count(EJECTIONS["check"])
            endpoint.failing = why
        self._count_out()

    def _count_out(self) -> None:
        counted = [endpoint.counters for endpoint in self.endpoints]
        for counters in self._counted + counted:
            counters.counts.cells[ENDPOINTS] = 0
            counters.counts.cells[DOWN] = 0
        self._counted = counted
        self._out = 0
        for endpoint in self.endpoints:
            endpoint.counters.counts.cells[ENDPOINTS] += 1
            if endpoint.is_out:
                self._out += 1
                endpoint.counters.counts.cells[DOWN] += 1 if endpoint.failing or not endpoint.is_due(self._looked_ns - COUNTED_NS) else 0

    def is_full(self, endpoint: Endpoint) -> bool:
        """Whether an endpoint has as many connections as this processor may open."""
        return self._limit != 0 and endpoint.connections >= self._limit

    def pick(self, tried: Tried | None, now_ns: i64, broker: i64 = -1) -> Attempt | None:
        """The next attempt of a connection; None: it has tried all endpoints that are not full. ``tried``: the failed attempts of this connection;
        None for its first attempt. ``broker``: the endpoints of this broker are tried; -1: those of the bootstrap, or of an upstream without brokers.
        """
        endpoint = self._choose(tried, now_ns, broker)
        if endpoint is None:
            return None
        probes = endpoint.is_due(now_ns)
        if probes:
            endpoint.probed = True
            endpoint.counters.counts.cells[PROBES] += 1
        endpoint.connections += 1
        endpoint.connecting += 1
        endpoint.counters.counts.cells[CONNECTING] += 1
        return Attempt(endpoint, now_ns, probes=probes)

    def count_full(self, broker: i64 = -1) -> int:
        """How many of a broker's endpoints (see ``pick``) are full."""
        return sum([endpoint.broker == broker and self.is_full(endpoint) for endpoint in self.endpoints])

    def _choose(self, tried: Tried | None, now_ns: i64, broker: i64) -> Endpoint | None:
        if tried is None and self._out > 0:
            due = self._soonest(None, broker)
            if due is not None and not due.probed and not due.failing and now_ns >= due.due_ns:
                return due
        near: list[Endpoint] = []
        far: list[Endpoint] = []
        failing: list[Endpoint] = []
        for endpoint in self.endpoints:
            if endpoint.broker != broker or endpoint.down or (tried is not None and endpoint in tried.endpoints) or self.is_full(endpoint):
                continue
            (failing if endpoint.failing else near if endpoint.near else far).append(endpoint)
        return self._balanced(near or far or failing) or self._soonest(tried, broker)

    def _balanced(self, endpoints: list[Endpoint]) -> Endpoint | None:
        """The one that ``balance`` says; None: there is none."""
        if len(endpoints) <= 1 or self._balance == "first_available":
            return endpoints[0] if endpoints else None
        if self._balance == "random_two":
            first = self._any(endpoints)
            second = self._any([endpoint for endpoint in endpoints if endpoint is not first])
            return second if _has_fewer(second, first) else first
        if self._balance == "least_connections":
            least = endpoints[0]
            for endpoint in endpoints:
                if _has_fewer(endpoint, least):
                    least = endpoint
            endpoints = [endpoint for endpoint in endpoints if not _has_fewer(least, endpoint)]
        return _next_in_turn(endpoints)

    def _any(self, endpoints: list[Endpoint]) -> Endpoint:
        """A random one, by weight. The generator is C's of POSIX.1; its products fit an i64."""
        total: i64 = 0
        for endpoint in endpoints:
            total += endpoint.weight
        self._random = (self._random * 1_103_515_245 + 12_345) & 0x7FFF_FFFF
        left: i64 = (self._random >> 8) % total
        for endpoint in endpoints:
            left -= endpoint.weight
            if left < 0:
                break
        return endpoint

    def _soonest(self, tried: Tried | None, broker: i64) -> Endpoint | None:
        """The broker's endpoint that is due first, of those that are down, not tried and not full; those that fail their checks, and then those that
        are being probed, only if there is no other.
        """
        best: Endpoint | None = None
        for endpoint in self.endpoints:
            if endpoint.broker != broker or not endpoint.down or (tried is not None and endpoint in tried.endpoints) or self.is_full(endpoint):
                continue
            if best is None or _is_sooner(endpoint, best):
                best = endpoint
        return best

    def unresolved(self, broker: i64) -> None:
        """A connection found no address at all; see ``pick`` for ``broker``. It counts at the first endpoint without one."""
        addressed = [endpoint.counters for endpoint in self.endpoints]
        number = str(int(broker)) if broker >= 0 else ""
        for place, counters in self.places.items():
            if place[1] == self.name and place[-1] == number and counters not in addressed:
                counters.durations[UNRESOLVED].observe(0)
                return

    def answered(self, attempt: Attempt, now_ns: i64, *, refused: bool = False) -> bool:
        """The attempt's channel is READY, or would be without a ``refused`` login; True: report that the endpoint is up. A channel that is READY
        counts as a connection until ``closed``.
        """
        self._settle(attempt, connect_error(Cause.AUTH_FAILED) if refused else 0, now_ns, keeps=not refused)
        endpoint = attempt.endpoint
        endpoint.answered_ns = now_ns
        if endpoint.ejected:
            endpoint.due_ns = max(endpoint.due_ns, now_ns + FIRST_NS)
            return False
        if not endpoint.down:
            return False
        self._return(endpoint, now_ns)
        return endpoint.told

    def _return(self, endpoint: Endpoint, now_ns: i64) -> None:
        endpoint.down = endpoint.ejected = False
        endpoint.backoff_ns = 0
        endpoint.returned_ns = now_ns
        self._count_out()

    def failed(self, attempt: Attempt, cause: Cause, detail: str, now_ns: i64) -> bool:
        """The attempt has failed; True: report that the endpoint is down."""
        error = connect_error(cause)
        reason = CONNECT_ERRORS[error] if CONNECT_ERRORS[error] in EJECTIONS else "other"
        self._settle(attempt, error, now_ns)
        endpoint = attempt.endpoint
        if not endpoint.listed or endpoint.answered_ns > attempt.began_ns:
            return False
        endpoint.failures += 1 if endpoint.down else 0
        if self.ejection is not None and (attempt.probes or not endpoint.down) and self.ejection.fails(endpoint, self.endpoints):
            return self._eject(endpoint, "failures", detail, now_ns)
        before = endpoint.backoff_ns
        if not endpoint.down:
            self._take_down(endpoint, reason, now_ns)
            endpoint.failures = 1
            endpoint.backoff_ns = FIRST_NS
        elif attempt.probes:
            endpoint.backoff_ns = min(2 * before, MOST_NS)
        else:
            return False
        endpoint.due_ns = now_ns + endpoint.backoff_ns
        endpoint.reason = reason
        endpoint.detail = detail
        self._count_out()
        return endpoint.backoff_ns != before and self._tells(endpoint, now_ns)

    def _tells(self, endpoint: Endpoint, now_ns: i64) -> bool:
        """Whether a row is to say that an endpoint is down."""
        if endpoint.told_ns != 0 and now_ns - endpoint.told_ns < TELL_NS:
            return False
        endpoint.told = True
        endpoint.told_ns = now_ns
        return True

    def _take_down(self, endpoint: Endpoint, reason: str, now_ns: i64) -> None:
        if not endpoint.down:
            endpoint.down = True
            endpoint.down_ns = now_ns
            endpoint.failures = 0
            endpoint.told = False
            endpoint.counters.counts.count(EJECTIONS[reason])

    def _eject(self, endpoint: Endpoint, reason: str, detail: str, now_ns: i64) -> bool:
        assert self.ejection is not None, "it says so"
        errors = endpoint.errors
        self.ejection.eject(endpoint, now_ns)
        self._take_down(endpoint, reason, now_ns)
        endpoint.failures = max(endpoint.failures, errors)
        endpoint.reason = reason
        endpoint.detail = detail
        self._count_out()
        return self._tells(endpoint, now_ns)

    def closed(self, endpoint: Endpoint, ready_ns: i64, now_ns: i64, failure: str = "") -> bool:
        """A READY channel is closed; ``failure``: why the endpoint failed it. True: report that the endpoint is down."""
        endpoint.connections -= 1
        endpoint.counters.counts.cells[USED] -= 1
        ejection = self.ejection
        if ejection is None or not failure or not endpoint.listed or (endpoint.ejected and ready_ns <= endpoint.ejected_ns):
            return False
        if not ejection.fails(endpoint, self.endpoints):
            return False
        return self._eject(endpoint, "failures", failure, now_ns)

    def look(self, now_ns: i64) -> list[Endpoint]:
        """Count the endpoints that are down, and judge all by the first answers that came since the last look. Returns those that are to be reported
        as down, or as up again.
        """
        if self._out > 0:
            self._looked_ns = now_ns
            self._count_out()
        if self.ejection is None:
            return []
        return [endpoint for endpoint, latency_ns, ready_ns in self.ejection.take_answers() if self.judge(endpoint, latency_ns, ready_ns, now_ns)]

    def judge(self, endpoint: Endpoint, latency_ns: i64, ready_ns: i64, now_ns: i64) -> bool:
        """A connection had its first answer; with ejection. True: report that the endpoint is down, or up again."""
        ejection = self.ejection
        assert ejection is not None, "nothing is measured without it"
        if endpoint.ejected and ready_ns <= endpoint.ejected_ns:
            return False
        slow = ejection.answers(endpoint, latency_ns, self.endpoints)
        if slow:
            return self._eject(endpoint, "latency", slow, now_ns)
        if not endpoint.ejected or not ejection.is_proven(endpoint):
            return False
        self._return(endpoint, now_ns)
        return endpoint.told

    def abandoned(self, attempt: Attempt, now_ns: i64) -> None:
        """The attempt ended for another reason than its endpoint; a later connection may probe the endpoint."""
        self._settle(attempt, ABANDONED, now_ns)

    def _settle(self, attempt: Attempt, error: int, now_ns: i64, *, keeps: bool = False) -> None:
        endpoint = attempt.endpoint
        cells = endpoint.counters.counts.cells
        cells[CONNECTING] -= 1
        endpoint.connecting -= 1
        endpoint.counters.durations[error].observe(now_ns - attempt.began_ns)
        if attempt.probes:
            endpoint.probed = False
        if keeps:
            cells[USED] += 1
        else:
            endpoint.connections -= 1


def _recount(endpoint: Endpoint, counters: EndpointCounters) -> None:
    """Count the connections of an endpoint elsewhere: the configuration has another name for it."""
    used = endpoint.connections - endpoint.connecting
    before, after = endpoint.counters.counts.cells, counters.counts.cells
    before[CONNECTING] -= endpoint.connecting
    before[USED] -= used
    after[CONNECTING] += endpoint.connecting
    after[USED] += used
    endpoint.counters = counters


def _has_fewer(endpoint: Endpoint, other: Endpoint) -> bool:
    """Whether an endpoint has fewer connections than another, each beside its weight."""
    return endpoint.connections * other.weight < other.connections * endpoint.weight


def _next_in_turn(endpoints: list[Endpoint]) -> Endpoint:
    """The next one of the round robin."""
    best = endpoints[0]
    total: i64 = 0
    for endpoint in endpoints:
        endpoint.current += endpoint.weight
        total += endpoint.weight
        if endpoint.current > best.current:
            best = endpoint
    best.current -= total
    return best


def _is_sooner(endpoint: Endpoint, other: Endpoint) -> bool:
    if bool(endpoint.failing) != bool(other.failing):
        return not endpoint.failing
    if endpoint.probed != other.probed:
        return other.probed
    return endpoint.due_ns < other.due_ns
