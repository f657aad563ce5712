"""The brokers of all clusters: who is asked about them, when, and how they are shown."""

import asyncio
import collections
import contextlib
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from framegate.control.accept.acceptor import Acceptor
from framegate.control.accept.broker_connection import Login, tls_of
from framegate.control.accept.broker_list import Broker, ask_brokers, checked_brokers
from framegate.control.errors import NotFoundError, UnavailableError
from framegate.control.events import Bus, Event, Gap
from framegate.control.fleet.supervisor import Supervisor
from framegate.control.logs import RowLog
from framegate.control.meters import Meters
from framegate.control.status import BrokerStatus
from framegate.control.steering.channels import Channels
from framegate.control.steering.cluster import PACE, Ask, Cluster, Pace
from framegate.control.steering.listeners import endpoint_rows
from framegate.control.task_monitor import TaskMonitor
from framegate.proxy.config.model import ProxyConfig, UpstreamConfig
from framegate.proxy.config.sasl import logins_of, secret_files
from framegate.proxy.server.rows import EndpointRow, SeenBrokerRow

__all__ = ["Brokers"]

FIRST_S: Final = 3.0
"""How long a start waits for the first look; after that clients are told the bootstrap's address for every broker, until the brokers are known."""
LIMIT_S: Final = 180.0
"""Of one look, with the look-up of names and the change; see ``TaskMonitor.job``."""
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
    """Event loop only, unless a docstring says otherwise.

    Attributes:
        clusters: by upstream.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        acceptor: Acceptor,
        channels: Channels,
        log: RowLog,
        events: Bus,
        meters: Meters,
        task_monitor: TaskMonitor,
        pace: Pace = PACE,
    ) -> None:
        self._supervisor: Final = supervisor
        self._acceptor: Final = acceptor
        self._channels: Final = channels
        self._task_monitor: Final = task_monitor
        config = supervisor.desired.config
        self.clusters: Final = {
            item.name: Cluster(
                item, [each for each in config.listeners if each.upstream == item.name], supervisor, acceptor, log, self._asking(config, item), pace
            )
            for item in config.upstreams
            if item.kafka is not None
        }
        self._states: dict[tuple[str, ...], float] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._failures: Final = events.subscribe((_DOWN,)) if self.clusters else None
        supervisor.on_brokers_seen = self.seen
        meters.gauges("broker.connections", self._connections)
        meters.gauges("broker.count", lambda: self._states)

    def _asking(self, config: ProxyConfig, upstream: UpstreamConfig) -> Ask | None:
        try:
            login = _login(config, upstream)
        except LookupError:
            return None
        timeout_s = min(max(upstream.timeouts.connect_ms / 1000, _LEAST_ASK_S), _MOST_ASK_S)
        tls = tls_of(upstream, lambda: self._supervisor.desired.stores)
        return functools.partial(ask_brokers, tls_of=tls, login=login, timeout_s=timeout_s)

    def start(self) -> None:
        """Begin to look."""
        for cluster in self.clusters.values():
            self._tasks.append(asyncio.create_task(self._task_monitor.job("brokers", LIMIT_S).keep_going(functools.partial(self._step, cluster))))
        if self._failures is not None:
            self._tasks.append(asyncio.create_task(self._failures.each(self._failed)))

    async def looked(self, most_s: float = FIRST_S) -> None:
        """Return when each cluster was looked at once, or after this time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(most_s):
                await asyncio.gather(*(cluster.looked.wait() for cluster in self.clusters.values()))

    def close(self) -> None:
        """Look no more."""
        for task in self._tasks:
            task.cancel()
        if self._failures is not None:
            self._failures.close()

    async def _step(self, cluster: Cluster) -> None:
        await cluster.step()
        with contextlib.suppress(UnavailableError):  # a processor does not answer: the states stay as they were
            await self._count()

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
        try:
            cluster.seen(checked_brokers(Broker(row["id"], row["host"], row["port"], row["rack"]) for row in rows))
        except ValueError as error:
            cluster.unreadable(str(error))

    # --- shown -------------------------------------------------------------------------------------------------------------------

    async def statuses(self, upstream: str = "") -> list[BrokerStatus]:
        """Each broker at each listener, by upstream, listener and node id; ``upstream``: only those of this one.

        Raises:
            NotFoundError: no such upstream. UnavailableError: a processor does not answer.
        """
        if upstream and upstream not in {item.name for item in self._supervisor.desired.config.upstreams}:
            raise NotFoundError("upstream", upstream)
        self._supervisor.connections.count_handed()
        chosen = [cluster for name, cluster in sorted(self.clusters.items()) if upstream in (name, "")]
        if not chosen:
            return []
        by_host = {name: await self._connections_of(name) for cluster in chosen for name in cluster.by_host}
        return await self._statuses(chosen, by_host)

    async def _statuses(self, clusters: Iterable[Cluster], by_host: Mapping[str, Mapping[int, int]]) -> list[BrokerStatus]:
        down = _by_broker(await endpoint_rows(self._supervisor))
        return [status for cluster in clusters for status in cluster.statuses(down.get(cluster.name, {}), by_host)]

    async def _connections_of(self, listener: str) -> Mapping[int, int]:
        """Open connections of a listener by broker, as processors know them."""
        found: collections.Counter[int] = collections.Counter()
        async for rows in self._channels.each(listener):
            found.update(row.get("broker", -1) for row in rows)
        return found

    async def _count(self) -> None:
        """Count brokers by state, for the metric: each once, at the listener where its state is worst."""
        worst: dict[tuple[str, int], str] = {}
        order = ("up", "gone", "down", "no_port")
        for status in await self._statuses(self.clusters.values(), {}):
            key = status.upstream, status.node
            worst[key] = max(worst.get(key, "up"), status.state, key=order.index)
        states: dict[tuple[str, ...], float] = {(name, state): 0.0 for name in self.clusters for state in order}
        for (name, _), state in worst.items():
            states[name, state] += 1
        self._states = states

    def _connections(self) -> Mapping[tuple[str, ...], float]:
        """Open connections by listener and broker, where brokers have ports. Any thread."""
        return {
            (name, str(node)): float(count.open)
            for name, listening in self._acceptor.listeners.items()
            for node, count in list(listening.counts.items())
            if node >= 0
        }


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
