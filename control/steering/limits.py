"""The largest frame that a listener's clients may send, and quotas, changed while traffic flows; and what follows from a limit of connections.

A change goes to every processor in two phases (``control.fleet.two_phases``), and to the acceptor when it is decided.
"""

import asyncio
import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from framegate.control.accept.acceptor import Acceptor
from framegate.control.configuration.limit_rules import limit_faults, quota_faults
from framegate.control.errors import EtagError, InvalidArgumentError, UnavailableError, Violation
from framegate.control.fleet.desired_state import DesiredState
from framegate.control.fleet.processor import Processor
from framegate.control.fleet.supervisor import Supervisor
from framegate.control.logs import RowLog
from framegate.control.status import Limit, NodeLimits
from framegate.control.steering.listeners import find_listener
from framegate.control.steering.pool import Pool, too_small
from framegate.control.steering.transactions import Transaction, Transactions
from framegate.proxy.config.limits import LimitsConfig, limits_in_force
from framegate.proxy.config.model import MAX_RECEIVE_SIZE, ListenerConfig, ProxyConfig, forwarding_of, whole_request
from framegate.proxy.server.protocol import evict_request

__all__ = ["EVICTION_INTERVAL_S", "Eviction", "Limits", "parts"]

EVICTION_INTERVAL_S: Final = 0.25
EVICTION_LIMIT_S: Final = 30.0
_PATIENCE_MS: Final = 5_000
_AT_ONCE: Final = 1_000
"""Connections of one processor in one call; the rest follows in the next one."""
_NODE: Final = "node limits"
_CHANGEABLE: Final = tuple(field.name for field in dataclasses.fields(LimitsConfig) if field.name != "protected_listener")


class Limits:
    """Shows and changes them; no largest frame may be above a processor's share of the pool."""

    def __init__(self, supervisor: Supervisor, acceptor: Acceptor, transactions: Transactions, pool: Pool) -> None:
        self._supervisor = supervisor
        self._acceptor = acceptor
        self._transactions = transactions
        self._pool = pool

    @property
    def _config(self) -> ProxyConfig:
        return self._supervisor.desired.config

    def get(self, listener: str | None = None) -> list[Limit]:
        """The limits in force of one or of every listener. Raises NotFoundError."""
        listeners = self._config.listeners if listener is None else (find_listener(self._config, listener),)
        return [_limit(item) for item in listeners]

    def get_node(self) -> NodeLimits:
        """The quotas in force of the node, of addresses and of networks."""
        return NodeLimits(quotas=self._config.limits, etag=_etag(self._config.limits))

    async def change(self, listener: str, max_receive_size: int | None = None, quotas: Mapping[str, int] | None = None) -> Limit:
        """Change maxReceiveSize, for every header scanned from now on, and quotas of a listener.

        Args:
            max_receive_size: None: it stays.
            quotas: new values by the name of ``RateLimits``' field; None: they stay.

        Raises:
            NotFoundError: no such listener. InvalidArgumentError: nothing to change, or out of range. FailedPreconditionError: above a processor's
            share of the pool. AbortedError: a processor refused; none has it. UnavailableError: it is decided, but not confirmed everywhere.
        """

        def changed(config: ProxyConfig) -> ProxyConfig:
            before = find_listener(config, listener)
            size = before.max_receive_size if max_receive_size is None else max_receive_size
            after = dataclasses.replace(before, max_receive_size=size, limits=dataclasses.replace(before.limits, **(quotas or {})))
            return dataclasses.replace(config, listeners=tuple(after if item is before else item for item in config.listeners))

        def check() -> None:
            if max_receive_size is None:
                return
            whole = whole_request(max_receive_size, forwarding_of(find_listener(self._config, listener)).requests)
            if whole > self._pool.least_share():
                raise too_small(self._pool.least_share(), whole)

        async def make(transaction: Transaction) -> Limit:
            find_listener(self._config, listener)
            if max_receive_size is None and not quotas:
                raise InvalidArgumentError([Violation("limit", "changes nothing")])
            _check(max_receive_size, quotas or {})
            await self._make(changed, check, transaction)
            return _limit(find_listener(self._config, listener))

        return await self._transactions.change(f"limit of {listener}", make)

    async def change_node(self, changes: Mapping[str, Any], etag: str = "") -> NodeLimits:
        """Change quotas of the node, of addresses and of networks, for the next connection and the next frames.

        Args:
            changes: new values by the name of ``LimitsConfig``'s field: of ``per_address`` a mapping of those that change, of ``overrides`` all.
            etag: that of the quotas that the caller has seen; empty: change any.

        Raises:
            InvalidArgumentError: nothing to change, out of range, ``protected_listener``, or networks that are not valid. EtagError: the quotas have
            changed. AbortedError, UnavailableError: as of ``change``.
        """

        def changed(config: ProxyConfig) -> ProxyConfig:
            values = dict(changes)
            if "per_address" in values:
                values["per_address"] = dataclasses.replace(config.limits.per_address, **values["per_address"])
            return dataclasses.replace(config, limits=dataclasses.replace(config.limits, **values))

        def check() -> None:
            if etag and etag != _etag(self._config.limits):
                raise EtagError(_NODE, self._config.node)
            faults = limit_faults(changed(self._config).limits, [item.name for item in self._config.listeners])
            if faults:
                raise InvalidArgumentError([Violation(*fault) for fault in faults])

        async def make(transaction: Transaction) -> NodeLimits:
            unknown = [name for name in changes if name not in _CHANGEABLE]
            if unknown or not changes:
                text = f"has {unknown[0]}, which cannot be changed" if unknown else f"sets none of {', '.join(_CHANGEABLE)}"
                raise InvalidArgumentError([Violation("node_limits", text)])
            _check(None, changes.get("per_address", {}))
            await self._make(changed, check, transaction)
            return self.get_node()

        return await self._transactions.change(_NODE, make)

    async def _make(self, changed: Callable[[ProxyConfig], ProxyConfig], check: Callable[[], None], transaction: Transaction) -> None:
        """Make a change. ``changed`` is called with the configuration that is in force when earlier changes are done."""

        def commit(desired: DesiredState) -> None:
            config = desired.config
            in_force = limits_in_force(config.limits, {item.name: item.limits for item in config.listeners})
            self._acceptor.set_limits(in_force, config.limits.protected_listener)

        await self._supervisor.change_config(changed, check, transaction.decide, commit=commit)


def _limit(listener: ListenerConfig) -> Limit:
    return Limit(listener=listener.name, max_receive_size=listener.max_receive_size, quotas=listener.limits)


def _check(max_receive_size: int | None, quotas: Mapping[str, int]) -> None:
    """Raises InvalidArgumentError for values out of range."""
    violations = [Violation(*fault) for fault in quota_faults(quotas)]
    if max_receive_size is not None and not MAX_RECEIVE_SIZE.takes(max_receive_size):
        ends = f"{MAX_RECEIVE_SIZE.least} to {MAX_RECEIVE_SIZE.most}"
        violations.append(Violation("max_receive_size", f"must be from {ends} bytes, not {max_receive_size}"))
    if violations:
        raise InvalidArgumentError(violations)


def _etag(limits: LimitsConfig) -> str:
    text = json.dumps(dataclasses.asdict(limits), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


class Eviction:
    """Closes the connections that have been idle for longest when the node has more than it may, except those of the protected listener.

    That happens when the protected listener takes connections above the limit, or when the limit is lowered; a listener's own limit closes none. Each
    processor closes its share of the connections. A connection whose end has begun counts as closed, since the end may take a second.
    """

    def __init__(self, supervisor: Supervisor, acceptor: Acceptor, log: RowLog) -> None:
        self._supervisor = supervisor
        self._acceptor = acceptor
        self._log = log
        self._ending: set[int] = set()

    async def look(self) -> None:
        """Close connections, if there are more than the node may have."""
        limits = self._supervisor.desired.config.limits
        self._supervisor.connections.count_handed()
        excess = self._acceptor.open - limits.connections
        if limits.connections and excess > 0:
            await self._evict(excess, limits.protected_listener)
        else:
            self._ending.clear()

    async def _evict(self, excess: int, spared: str | None) -> None:
        open_now: dict[Processor, set[int]] = {
            processor: {given.number for given in processor.open.values() if given is not None and given.handover.listener != spared}
            for processor in self._supervisor.running
        }
        self._ending &= set().union(*open_now.values())
        excess -= len(self._ending)
        counts = {processor: len(numbers - self._ending) for processor, numbers in open_now.items()}
        asked = {processor: min(part, _AT_ONCE) for processor, part in parts(excess, counts).items() if part}
        answers = await asyncio.gather(*(self._ask(processor, count, spared) for processor, count in asked.items()))
        evicted = [number for answer in answers for number in answer]
        self._ending.update(evicted)
        if evicted:
            self._log.write("evicted", level="warning", key="limits.connections", excess=excess, count=len(evicted), spared=spared)

    async def _ask(self, processor: Processor, count: int, spared: str | None) -> list[int]:
        """Returns the ids of the connections whose end has begun; none if the processor does not answer, then the next call asks again."""
        try:
            return (await processor.request(evict_request(count, spared), _PATIENCE_MS))["affected"]
        except UnavailableError as error:
            if error.reason != "PROCESSOR_GONE":  # its connections have ended, too
                self._log.write("eviction_failed", level="warning", slot=processor.slot, error=str(error))
            return []


def parts(excess: int, counts: dict[Processor, int]) -> dict[Processor, int]:
    """Divide ``excess`` among processors in proportion to their counts. None gives more than it has, and all together not more than ``excess``."""
    left, total, found = max(0, excess), sum(counts.values()), {}
    for processor, count in counts.items():
        found[processor] = min(count, -(-left * count // total)) if total else 0
        left -= found[processor]
        total -= count
    return found
