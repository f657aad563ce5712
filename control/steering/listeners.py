"""The status of listeners and upstreams; and the addresses of upstreams, which the resolver finds and every processor gets."""

import asyncio
import dataclasses
import typing
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from framegate.control.accept.acceptor import Acceptor
from framegate.control.accept.resolver import Resolver
from framegate.control.errors import ControlError, NotFoundError
from framegate.control.fleet.desired_state import DesiredState
from framegate.control.fleet.processor import REQUEST_MS
from framegate.control.fleet.supervisor import Supervisor
from framegate.control.logs import RowLog
from framegate.control.status import ListenerStatus, UpstreamStatus
from framegate.proxy.config.model import ListenerConfig, ProxyConfig, forwarding_of
from framegate.proxy.server.messages import Change, Endpoints
from framegate.proxy.server.protocol import upstreams_request
from framegate.proxy.server.rows import EndpointRow, EndpointState, RefusedFrameRow

_STATES: Final = typing.get_args(EndpointState)


def find_listener(config: ProxyConfig, name: str) -> ListenerConfig:
    """The listener with a name. Raises NotFoundError."""
    for listener in config.listeners:
        if listener.name == name:
            return listener
    raise NotFoundError("listener", name)


def with_listener(config: ProxyConfig, changed: ListenerConfig) -> ProxyConfig:
    """The configuration with another value of the listener of that name."""
    return dataclasses.replace(config, listeners=tuple(changed if item.name == changed.name else item for item in config.listeners))


async def endpoint_rows(supervisor: Supervisor) -> list[list[EndpointRow]]:
    """The endpoints of each processor. Raises UnavailableError: a processor does not answer."""
    answers = await asyncio.gather(*(processor.request(upstreams_request(), REQUEST_MS) for processor in supervisor.running))
    return [answer["rows"] for answer in answers]


class Listeners:
    """The status of listeners, from ``acceptor.listeners``, which is updated first (``Connections.count_handed``)."""

    def __init__(self, supervisor: Supervisor, acceptor: Acceptor) -> None:
        self._supervisor = supervisor
        self._acceptor = acceptor

    def statuses(self) -> list[ListenerStatus]:
        self._supervisor.connections.count_handed()
        return [self._status(name) for name in self._acceptor.listeners]

    def connections(self) -> int:
        self._supervisor.connections.count_handed()
        return self._acceptor.open

    def _status(self, name: str) -> ListenerStatus:
        listening = self._acceptor.listeners[name]
        config = find_listener(self._supervisor.desired.config, name)
        return ListenerStatus(
            name=name,
            address=listening.address,
            upstream=config.upstream or "",
            handler=config.handler or "",
            protocol=config.protocol,
            framing=config.framing,
            tls=config.tls is not None,
            max_receive_size=config.max_receive_size,
            max_connections=config.limits.connections,
            connections=listening.open,
            accepting=listening.accepting,
            forwarding=forwarding_of(config),
        )


class Upstreams:
    """The status of upstreams, and changes of their addresses."""

    def __init__(self, supervisor: Supervisor, resolver: Resolver, log: RowLog) -> None:
        self._supervisor = supervisor
        self._resolver = resolver
        self._log = log

    async def statuses(self) -> list[UpstreamStatus]:
        """Every upstream, in the configuration's order. Raises UnavailableError: a processor does not answer."""
        states = await self._states()
        return [
            UpstreamStatus(
                name=item.name,
                endpoints=item.addresses,
                addresses=self._resolver.current[item.name].texts(),
                tls=item.tls is not None,
                max_receive_size=item.max_receive_size,
                error=self._resolver.current[item.name].error,
                states=states.get(item.name, ()),
            )
            for item in self._supervisor.desired.config.upstreams
        ]

    async def _states(self) -> dict[str, tuple[EndpointRow, ...]]:
        found: dict[str, dict[tuple[str, int | None], list[EndpointRow]]] = {}
        for rows in await endpoint_rows(self._supervisor):
            for row in rows:
                found.setdefault(row["upstream"], {}).setdefault((row["endpoint"], row.get("broker")), []).append(row)
        return {name: tuple(map(_joined, each.values())) for name, each in found.items()}

    async def set_endpoints(self) -> None:
        """Give the resolver's addresses to every processor, if they changed. A refusal is logged; the next call tries again."""
        current = self._resolver.current
        endpoints: Endpoints = {}

        def check() -> None:
            nonlocal endpoints
            endpoints = {name: resolution.addresses for name, resolution in self._resolver.current.items()}

        check()
        if _as_sets(endpoints) == _as_sets(self._supervisor.desired.endpoints):
            return

        def commit(desired: DesiredState) -> None:
            desired.endpoints = endpoints

        try:
            await self._supervisor.change(lambda slot: Change(endpoints=endpoints), commit, check)
            self._log.write("endpoints_changed", upstreams={name: resolution.texts() for name, resolution in current.items()})
        except ControlError as error:
            self._log.write("endpoints_refused", level="error", error=str(error))


def _joined(rows: Sequence[EndpointRow]) -> EndpointRow:
    """One row of those of all processors; see ``UpstreamStatus``."""
    worst = max(rows, key=lambda row: _STATES.index(row["state"]))
    connections, out = sum(row["connections"] for row in rows), sum(row["out"] for row in rows)
    return EndpointRow({**worst, "connections": connections, "out": out, "latency_ns": max(row["latency_ns"] for row in rows)})


def _as_sets(endpoints: Endpoints) -> dict[str, set[tuple[Any, ...]]]:
    """Endpoints without their order, since name servers rotate their answers."""
    return {name: {tuple(item) for item in rows} for name, rows in endpoints.items()}


KEPT: Final = 100  # of each listener


class RefusedFrames:
    """Keeps the rows that processors report. Event loop only."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._kept: dict[str, deque[RefusedFrameRow]] = {}
        supervisor.on_refused = self.note

    def note(self, row: RefusedFrameRow) -> None:
        """Keep a row; the oldest of its listener, and those of listeners that were removed, are dropped."""
        if row["listener"] not in self._kept:
            names = {item.name for item in self._supervisor.desired.config.listeners}
            self._kept = {name: rows for name, rows in self._kept.items() if name in names}
        self._kept.setdefault(row["listener"], deque(maxlen=KEPT)).append(row)

    def latest(self, listener: str) -> list[RefusedFrameRow]:
        """The rows of a listener, the latest first. Raises NotFoundError."""
        find_listener(self._supervisor.desired.config, listener)
        return list(reversed(self._kept.get(listener, ())))
