"""The brokers of all clusters: who is asked about them, when, and how they are shown. What that takes is loaded for the first cluster."""

import asyncio
import collections
import contextlib
import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from framegate.control.accept.acceptor import Acceptor
from framegate.control.accept.broker_connection import Login, tls_of
from framegate.control.accept.listening import Listening
from framegate.control.errors import NotFoundError, UnavailableError
from framegate.control.events import Bus, Event, Gap, Subscription
from framegate.control.fleet.supervisor import Supervisor
from framegate.control.logs import RowLog
from framegate.control.meters import Meters
from framegate.control.status import BrokerStatus
from framegate.control.steering.channels import Channels
from framegate.control.steering.listeners import endpoint_rows
from framegate.control.task_monitor import TaskMonitor
from framegate.proxy.config.model import ListenerConfig, ProxyConfig, UpstreamConfig
from framegate.proxy.config.sasl import logins_of, secret_files
from framegate.proxy.server.messages import ClusterRow
from framegate.proxy.server.rows import EndpointRow, SeenBrokerRow

if TYPE_CHECKING:
    from framegate.control.steering.cluster import Ask, Cluster, Pace

FIRST_S: Final = 3.0
"""How long a start waits for the first look; after that clients are told the bootstrap's address for every broker, until the brokers are known."""
LIMIT_S: Final = 180.0  # of one look, with the look-up of names and the change; see ``TaskMonitor.job``
COUNT_S: Final = 5.0  # between two counts for the metrics
_STATES: Final = ("up", "gone", "down", "no_port")  # the worst last
_LEAST_ASK_S, _MOST_ASK_S = 2.0, 10.0
_DOWN: Final = "endpoint_down"


def _login(config: ProxyConfig, upstream: UpstreamConfig) -> Login | None:
    """Framegate's own login: the one for all clients. Raises LookupError: each is for certain clients only."""
    if upstream.sasl is None:
        return None
    from framegate.control.identity.auth_responder import AuthResponder  # loaded only with SASL
    from framegate.control.identity.secrets import Secrets
    from framegate.proxy.auth.client import SaslClientSettings

    for login in logins_of(upstream.name, upstream.sasl):
        if not login.principals:
            answer = AuthResponder(secrets=Secrets(secret_files(config))).answer
            return Login(SaslClientSettings(login.mechanism, login.user, login.credential), answer)
    raise LookupError(upstream.name)


class Brokers:
    """Event loop only, unless a docstring says otherwise."""

    def __init__(
        self,
        supervisor: Supervisor,
        acceptor: Acceptor,
        channels: Channels,
        log: RowLog,
        events: Bus,
        meters: Meters,
        task_monitor: TaskMonitor,
        pace: "Pace | None" = None,
    ) -> None:
        self._supervisor: Final = supervisor
        self._acceptor: Final = acceptor
        self._channels: Final = channels
        self._task_monitor: Final = task_monitor
        self._log: Final = log
        self._events: Final = events
        self._pace: Final = pace  # None: ``PACE``
        self.clusters: Final[dict[str, Cluster]] = {}  # by upstream
        self._states: dict[tuple[str, ...], float] = {}
        self._tasks: Final[dict[str, asyncio.Task[None]]] = {}
        self._open: dict[tuple[str, ...], float] = {}
        self._watching: list[asyncio.Task[None]] = []
        self._failures: Subscription | None = None
        self._started = False
        config = supervisor.desired.config
        supervisor.desired.brokers = self.rows(config, acceptor.listeners)
        self.follow(config)
        supervisor.on_brokers_seen = self.seen
        meters.gauges("broker.connections", lambda: self._open)
        meters.gauges("broker.count", lambda: self._states)

    def rows(self, config: ProxyConfig, listeners: Mapping[str, Listening]) -> dict[str, ClusterRow]:
        """What processors need to know, at first, of those clusters of a configuration that are new, or have another configuration or listeners."""
        found = {}
        for upstream, fronts in _clusters(config):
            if not self._is_same(upstream, fronts):
                from framegate.control.steering.cluster import advertised

                known = self._supervisor.desired.brokers.get(upstream.name)
                brokers = [] if known is None else known["brokers"]
                ids = [row["id"] for row in brokers]
                found[upstream.name] = ClusterRow(
                    brokers=brokers, listeners={item.name: advertised(item, listeners[item.name], ids) for item in fronts}
                )
        return found

    def _is_same(self, upstream: UpstreamConfig, fronts: Sequence[ListenerConfig]) -> bool:
        cluster = self.clusters.get(upstream.name)
        return cluster is not None and cluster.upstream == upstream and list(cluster.listeners) == list(fronts)

    def follow(self, config: ProxyConfig) -> None:
        """Look at the clusters of another configuration, whose ``rows`` are in force."""
        wanted = {upstream.name: (upstream, fronts) for upstream, fronts in _clusters(config)}
        for name in [name for name in self.clusters if name not in wanted or not self._is_same(*wanted[name])]:
            cluster = self.clusters[name]
            if name in self._tasks:
                self._tasks.pop(name).cancel()
            now = {item.name: item.brokers for item in wanted[name][1]} if name in wanted else {}
            for item in cluster.listeners:
                listening = self._acceptor.listeners.get(item.name)
                if listening is not None and now.get(item.name) != item.brokers:
                    for node in list(listening.brokers):
                        self._acceptor.remove_broker(item.name, node)
            if name not in wanted:
                del self.clusters[name]
        for name, (upstream, fronts) in wanted.items():
            if not self._is_same(upstream, fronts):
                from framegate.control.steering.cluster import PACE, Cluster

                ask, before = self._asking(config, upstream), self.clusters.get(name)
                self.clusters[name] = Cluster(upstream, fronts, self._supervisor, self._acceptor, self._log, ask, self._pace or PACE, before)
        self._begin()

    def _begin(self) -> None:
        if not self._started:
            return
        for name, cluster in self.clusters.items():
            if name not in self._tasks:
                job = self._task_monitor.job("brokers", LIMIT_S)
                self._tasks[name] = asyncio.create_task(job.keep_going(cluster.step))
        if self.clusters and self._failures is None:
            self._failures = self._events.subscribe((_DOWN,))
            counting = self._task_monitor.job("brokers", LIMIT_S).keep_going(self._count)
            self._watching = [asyncio.create_task(self._failures.each(self._failed)), asyncio.create_task(counting)]

    def _asking(self, config: ProxyConfig, upstream: UpstreamConfig) -> "Ask | None":
        try:
            login = _login(config, upstream)
        except LookupError:
            return None
        from framegate.control.accept.broker_list import ask_brokers

        timeout_s = min(max(upstream.timeouts.connect_ms / 1000, _LEAST_ASK_S), _MOST_ASK_S)
        tls = tls_of(upstream, lambda: self._supervisor.desired.stores)
        return functools.partial(ask_brokers, tls_of=tls, login=login, timeout_s=timeout_s)

    def start(self) -> None:
        self._started = True
        self._begin()

    async def looked(self, most_s: float = FIRST_S) -> None:
        """Return when each cluster was looked at once, or after this time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(most_s):
                await asyncio.gather(*(cluster.looked.wait() for cluster in self.clusters.values()))

    def close(self) -> None:
        for task in (*self._watching, *self._tasks.values()):
            task.cancel()
        if self._failures is not None:
            self._failures.close()

    def _failed(self, event: Event | Gap) -> None:
        """A processor could not connect to an address."""
        upstream = str(event.row.get("upstream")) if isinstance(event, Event) else ""
        for cluster in self.clusters.values():
            if upstream in (cluster.name, ""):
                cluster.want()

    def seen(self, upstream: str, rows: Sequence[SeenBrokerRow]) -> None:
        """A processor saw a list of brokers in an answer."""
        cluster = self.clusters.get(upstream)
        if cluster is None:
            return
        from framegate.control.accept.broker_list import Broker, checked_brokers

        try:
            cluster.seen(checked_brokers(Broker(row["id"], row["host"], row["port"], row["rack"]) for row in rows))
        except ValueError as error:
            cluster.unreadable(str(error))

    # --- shown -------------------------------------------------------------------------------------------------------------------

    async def statuses(self, upstream: str = "") -> list[BrokerStatus]:
        """Each broker at each listener, by upstream, listener and node id; ``upstream``: only those of this one. Raises NotFoundError: no such
        upstream. UnavailableError: a processor does not answer.
        """
        if upstream and upstream not in {item.name for item in self._supervisor.desired.config.upstreams}:
            raise NotFoundError("upstream", upstream)
        self._supervisor.connections.count_handed()
        chosen = [cluster for name, cluster in sorted(self.clusters.items()) if upstream in (name, "")]
        if not chosen:
            return []
        by_host = {name: await self._connections_of(name) for cluster in chosen for name in cluster.by_host}
        return list(_statuses(chosen, await endpoint_rows(self._supervisor), by_host))

    async def _connections_of(self, listener: str) -> Mapping[int, int]:
        """Open connections of a listener by broker, as processors know them."""
        found: collections.Counter[int] = collections.Counter()
        async for rows in self._channels.each(listener):
            found.update(row.get("broker", -1) for row in rows)
        return found

    async def _count(self) -> None:
        """Count, for the metrics, brokers by state, each at the listener where its state is worst, and connections as processors know them."""
        await asyncio.sleep(COUNT_S)
        with contextlib.suppress(UnavailableError):  # a processor does not answer: the counts stay as they were
            rows = await endpoint_rows(self._supervisor)
            worst: dict[tuple[str, str], str] = {}
            for status in _statuses(self.clusters.values(), rows, {}):
                key = status.upstream, str(status.node)
                worst[key] = max(worst.get(key, "up"), status.state, key=_STATES.index)
            known = {name for name, _ in worst}
            states: dict[tuple[str, ...], float] = {(name, "", state): 0.0 for name in self.clusters.keys() - known for state in _STATES}
            self._states = states | {(*key, state): float(state == now) for key, now in worst.items() for state in _STATES}
            opened: dict[tuple[str, ...], float] = dict.fromkeys(worst, 0.0)
            for row in itertools.chain(*rows):
                key = row["upstream"], str(row.get("broker", -1))
                if key in opened:
                    opened[key] += row["connections"]
            self._open = opened


def _statuses(
    clusters: Iterable["Cluster"], answers: Sequence[Sequence[EndpointRow]], by_host: Mapping[str, Mapping[int, int]]
) -> Iterator[BrokerStatus]:
    down = _by_broker(answers)
    return itertools.chain(*(cluster.statuses(down.get(cluster.name, {}), by_host) for cluster in clusters))


def _by_broker(answers: Iterable[Sequence[EndpointRow]]) -> dict[str, dict[int, dict[str, str]]]:
    """Why addresses are left out, by upstream and broker; with the reason of the first processor."""
    found: dict[str, dict[int, dict[str, str]]] = {}
    for rows in answers:
        for row in rows:
            if not row["out"]:
                continue
            each = found.setdefault(row["upstream"], {}).setdefault(row.get("broker", -1), {})
            each.setdefault(row["endpoint"], f"{row['reason']}: {row['detail']}" if row["detail"] else row["reason"])
    return found


def _clusters(config: ProxyConfig) -> list[tuple[UpstreamConfig, list[ListenerConfig]]]:
    return [
        (item, [each for each in config.listeners if each.upstream == item.name and each.brokers is not None])
        for item in config.upstreams
        if item.kafka is not None
    ]
