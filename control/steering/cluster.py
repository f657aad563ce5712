"""One Kafka cluster: its brokers are found, given to every processor together with what clients are told, and listened for.

    find      ask a bootstrap server or a known broker; if none answers, take the list that processors saw in an answer
    resolve   the hosts, as those of endpoints
    open      bind and listen at the ports of new brokers
    change    every processor has the new table, or none
    close     the ports of brokers that are gone; their connections end by themselves

So a broker's port is open before its address is told to anybody, and nobody is told it any more when the port is closed.
"""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from framegate.control.accept.acceptor import Acceptor
from framegate.control.accept.broker_list import Broker, LoginNeededError
from framegate.control.accept.broker_ports import BrokerPorts
from framegate.control.accept.listening import BOOTSTRAP, Listening, ListeningSocket
from framegate.control.accept.resolver import Names, Resolution, in_thread, log_errors
from framegate.control.configuration.broker_rules import advertised_host, broker_host
from framegate.control.errors import ControlError, StartError
from framegate.control.fleet.desired_state import DesiredState
from framegate.control.fleet.supervisor import Supervisor
from framegate.control.logs import RowLog
from framegate.control.status import BrokerState, BrokerStatus
from framegate.proxy.config.address import Address, parse_address
from framegate.proxy.config.model import BrokersConfig, ListenerConfig, UpstreamConfig
from framegate.proxy.errors import ProxyError
from framegate.proxy.server.messages import AdvertisedRow, BrokerRow, Change, ClusterRow

AT_ONCE: Final = 3  # Addresses that are asked at the same time; the first answer counts, so a silent broker delays nothing
MOST_ASKED: Final = 6  # Bootstrap servers, and known brokers, that are asked in one look
LOOK_LIMIT_S: Final = 30.0
_SHOWN: Final = 20  # Brokers without a port that a row names
Wire = list[Any]
Ask = Callable[[Wire], Awaitable[dict[int, Broker]]]  # Ask one address for the brokers; errors as of ``ask_brokers``
Down = Mapping[int, Mapping[str, str]]  # Addresses that processors leave out, and why, by node id


class Pace(NamedTuple):
    """Seconds."""

    # look_s, resolve_s: between looks, and between look-ups of names
    look_s: float = 60.0
    resolve_s: float = 30.0
    # pause_s, most_pause_s: least and greatest pause after a look, whoever wants the next one
    pause_s: float = 1.0
    most_pause_s: float = 10.0
    # how long lists lack a broker until it has left. Each broker answers with the list that it knows: for a while after a change some still answer
    # with the old one.
    missing_s: float = 5.0


PACE: Final = Pace()


async def ask_any(addresses: Iterable[Wire], ask: Ask) -> dict[int, Broker]:
    """The first answer of several addresses, a few of which are asked at once; the others are cancelled. Raises OSError, EOFError, ProxyError,
    ValueError: the last error, since none answered; LoginNeededError at once, since the others want one, too.
    """
    waiting = iter(addresses)
    asked: set[asyncio.Task[dict[int, Broker]]] = set()
    failure: Exception = OSError("it has no address")
    try:
        while True:
            while len(asked) < AT_ONCE and (address := next(waiting, None)) is not None:
                asked.add(asyncio.ensure_future(ask(address)))
            if not asked:
                raise failure
            done, asked = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                error = task.exception()
                if error is None:
                    return task.result()
                if not isinstance(error, OSError | EOFError | ProxyError | ValueError) or isinstance(error, LoginNeededError):
                    raise error
                failure = error
    finally:
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)


def advertised(listener: ListenerConfig, listening: Listening, brokers: Iterable[int]) -> AdvertisedRow:
    """What the clients of a listener are told about brokers: those that they can reach."""
    config = listener.brokers
    assert config is not None, "only listeners in front of a cluster advertise"
    host, port = advertised_host(listener), config.advertise_port if config.hosts else 0
    port = port or listening.port
    told: list[list[str | int]] = []
    for node in brokers:
        if config.hosts:
            told.append([node, broker_host(config, node), port])
        elif node in listening.brokers:
            told.append([node, host, listening.brokers[node].port])
    return AdvertisedRow(bootstrap=[host, port], brokers=told)


def _ports(listener: str, config: BrokersConfig, before: "Cluster | None") -> BrokerPorts:
    """The ports of a listener's brokers: those that they had, if the range is the same."""
    if before is not None and listener in before._ports and any(item.name == listener and item.brokers == config for item in before.listeners):
        return before._ports[listener]
    return BrokerPorts(config)


class Cluster:
    """One upstream with ``kafka`` and the listeners in front of it. Event loop only. ``ask``: how an address is asked; None: framegate has no login
    of its own there, and takes the lists that pass in answers.
    """

    def __init__(
        self,
        upstream: UpstreamConfig,
        listeners: Sequence[ListenerConfig],
        supervisor: Supervisor,
        acceptor: Acceptor,
        log: RowLog,
        ask: Ask | None,
        pace: Pace = PACE,
        before: "Cluster | None" = None,
    ) -> None:
        self.name: Final = upstream.name
        self.upstream: Final = upstream
        self.listeners: Final = listeners
        self.brokers: dict[int, Broker] = {} if before is None else before.brokers  # in force, by node id
        self.looked: Final = asyncio.Event()  # set after the first look, whatever came of it
        self.error = ""  # why the last look failed; empty: it did not
        self._supervisor: Final = supervisor
        self._acceptor: Final = acceptor
        self._log: Final = log
        self._ask: Final = ask
        self._pace: Final = pace
        self._ports: Final = {
            item.name: _ports(item.name, item.brokers, before) for item in listeners if item.brokers is not None and item.brokers.ports
        }
        self._names: Final = Names(())
        self._resolved = Resolution([])
        self._unresolved: dict[int, str] = {}
        self._faults: dict[str, dict[int, str]] = {item.name: {} for item in listeners}  # why brokers have no port, by listener
        self._left: dict[int, Broker] = {}
        self._missing: dict[int, float] = {}  # since when lists lack a broker, by node id
        self._seen: dict[int, Broker] | None = None
        self._refusal = ""
        self._needs_login = False  # a broker wanted one at the last look
        self._wanted: Final = asyncio.Event()
        self._pause_s = pace.pause_s
        self._earliest_s = self._look_s = self._resolve_s = 0.0  # the loop's clock

    # --- when --------------------------------------------------------------------------------------------------------------------

    def want(self) -> None:
        """Look soon: a connection to a broker failed."""
        self._wanted.set()

    def seen(self, brokers: dict[int, Broker]) -> None:
        """A processor saw this list in an answer, and it differs from what is in force."""
        if brokers != self.brokers:
            self._seen = brokers
            self._wanted.set()

    async def step(self) -> None:
        """Wait until a look, or a look-up of names, is due or wanted, and do it."""
        clock = asyncio.get_running_loop().time
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, min(self._look_s, self._resolve_s) - clock())):
                await self._wanted.wait()
        if self._wanted.is_set():
            await asyncio.sleep(self._earliest_s - clock())
        wanted = self._wanted.is_set()
        look = wanted or clock() >= self._look_s
        self._wanted.clear()
        changed = False
        try:
            changed = await self.round(look=look)
        finally:
            self._resolve_s = clock() + self._pace.resolve_s
            if look:
                soon = (bool(self.error) and not self._needs_login) or self._seen is not None
                self._pause_s = min(2 * self._pause_s, self._pace.most_pause_s) if (wanted or soon) and not changed else self._pace.pause_s
                self._earliest_s = clock() + self._pause_s
                self._look_s = clock() + (self._pause_s if soon else self._pace.missing_s if self._missing else self._pace.look_s)
                self.looked.set()

    async def round(self, *, look: bool) -> bool:
        """Find, resolve and put in force. Returns whether the table has changed."""
        if self._acceptor.stopped:
            return False
        found, error = await self._find() if look else (None, self.error)
        brokers = self.brokers if found is None else self._with_missing(found)
        if not brokers:
            self.unreadable(error)
            return False
        addresses = await self._resolve(brokers)
        circle = self._circle(addresses)
        self.unreadable(circle or error)
        return not circle and await self._put_in_force(brokers, addresses)

    # --- find and resolve --------------------------------------------------------------------------------------------------------

    async def _find(self) -> tuple[dict[int, Broker] | None, str]:
        """The list, or None; and why framegate could not read one itself, or an empty text."""
        seen = self._take_seen()
        if self._needs_login and seen is not None:
            return seen, self.error  # each try is a failed login in the brokers' logs
        if self._ask is None:
            return seen, "each login of sasl.identities is for certain clients; the lists in their answers are taken"
        try:
            async with asyncio.timeout(LOOK_LIMIT_S):
                found = await ask_any(self._addresses(), self._ask)
            self._needs_login = False
            if seen != found and self._pause_s < self._pace.most_pause_s:
                self._seen = self._seen or seen  # one of the two brokers does not know of a change yet: the next look comes soon
            return found, ""
        except (OSError, EOFError, ProxyError, ValueError) as error:
            self._needs_login = isinstance(error, LoginNeededError)
            ended = "the connection was ended before the answer" if isinstance(error, EOFError) else ""
            return seen, ended or str(error) or "there was no answer in time"

    def _take_seen(self) -> dict[int, Broker] | None:
        seen, self._seen = self._seen, None
        return seen

    def _with_missing(self, found: Mapping[int, Broker]) -> dict[int, Broker]:
        """The list, with known brokers that it lacks and that have been missing for less than ``missing_s``."""
        now = asyncio.get_running_loop().time()
        self._missing = {node: self._missing.get(node, now) for node in self.brokers if node not in found}
        kept = {node: self.brokers[node] for node, since in self._missing.items() if now - since < self._pace.missing_s}
        return dict(sorted({**found, **kept}.items()))

    def _addresses(self) -> list[Wire]:
        """Some bootstrap servers and some known brokers, in random order."""
        desired = self._supervisor.desired
        bootstrap: list[Wire] = [*desired.endpoints.get(self.name, [])]
        known = [address for row in desired.brokers[self.name]["brokers"] for address in row["addresses"] if address not in bootstrap]
        chosen = [*random.sample(bootstrap, min(len(bootstrap), MOST_ASKED)), *random.sample(known, min(len(known), MOST_ASKED))]
        random.shuffle(chosen)
        return chosen

    def unreadable(self, error: str) -> None:
        """No list could be read, or one that cannot be right, and the brokers stay as they are; empty: it was read."""
        if error and error != self.error:
            self._log.write("brokers_unreadable", level="warning", upstream=self.name, error=error)
        self.error = error

    async def _resolve(self, brokers: Mapping[int, Broker]) -> dict[int, list[Wire]]:
        self._names.watch({str(node): [str(broker)] for node, broker in brokers.items()})
        found = await in_thread(self._names.ask) if self._names.any else self._names.ask()
        errors = {endpoint: error for item in found.values() for endpoint, error in item.errors.items()}
        self._unresolved = {node: found[str(node)].error for node in brokers if not found[str(node)].addresses}
        before, self._resolved = self._resolved, Resolution([], errors)
        log_errors(self._log, {self.name: before}, {self.name: self._resolved})
        return {node: sorted(found[str(node)].addresses, key=str) for node in brokers}

    def _circle(self, addresses: Mapping[int, Sequence[Wire]]) -> str:
        """The error, if a broker's address is one where framegate itself listens: connections would go in a circle."""
        own = [item for each in self._acceptor.listeners.values() for item in (each, *each.brokers.values()) if not item.address.startswith("unix:")]
        bound: dict[int, list[tuple[ListeningSocket, Address]]] = {}
        for item in own:
            bound.setdefault(item.port, []).append((item, parse_address(item.address, port_zero=True)))
        for node, wires in addresses.items():
            for _, _, host, port in wires:
                for item, address in bound.get(port, ()):
                    if parse_address(f"[{host}]:{port}" if ":" in host else f"{host}:{port}").reaches(address):
                        return (
                            f"broker {node} is at {host}:{port}, where framegate's listener {item.config.name} is: connections would go in a circle"
                        )
        return ""

    # --- in force ----------------------------------------------------------------------------------------------------------------

    async def _put_in_force(self, brokers: dict[int, Broker], addresses: Mapping[int, list[Wire]]) -> bool:
        opened = self._open(brokers)
        row = self._row(brokers, addresses)
        before, known = self.brokers, self._supervisor.desired.brokers[self.name]
        decided = False

        def commit(desired: DesiredState) -> None:
            nonlocal decided
            desired.brokers = {**desired.brokers, self.name: row}
            self._supervisor.follow_layout(layout)
            decided = True

        if row != known:
            layout = self._supervisor.desired.layout

            def check() -> None:
                nonlocal layout
                layout = self._supervisor.desired.layout.with_brokers(self.name, brokers)
                self._supervisor.make_room(layout)

            def build(slot: int) -> Change:
                change = Change(brokers={self.name: row})
                if layout is not self._supervisor.desired.layout:
                    change["cells"] = layout.wire
                return change

            try:
                await self._supervisor.change(build, commit, check)
            except ControlError as error:
                if not decided:
                    for listening, node in opened:
                        self._acceptor.remove_broker(listening.config.name, node)
                    if str(error) != self._refusal:
                        self._log.write("brokers_refused", level="error", upstream=self.name, error=str(error))
                    self._refusal = str(error)
                    return False
        self._refusal = ""
        self.brokers = brokers
        self._report(before, brokers)
        self._close(brokers)
        return row != known

    def _open(self, brokers: Mapping[int, Broker]) -> list[tuple[Listening, int]]:
        """Listen for brokers that have no socket. Returns the new ones."""
        opened = []
        for name, ports in self._ports.items():
            listening = self._acceptor.listeners[name]
            assigned = ports.assign(brokers)
            faults = {node: f"the range {ports.ports[0]}-{ports.ports[-1]} has no port for it" for node in brokers if node not in assigned}
            for node, port in assigned.items():
                if node in listening.brokers:
                    continue
                try:
                    self._acceptor.add_broker(name, node, port)
                    opened.append((listening, node))
                except StartError as error:
                    faults[node] = str(error)
            if faults and faults != self._faults[name]:
                shown = {str(node): faults[node] for node in sorted(faults)[:_SHOWN]}
                self._log.write("brokers_without_port", level="warning", upstream=self.name, listener=name, count=len(faults), brokers=shown)
            self._faults[name] = faults
        return opened

    def _row(self, brokers: Mapping[int, Broker], addresses: Mapping[int, list[Wire]]) -> ClusterRow:
        return ClusterRow(
            brokers=[BrokerRow(id=node, rack=broker.rack, addresses=addresses[node]) for node, broker in brokers.items()],
            listeners={item.name: advertised(item, self._acceptor.listeners[item.name], brokers) for item in self.listeners},
        )

    def _report(self, before: Mapping[int, Broker], now: Mapping[int, Broker]) -> None:
        for node in now.keys() | before.keys():
            old, new = before.get(node), now.get(node)
            facts: dict[str, Any] = {"upstream": self.name, "broker": node}
            if new is None and old is not None:
                self._left[node] = old
                self._log.write("broker_left", level="warning", **facts, address=str(old), rack=old.rack)
            elif new is not None and old is None:
                self._left.pop(node, None)
                self._log.write("broker_joined", **facts, address=str(new), rack=new.rack)
            elif new is not None and old is not None and new != old:
                before_it = {"address": str(old), "rack": old.rack}
                self._log.write("broker_moved", **facts, address=str(new), rack=new.rack, before=before_it)

    def _close(self, brokers: Mapping[int, Broker]) -> None:
        for name in self._ports:
            listening = self._acceptor.listeners[name]
            for node in [node for node in listening.brokers if node not in brokers]:
                self._acceptor.remove_broker(name, node)
            for node in [node for node in listening.counts if node != BOOTSTRAP and node not in brokers]:
                listening.forget(node)
        self._left = {node: broker for node, broker in self._left.items() if any(node in self._counts(name) for name in self._ports)}

    # --- shown -------------------------------------------------------------------------------------------------------------------

    def _counts(self, listener: str) -> dict[int, Any]:
        return self._acceptor.listeners[listener].counts

    @property
    def by_host(self) -> list[str]:
        """The listeners whose brokers have names, and no ports of their own."""
        return [item.name for item in self.listeners if item.name not in self._ports]

    def statuses(self, down: Down, by_host: Mapping[str, Mapping[int, int]]) -> Iterator[BrokerStatus]:
        """Each broker at each listener, by listener and node id. ``by_host``: connections by listener and broker, of those in ``by_host``."""
        row = self._supervisor.desired.brokers[self.name]
        addresses = {item["id"]: len(item["addresses"]) for item in row["brokers"]}
        for listener in self.listeners:
            counts, faults = self._counts(listener.name), self._faults[listener.name]
            told = {
                int(node): f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
                for node, host, port in row["listeners"][listener.name]["brokers"]
            }
            for node, broker in sorted({**self._left, **self.brokers}.items()):
                state: BrokerState = "up"
                reason = ""
                if node not in self.brokers:
                    if node not in counts:
                        continue
                    state, reason = "gone", "the cluster does not name it any more; connections are left"
                elif node in faults:
                    state, reason = "no_port", faults[node]
                elif node in self._unresolved or len(down.get(node, ())) >= addresses.get(node, 1):
                    state = "down"
                    reason = self._unresolved.get(node) or "; ".join(sorted(set(down.get(node, {}).values())))
                yield BrokerStatus(
                    upstream=self.name,
                    listener=listener.name,
                    node=node,
                    address=str(broker),
                    advertised=told.get(node, ""),
                    rack=broker.rack,
                    state=state,
                    reason=reason,
                    connections=counts[node].open if node in counts else by_host.get(listener.name, {}).get(node, 0),
                )
