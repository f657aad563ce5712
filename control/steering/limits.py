"""The largest frame that a listener's clients may send, and quotas, changed while traffic flows; and what follows from a limit of connections.

A change goes to every processor in two phases (``control.fleet.two_phases``), and to the acceptor when it is decided.
"""

import asyncio
import dataclasses
import importlib
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from framegate.control.accept.acceptor import Acceptor
from framegate.control.configuration.limit_rules import limit_faults, listener_limit_faults
from framegate.control.errors import FailedPreconditionError, UnavailableError, check_fields
from framegate.control.fleet.processor import Processor
from framegate.control.fleet.supervisor import Supervisor
from framegate.control.logs import RowLog
from framegate.control.status import Limit
from framegate.control.steering.listeners import find_listener, with_listener
from framegate.control.steering.pool import Pool, too_small
from framegate.control.steering.transactions import Changed, Part, Transactions, replaced
from framegate.proxy.config.limits import LimitsConfig, ListenerLimits, limits_in_force
from framegate.proxy.config.model import KafkaRules, ListenerConfig, ProxyConfig, receive_sizes, whole_request
from framegate.proxy.server.protocol import evict_request

EVICTION_INTERVAL_S: Final = 0.25
EVICTION_LIMIT_S: Final = 30.0
_PATIENCE_MS: Final = 5_000
_AT_ONCE: Final = 1_000  # Connections of one processor in one call; the rest follows in the next one
T = TypeVar("T")


class Limits:
    """Shows and changes them; no largest frame may be above a processor's share of the pool. Ranges are checked by the callers."""

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

    def get_node(self) -> LimitsConfig:
        """The quotas in force of the node, of addresses and of networks."""
        return self._config.limits

    async def change(self, listener: str, changes: Mapping[str, Any], etag: str = "", *, validate_only: bool = False) -> Changed[Limit]:
        """Change maxReceiveSize, for every header scanned from now on, quotas and limit rules of a listener; ``changes``: by the name of ``Limit``'s
        field. Raises FailedPreconditionError: above a processor's share of the pool; InvalidArgumentError: rules that are not valid; others as
        ``Transactions.update``.
        """

        def edit(before: Limit) -> Limit:
            after = replaced(before, changes)
            changed = _with(find_listener(self._config, listener), after)
            check_fields(listener_limit_faults(changed) if changes.keys() & {"rules", "max_receive_size"} else [])
            whole = whole_request(max(receive_sizes(changed)), changed)
            if changes.keys() & {"rules", "max_receive_size"} and whole > self._pool.least_share():
                raise too_small(self._pool.least_share(), whole)
            return after

        def into(config: ProxyConfig, limit: Limit) -> ProxyConfig:
            return with_listener(config, _with(find_listener(config, listener), limit))

        part = Part("limit", listener, lambda config: _limit(find_listener(config, listener)), into)
        return await self._update(part, edit, etag, validate_only=validate_only)

    async def change_node(self, changes: Mapping[str, Any], etag: str = "", *, validate_only: bool = False) -> Changed[LimitsConfig]:
        """Change quotas of the node, of addresses and of networks, for the next connection and the next frames. ``changes``: by the name of
        ``LimitsConfig``'s field, of ``per_address`` a mapping. Raises InvalidArgumentError: networks that are not valid; others as
        ``Transactions.update``.
        """

        def edit(before: LimitsConfig) -> LimitsConfig:
            after = replaced(before, changes)
            check_fields(limit_faults(after, [item.name for item in self._config.listeners]))
            return after

        part = Part("node limits", self._config.node, lambda config: config.limits, lambda config, limits: dataclasses.replace(config, limits=limits))
        return await self._update(part, edit, etag, validate_only=validate_only)

    async def _update(self, part: Part[T], edit: Callable[[T], T], etag: str, *, validate_only: bool) -> Changed[T]:
        def decided(changed: Changed[T]) -> None:
            config = self._config
            in_force = limits_in_force(config.limits, {item.name: item.limits for item in config.listeners})
            self._acceptor.set_limits(in_force, config.limits.protected_listener)

        return await self._transactions.update(self._supervisor, part, edit, etag, validate_only=validate_only, decided=decided)


def _limit(listener: ListenerConfig) -> Limit:
    return Limit(listener=listener.name, max_receive_size=listener.max_receive_size, **_fields(listener.limits))


def _with(listener: ListenerConfig, limit: Limit) -> ListenerConfig:
    return dataclasses.replace(listener, max_receive_size=limit.max_receive_size, limits=ListenerLimits(**_fields(limit)))


def _fields(limits: ListenerLimits) -> dict[str, Any]:
    return {field.name: getattr(limits, field.name) for field in dataclasses.fields(ListenerLimits)}


class Eviction:
    """Closes the connections that have been idle for longest when the node has more than it may, except those of the protected listener. That happens
    when the protected listener takes connections above the limit, or when the limit is lowered; a listener's own limit closes none. Each processor
    closes its share of the connections. A connection whose end has begun counts as closed, since the end may take a second.
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


class RulesAboutKafka:
    """Shows and changes them."""

    def __init__(self, supervisor: Supervisor, transactions: Transactions) -> None:
        self._supervisor = supervisor
        self._transactions = transactions

    def get(self, listener: str) -> KafkaRules:
        """The rules in force of a listener. Raises NotFoundError, or FailedPreconditionError (NO_KAFKA_RULES): it has no section ``kafka``."""
        return _rules_of(self._supervisor.desired.config, listener)

    async def change(self, listener: str, changes: Mapping[str, Any], etag: str = "", *, validate_only: bool = False) -> Changed[KafkaRules]:
        """Change ``report_only``, ``rules`` or both, for the next requests. Raises the errors of ``get``; InvalidArgumentError: rules that are not
        valid, with fields as in ``rules[0].deny[1]``; others as ``Transactions.update``.
        """
        validation = await asyncio.to_thread(importlib.import_module, "framegate.control.configuration.kafka_rules")  # with the reader of YAML

        def edit(before: KafkaRules) -> KafkaRules:
            after = replaced(before, changes)
            check_fields(validation.kafka_rule_faults(after))
            return after

        part = Part(
            "rules about Kafka",
            listener,
            lambda config: _rules_of(config, listener),
            lambda config, rules: with_listener(config, dataclasses.replace(find_listener(config, listener), kafka=rules)),
        )
        return await self._transactions.update(self._supervisor, part, edit, etag, validate_only=validate_only)


def _rules_of(config: ProxyConfig, listener: str) -> KafkaRules:
    rules = find_listener(config, listener).kafka
    if rules is None:
        text = f"the listener {listener} has no section `kafka`: add it, perhaps without rules, and restart"
        raise FailedPreconditionError(text, reason="NO_KAFKA_RULES", listener=listener)
    return rules
