import asyncio
from collections.abc import Awaitable, Callable

import pytest

from framegate.control.errors import AbortedError
from framegate.control.events import Bus
from framegate.control.meters import Meters
from framegate.control.steering.transactions import Transaction, Transactions
from tests.fakes.fleet import MemoryLog


def run(scenario: Callable[[Transactions, MemoryLog], Awaitable[None]]) -> None:
    async def main() -> None:
        log = MemoryLog()
        await asyncio.wait_for(scenario(Transactions(Bus((log,), on_failure=lambda error: None), Meters()), log), 5)

    asyncio.run(main())


async def cancelled(call: Awaitable[object], when: asyncio.Event) -> None:
    task = asyncio.ensure_future(call)
    await when.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_what_it_returns_or_raises_is_the_calls_result() -> None:
    async def scenario(transactions: Transactions, log: MemoryLog) -> None:
        async def seven(transaction: Transaction) -> int:
            return 7

        async def refused(transaction: Transaction) -> int:
            raise AbortedError("no", reason="CHANGE_REFUSED")

        assert await transactions.run("x", seven) == 7
        with pytest.raises(AbortedError, match="no"):
            await transactions.run("x", refused)
        assert log.rows == []

    run(scenario)


def test_cancelled_before_its_decision_it_is_taken_back() -> None:
    async def scenario(transactions: Transactions, log: MemoryLog) -> None:
        begun, undone = asyncio.Event(), asyncio.Event()

        async def work(transaction: Transaction) -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                undone.set()

        await cancelled(transactions.run("limit of a", work), begun)
        await undone.wait()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert [(row["event"], row["change"], row["result"]) for row in log.rows] == [("change_settled", "limit of a", "taken back")]

    run(scenario)


@pytest.mark.parametrize(("error", "result"), [(None, "made"), (AbortedError("no", reason="X"), "failed"), (ValueError("no"), "failed")])
def test_cancelled_after_its_decision_it_goes_on_and_how_it_ended_is_told(error: Exception | None, result: str) -> None:
    async def scenario(transactions: Transactions, log: MemoryLog) -> None:
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def work(transaction: Transaction) -> None:
            transaction.decide()
            begun.set()
            await go_on.wait()
            if error is not None:
                raise error

        await cancelled(transactions.run("drain", work), begun)
        assert log.rows == []
        transactions.close()
        go_on.set()
        while not log.rows:
            await asyncio.sleep(0)
        assert [(row["change"], row["result"]) for row in log.rows] == [("drain", result)]

    run(scenario)


def test_the_end_takes_back_what_is_not_decided() -> None:
    async def scenario(transactions: Transactions, log: MemoryLog) -> None:
        begun = asyncio.Event()

        async def work(transaction: Transaction) -> None:
            begun.set()
            await asyncio.Event().wait()

        task = asyncio.ensure_future(transactions.run("x", work))
        await begun.wait()
        transactions.close()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(scenario)
