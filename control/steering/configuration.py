"""A whole configuration applied while traffic flows, in every processor or in none, in two phases (``control.fleet.two_phases``)."""

import dataclasses
from typing import Final, NamedTuple, cast

from framegate.control.accept.acceptor import Acceptor
from framegate.control.configuration.capacity import fitted
from framegate.control.configuration.cgroup import container
from framegate.control.configuration.child import Loaded
from framegate.control.configuration.difference import Difference, differences, etag_of
from framegate.control.errors import EtagError, FailedPreconditionError
from framegate.control.fleet.desired_state import DesiredState
from framegate.control.fleet.supervisor import Supervisor
from framegate.control.steering.pool import Pool, equal_shares, too_small
from framegate.control.steering.rows import LogRows
from framegate.control.steering.transactions import Transaction, Transactions
from framegate.proxy.config.limits import limits_in_force
from framegate.proxy.config.model import ProxyConfig, kafka_rules_to_wire, largest_whole, quotas_to_wire
from framegate.proxy.server.messages import Change
from framegate.proxy.server.rows import LimitsRow

__all__ = ["Applied", "Configuration"]

_CHANGED: Final = ("max_receive_size", "limits")
_KAFKA: Final = ("report_only", "rules")


class Applied(NamedTuple):
    """A configuration that was applied: what was in force before and is now, and the differences."""

    before: ProxyConfig
    after: ProxyConfig
    differences: tuple[Difference, ...]


class Configuration:
    """Applies configurations: limits, quotas, rules about Kafka, the size of the pool, and what only the control process reads."""

    def __init__(self, supervisor: Supervisor, acceptor: Acceptor, pool: Pool, log: LogRows, transactions: Transactions) -> None:
        self._supervisor = supervisor
        self._acceptor = acceptor
        self._pool = pool
        self._log = log
        self._transactions = transactions

    @property
    def etag(self) -> str:
        """Identifies the configuration in force."""
        return etag_of(self._supervisor.desired.config)

    async def apply(self, loaded: Loaded, etag: str = "", *, validate_only: bool = False) -> Applied:
        """Put a configuration in force.

        Args:
            loaded: the configuration.
            etag: that of the configuration that the caller has seen; empty: replace any.
            validate_only: only check, and return the result.

        Raises:
            EtagError: the configuration has changed. FailedPreconditionError: a change needs a restart (NEEDS_RESTART, with the keys), or a share of
            the pool would be too small; nothing is applied. AbortedError, UnavailableError: as of ``Supervisor.change``.
        """
        after = fitted(loaded.config, container())
        before = self._supervisor.desired.config

        def check() -> None:
            nonlocal before
            before = self._supervisor.desired.config
            if etag and etag != self.etag:
                raise EtagError("configuration", before.node)
            self._check(before, after)

        def build(slot: int) -> Change:
            change = Change(max_receive_size={item.name: item.max_receive_size for item in after.listeners})
            change["limits"] = cast(LimitsRow, quotas_to_wire(after))
            if rules := {item.name: kafka_rules_to_wire(item.kafka) for item in after.listeners if item.kafka is not None}:
                change["kafka_rules"] = rules
            if after.memory_pool.size != before.memory_pool.size:
                change["share"] = equal_shares(after.memory_pool.size, len(self._pool.wanted_slots()))[slot]
            return change

        def commit(desired: DesiredState) -> None:
            if after.memory_pool.size != before.memory_pool.size:
                desired.shares = equal_shares(after.memory_pool.size, len(self._pool.wanted_slots()))
            desired.config = after
            self._pool.size_origin = "configuration" if loaded.config.memory_pool.size else "container"
            self._pool.processors_origin = "configuration" if loaded.config.processors else "container"
            self._acceptor.set_limits(limits_in_force(after.limits, {item.name: item.limits for item in after.listeners}))

        async def make(transaction: Transaction) -> Applied:
            await self._supervisor.change(build, commit, check, transaction.decide)
            return Applied(before, after, differences(before, after))

        if validate_only:
            check()
            return Applied(before, after, differences(before, after))
        return await self._transactions.change("configuration", make)

    def _check(self, before: ProxyConfig, after: ProxyConfig) -> None:
        refused = [item.path for item in differences(_without_live(before, after), after)]
        if refused:
            text = f"nothing is applied: a restart is needed to change {', '.join(refused)}"
            raise FailedPreconditionError(text, reason="NEEDS_RESTART", keys=",".join(refused))
        share = min(equal_shares(after.memory_pool.size, len(self._pool.wanted_slots())).values())
        if share < max(largest_whole(after)):
            raise too_small(share, max(largest_whole(after)))


def _without_live(before: ProxyConfig, after: ProxyConfig) -> ProxyConfig:
    """``before`` with the values of ``after`` that can be changed."""
    new = {item.name: item for item in after.listeners}
    listeners = []
    for item in before.listeners:
        if (other := new.get(item.name)) is not None:
            item = dataclasses.replace(item, **{name: getattr(other, name) for name in _CHANGED})
            if item.kafka is not None and other.kafka is not None:
                item = dataclasses.replace(item, kafka=dataclasses.replace(item.kafka, **{name: getattr(other.kafka, name) for name in _KAFKA}))
        listeners.append(item)
    return dataclasses.replace(
        before,
        listeners=tuple(listeners),
        limits=after.limits,
        memory_pool=dataclasses.replace(before.memory_pool, size=after.memory_pool.size),
        log=dataclasses.replace(before.log, level=after.log.level),
        drain=after.drain,
        config=after.config,
    )
