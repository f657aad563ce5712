"""The largest frame that a listener's clients may send, changed while traffic flows."""

import dataclasses

from control.errors import InvalidArgumentError, Violation
from control.fleet.desired_state import DesiredState
from control.fleet.supervisor import Supervisor
from control.meters import Meters
from control.plane import Limit
from control.steering.listeners import find_listener
from control.steering.pool import Pool, counted, too_small
from control.steering.transactions import Transaction, Transactions
from proxy.config.model import MAX_RECEIVE_SIZE, ProxyConfig, forwarding_of, whole_request
from proxy.server.messages import Change

__all__ = ["Limits"]


class Limits:
    """Shows and changes them; none may be above a processor's share of the pool."""

    def __init__(self, supervisor: Supervisor, transactions: Transactions, meters: Meters, pool: Pool) -> None:
        self._supervisor = supervisor
        self._transactions = transactions
        self._meters = meters
        self._pool = pool

    @property
    def _config(self) -> ProxyConfig:
        return self._supervisor.desired.config

    def get(self, listener: str | None = None) -> list[Limit]:
        """See ``ControlPlane.get_limits``."""
        listeners = self._config.listeners if listener is None else (find_listener(self._config, listener),)
        return [Limit(listener=item.name, max_receive_size=item.max_receive_size) for item in listeners]

    async def change(self, listener: str, max_receive_size: int) -> Limit:
        """See ``ControlPlane.set_limit``."""
        return await self._transactions.run(f"limit of {listener}", lambda transaction: self._set(listener, max_receive_size, transaction))

    async def _set(self, listener: str, max_receive_size: int, transaction: Transaction) -> Limit:
        with counted(self._meters):
            find_listener(self._config, listener)
            if not MAX_RECEIVE_SIZE.takes(max_receive_size):
                ends = f"{MAX_RECEIVE_SIZE.least} to {MAX_RECEIVE_SIZE.most}"
                raise InvalidArgumentError([Violation("max_receive_size", f"must be from {ends} bytes, not {max_receive_size}")])

            def check() -> None:
                whole = whole_request(max_receive_size, forwarding_of(find_listener(self._config, listener)).requests)
                if whole > self._pool.least_share():
                    raise too_small(self._pool.least_share(), whole)

            def commit(desired: DesiredState) -> None:
                listeners = tuple(
                    dataclasses.replace(item, max_receive_size=max_receive_size) if item.name == listener else item
                    for item in desired.config.listeners
                )
                desired.config = dataclasses.replace(desired.config, listeners=listeners)

            await self._supervisor.change(lambda slot: Change(max_receive_size={listener: max_receive_size}), commit, check, transaction.decide)
            return Limit(listener=listener, max_receive_size=max_receive_size)
