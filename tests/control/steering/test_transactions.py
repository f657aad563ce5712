import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest

from framegate.control.errors import AbortedError, InvalidArgumentError, NotFoundError
from framegate.control.events import Bus
from framegate.control.meters import Meters
from framegate.control.steering.transactions import Transaction, Transactions
from tests.fakes.fleet import MemoryLog
from tests.fakes.scenario import run_by


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


async def hang(begun: asyncio.Event) -> None:
    """Go on until it is cancelled."""
    begun.set()
    await asyncio.Event().wait()


@run_by(run)
async def test_the_result_of_the_work_is_that_of_the_call(transactions: Transactions, log: MemoryLog) -> None:
    async def seven(transaction: Transaction) -> int:
        return 7

    async def refused(transaction: Transaction) -> int:
        raise AbortedError("no", reason="CHANGE_REFUSED")

    assert await transactions.run("x", seven) == 7
    with pytest.raises(AbortedError, match="no"):
        await transactions.run("x", refused)
    assert log.rows == []


def test_changes_are_counted_by_their_result() -> None:
    async def scenario() -> None:
        meters, begun = Meters(), asyncio.Event()
        transactions = Transactions(Bus((), on_failure=pytest.fail), meters)

        async def work(error: Exception | None) -> None:
            if error is not None:
                raise error

        for error in (None, InvalidArgumentError([]), NotFoundError("listener", "a"), AbortedError("no", reason="R")):
            with contextlib.nullcontext() if error is None else pytest.raises(type(error)):
                await transactions.change("x", lambda transaction, error=error: work(error))
        await cancelled(transactions.change("x", lambda transaction: hang(begun)), begun)
        await asyncio.sleep(0.001)
        assert [meters.value("config.changes", result) for result in ("", "invalid", "refused")] == [1, 1, 3]

    asyncio.run(scenario())


@run_by(run)
async def test_cancelled_before_its_decision_it_is_taken_back(transactions: Transactions, log: MemoryLog) -> None:
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


@pytest.mark.parametrize(("error", "result"), [(None, "made"), (AbortedError("no", reason="X"), "failed"), (ValueError("no"), "failed")])
@run_by(run)
async def test_cancelled_after_its_decision_it_goes_on_and_the_call_has_its_result(
    transactions: Transactions, log: MemoryLog, *, error: Exception | None, result: str
) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def work(transaction: Transaction) -> int:
        transaction.decide()
        begun.set()
        await go_on.wait()
        if error is not None:
            raise error
        return 7

    task = asyncio.ensure_future(transactions.run("drain", work))
    await begun.wait()
    task.cancel()
    await asyncio.sleep(0)
    transactions.close()
    await asyncio.sleep(0)
    assert (task.done(), log.rows) == (False, [])
    go_on.set()
    with contextlib.nullcontext() if error is None else pytest.raises(type(error)):
        assert await task == 7
    assert [(row["change"], row["result"]) for row in log.rows] == [("drain", result)]


@run_by(run)
async def test_the_end_takes_back_what_is_not_decided(transactions: Transactions, log: MemoryLog) -> None:
    begun = asyncio.Event()
    task = asyncio.ensure_future(transactions.run("x", lambda transaction: hang(begun)))
    await begun.wait()
    transactions.close()
    with pytest.raises(asyncio.CancelledError):
        await task
