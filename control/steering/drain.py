"""Drain: the proxy is no longer ready, and open connections end at a frame boundary.

In a pod the end has two steps. In preStop (``until_stop``), the proxy stops being ready. Connections from other pods end one by one: after
``drain.delay``, since their clients would come back to this pod before, spread over half of ``drain.timeout``. New ones are taken, and connections
from within the pod stay, since the application may need them for its own end. Then, at SIGTERM, which a native sidecar gets when the application has
ended, no connection is taken any more and the open ones end (``refuse``). A drain may also begin with the second step. Its timeout runs from its
first request; a later request can only shorten it.
"""

import asyncio
import time
from typing import Any

from framegate.control.accept.acceptor import Acceptor
from framegate.control.errors import InvalidArgumentError, UnavailableError, Violation
from framegate.control.events import Bus, Row
from framegate.control.fleet.supervisor import Supervisor
from framegate.control.status import DrainResult
from framegate.control.steering.listeners import Listeners
from framegate.control.steering.pool import Pool
from framegate.control.steering.transactions import Transaction, Transactions
from framegate.proxy.config.key import keys
from framegate.proxy.config.model import DrainAccept, DrainConfig


class Drain:
    """Drains. It may be called again; a drain cannot be taken back."""

    def __init__(self, supervisor: Supervisor, acceptor: Acceptor, listeners: Listeners, pool: Pool, transactions: Transactions, events: Bus) -> None:
        self._supervisor = supervisor
        self._acceptor = acceptor
        self._listeners = listeners
        self._pool = pool
        self._transactions = transactions
        self._events = events
        self._asked_at: float | None = None
        self._began = False
        self._ended = False
        self._ending: asyncio.Task[None] | None = None

    @property
    def time_s(self) -> float:
        """Seconds since the first request to drain; 0: there was none. Any thread."""
        return 0.0 if self._asked_at is None else time.monotonic() - self._asked_at

    def _note(self) -> None:
        self._pool.draining = True
        if self._asked_at is None:
            self._asked_at = time.monotonic()

    def close(self) -> None:
        """Stop waiting for the end."""
        if self._ending is not None:
            self._ending.cancel()

    async def run(
        self, timeout_ms: int | None = None, *, wait: bool = True, accept: DrainAccept | None = None, by: str = "", reason: str = ""
    ) -> DrainResult:
        """Stop being ready, and end open connections at a frame boundary, or, if connections are taken until the stop, those of other pods. The
        process stays up.

        Args:
            timeout_ms: None means the configured one.
            wait: return when no pair is open, otherwise as soon as every processor drains.
            accept: see ``DrainConfig.accept``; None: as configured, but ``refuse`` with ``wait`` or a timeout, which need an end.

        Raises InvalidArgumentError: the timeout is out of range, or ``until_stop`` is combined with ``wait`` or a timeout.
        """
        config = self._supervisor.desired.config.drain
        ends = wait or timeout_ms is not None
        if accept == "until_stop" and ends:
            raise InvalidArgumentError([Violation("accept", "until the stop: then there is no end to wait for, and no timeout")])
        chosen = accept or ("refuse" if ends else config.accept)
        timeout = config.timeout_ms if timeout_ms is None else timeout_ms
        if not (allowed := keys(DrainConfig)["timeout_ms"]).takes(timeout):
            raise InvalidArgumentError([Violation("timeout", f"must be from {allowed.least} to {allowed.most} ms, not {timeout}")])
        who: dict[str, Any] = {"by": by or None, "reason": reason or None}
        if chosen == "until_stop":
            return await self._lead_in(who)
        return await self._transactions.run("drain", lambda transaction: self._run(transaction, timeout, who, wait=wait))

    async def _lead_in(self, who: dict[str, Any]) -> DrainResult:
        """Stop being ready, and have the connections of other pods end one by one."""
        before, config = self._listeners.connections(), self._supervisor.desired.config.drain
        if not self._pool.draining:
            row: Row = {"accept": "until_stop", **who, "timeout_ms": config.timeout_ms, "delay_ms": config.delay_ms, "connections": before}
            self._events.publish({"event": "drain_began", **row})
            self._note()
            await self._supervisor.lead_in_slots(config.delay_ms, config.timeout_ms)
        return DrainResult(closed=0, open=before)

    async def _run(self, transaction: Transaction, timeout_ms: int, who: dict[str, Any], *, wait: bool) -> DrainResult:
        transaction.decide()
        self._note()
        self._acceptor.stop()
        before = self._listeners.connections()
        began, self._began = self._began, True
        row: Row = {"accept": "refuse", **who, "timeout_ms": timeout_ms, "connections": before}
        self._events.publish({"event": "drain_asked_again", **row} if began else {"event": "drain_began", **row})
        silent = await self._supervisor.drain_slots(list(self._supervisor.slots), timeout_ms, wait=wait)
        if silent:
            numbers = ",".join(map(str, silent))
            raise UnavailableError(f"the proxy drains, but processor {numbers} has not said so", reason="PROCESSOR_SILENT", processors=numbers)
        if wait:
            self._report_end()
        elif self._ending is None:
            self._ending = asyncio.create_task(self._wait_for_end())
        after = self._listeners.connections()
        return DrainResult(closed=max(0, before - after), open=after)

    async def _wait_for_end(self) -> None:
        await self._supervisor.drained()
        self._report_end()

    def _report_end(self) -> None:
        if not self._ended:
            self._ended = True
            self._events.publish({"event": "drain_ended", "connections": self._listeners.connections()})
