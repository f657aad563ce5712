"""Changes that are completed or taken back even if their call is cancelled (Ctrl-C, a deadline).

The call ends at once. The transaction is taken back if it is not decided yet; otherwise it goes on to its end. The row ``change_settled`` says how a
transaction ended whose call was cancelled.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from framegate.control.errors import ControlError, InvalidArgumentError
from framegate.control.events import Bus, Row
from framegate.control.meters import Meters

__all__ = ["Transaction", "Transactions"]

T = TypeVar("T")


class Transaction:
    """One change. Attributes: ``decided``: it will be completed, even if its call ends."""

    def __init__(self) -> None:
        self.decided = False

    def decide(self) -> None:
        """Complete it from here on, even if its call ends."""
        self.decided = True


class Transactions:
    """Runs each in a task of its own. Event loop only."""

    def __init__(self, events: Bus, meters: Meters) -> None:
        self._events = events
        self._meters = meters
        self._running: dict[asyncio.Task[Any], Transaction] = {}

    async def change(self, name: str, work: Callable[[Transaction], Awaitable[T]]) -> T:
        """As ``run``, for a change of the configuration in force; it is counted by its result (``framegate.config.changes``)."""

        async def counted(transaction: Transaction) -> T:
            try:
                result = await work(transaction)
            except InvalidArgumentError:
                self._meters.add("config.changes", "invalid")
                raise
            except (ControlError, asyncio.CancelledError):
                self._meters.add("config.changes", "refused")
                raise
            self._meters.add("config.changes", "")
            return result

        return await self.run(name, counted)

    async def run(self, name: str, work: Callable[[Transaction], Coroutine[Any, Any, T]]) -> T:
        """Run ``work`` until it is completed or taken back, and return or raise its result.

        Args:
            name: for the row.
            work: takes back what it did when it is cancelled, which happens at most once, and never after it called ``decide``.
        """
        transaction = Transaction()
        task = asyncio.create_task(work(transaction))
        self._running[task] = transaction
        task.add_done_callback(self._running.pop)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.done():
                task.add_done_callback(lambda done: self._settled(name, done))
                if not transaction.decided:
                    task.cancel()
            raise

    def _settled(self, name: str, task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        row: Row = {"event": "change_settled", "change": name, "result": "taken back" if task.cancelled() else "failed" if error else "made"}
        if error is not None:
            row["error"] = repr(error)
        level = "info" if error is None else "warning" if isinstance(error, ControlError) else "error"
        self._events.publish({**row, "reason": "its call had ended"}, level=level)

    def close(self) -> None:
        """Take back what is not decided."""
        for task, transaction in list(self._running.items()):
            if not transaction.decided:
                task.cancel()
