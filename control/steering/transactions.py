"""Changes that end decided, whoever waits for them: a call that is cancelled (Ctrl-C, a deadline) ends at once, what it began does not.

Up to its decision a transaction is taken back when its call ends, afterwards it goes on to its end. How one ended that nobody waited for any
more is in the row ``change_settled``.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from framegate.control.errors import ControlError
from framegate.control.events import Bus, Row

__all__ = ["Transaction", "Transactions"]

T = TypeVar("T")


class Transaction:
    """One of them. Attributes: ``decided``, past the point of no return."""

    def __init__(self) -> None:
        self.decided = False

    def decide(self) -> None:
        """From here on it goes to its end, even if its call does not."""
        self.decided = True


class Transactions:
    """Runs each as a task of its own. Event loop only."""

    def __init__(self, events: Bus) -> None:
        self._events = events
        self._running: dict[asyncio.Task[Any], Transaction] = {}

    async def run(self, name: str, work: Callable[[Transaction], Awaitable[T]]) -> T:
        """Do ``work`` to a decided end, and return or raise what it does.

        Args:
            name: for the row.
            work: takes back what it did when it is cancelled, which happens at most once, and never after it called ``decide``.
        """
        transaction = Transaction()
        task = asyncio.ensure_future(_begin(work, transaction))
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
        if error is None:
            row: Row = {"event": "change_settled", "change": name, "result": "taken back" if task.cancelled() else "made"}
            self._events.publish({**row, "reason": "its call had ended"})
        else:
            level = "warning" if isinstance(error, ControlError) else "error"
            row = {"event": "change_settled", "change": name, "result": "failed", "error": repr(error), "reason": "its call had ended"}
            self._events.publish(row, level=level)

    def close(self) -> None:
        """Take back what is not decided."""
        for task, transaction in list(self._running.items()):
            if not transaction.decided:
                task.cancel()


async def _begin(work: Callable[[Transaction], Awaitable[T]], transaction: Transaction) -> T:
    return await work(transaction)
