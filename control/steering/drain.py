"""The proxy's end in good order: no more connections, and those that are open end at a frame boundary."""

from control.errors import InvalidArgumentError, UnavailableError, Violation
from control.fleet.supervisor import Supervisor
from control.intake.acceptor import Acceptor
from control.logs import RowLog
from control.plane import DrainResult
from control.steering.listeners import Listeners
from control.steering.pool import Pool
from control.steering.transactions import Transaction, Transactions

__all__ = ["Drain"]


class Drain:
    """Drains, as often as it is asked to; nothing takes it back."""

    def __init__(self, supervisor: Supervisor, acceptor: Acceptor, listeners: Listeners, pool: Pool, transactions: Transactions, log: RowLog) -> None:
        self._supervisor = supervisor
        self._acceptor = acceptor
        self._listeners = listeners
        self._pool = pool
        self._transactions = transactions
        self._log = log

    async def run(self, timeout_ms: int | None, *, wait: bool) -> DrainResult:
        """See ``ControlPlane.drain``."""
        timeout = self._supervisor.desired.config.drain.timeout_ms if timeout_ms is None else timeout_ms
        if timeout < 0:
            raise InvalidArgumentError([Violation("timeout", "must not be negative")])
        return await self._transactions.run("drain", lambda transaction: self._run(transaction, timeout, wait=wait))

    async def _run(self, transaction: Transaction, timeout_ms: int, *, wait: bool) -> DrainResult:
        transaction.decide()
        self._pool.draining = True
        self._acceptor.stop()
        before = self._listeners.connections()
        self._log.write("draining", timeout_ms=timeout_ms, connections=before)
        silent = await self._supervisor.drain_slots(list(self._supervisor.slots), timeout_ms, wait=wait)
        after = self._listeners.connections()
        if silent:
            slots = ",".join(map(str, silent))
            raise UnavailableError(f"the proxy drains, but processor {slots} has not said so", reason="PROCESSOR_SILENT", processors=slots)
        if wait:
            self._log.write("drained", connections=after)
        return DrainResult(closed=max(0, before - after), open=after)
