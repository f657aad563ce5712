"""A change in every processor or in none: prepare and commit over the links, one change at a time.

    prepare     each processor answers that it is prepared. If one refuses, or the call is cancelled, the change is aborted in all
    decide      control's own state is changed; from here on the change is completed
    commit      each processor confirms. The next change waits for that, even if the call ends before

Each answer is awaited for at most ``PATIENCE_S``. A processor whose heartbeat stops is killed after 10 s, and its successor starts with control's
state. Messages on a link stay in order, so an abort needs no answer.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from framegate.control.errors import AbortedError, UnavailableError
from framegate.control.fleet.processor import Processor
from framegate.control.logs import RowLog
from framegate.proxy.server.messages import Change, ErrorReply, PlainCommand, RefusedReply
from framegate.proxy.server.protocol import commit_request, prepare_request

PATIENCE_S: Final = 30.0
"""The time limit of one answer, longer than a heartbeat may stand: a process that runs and does not answer must not block other changes."""


class TwoPhases:
    """One change at a time; see the module."""

    def __init__(self, log: RowLog) -> None:
        self._log = log
        self._lock = asyncio.Lock()
        self._ending: set[asyncio.Task[None]] = set()

    async def make(self, plan: Callable[[], dict[Processor, Change]], decide: Callable[[], None], done: Callable[[], None] = lambda: None) -> None:
        """Make a change, and return when it is in force.

        Args:
            plan: returns the change for each processor; raises if it is not allowed.
            decide: called when all are prepared.
            done: called when all have it, before the next change begins.

        Raises AbortedError: a processor refused, or did not answer; none has the change; UnavailableError: it is decided, and a running processor has
        not confirmed it (CHANGE_PENDING); it will have it before any other.
        """
        await self._lock.acquire()
        try:
            numbers = await self._prepare(plan())
            try:
                decide()
            except BaseException:
                _abort(numbers)
                raise
        except BaseException:
            self._lock.release()
            raise
        ending = asyncio.create_task(self._commit(numbers, done))
        self._ending.add(ending)
        ending.add_done_callback(self._end)
        await asyncio.shield(ending)

    def _end(self, ending: asyncio.Task[None]) -> None:
        self._ending.discard(ending)
        self._lock.release()
        if not ending.cancelled():
            ending.exception()  # the caller gets it, if it still waits

    async def _prepare(self, changes: dict[Processor, Change]) -> dict[Processor, int]:
        numbers = {processor: processor.link.next_id() for processor in changes}
        answers = [asyncio.ensure_future(_prepare_one(processor, numbers[processor], change)) for processor, change in changes.items()]
        try:
            await asyncio.gather(*answers)
        except BaseException:
            for answer in answers:
                answer.cancel()
            _abort(numbers)
            raise
        return numbers

    async def _commit(self, numbers: dict[Processor, int], done: Callable[[], None]) -> None:
        confirmed = await asyncio.gather(*(self._commit_one(processor, number) for processor, number in numbers.items()))
        done()
        silent = [processor.slot for processor, heard in zip(numbers, confirmed, strict=True) if not heard]
        if silent:
            text = f"the change is decided, but processor {silent[0]} has not confirmed it within {PATIENCE_S:g} s"
            raise UnavailableError(text, reason="CHANGE_PENDING", processors=",".join(map(str, silent)))

    async def _commit_one(self, processor: Processor, number: int) -> bool:
        """Whether the processor has the change or has ended. One that refuses after the decision is killed, and its successor has the change."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                answer = await processor.link.ask(commit_request(), number)
        except TimeoutError:
            self._log_unconfirmed(processor, f"it has not answered within {PATIENCE_S:g} s")
            return False
        except UnavailableError:
            self._log_unconfirmed(processor, "it ended; its successor starts with the change", level="info")
            return True
        if answer["type"] == "refused" or answer["type"] == "error":
            self._log_unconfirmed(processor, f"it says {_reason(answer)}; it is replaced")
            processor.kill("commit")
        return True

    def _log_unconfirmed(self, processor: Processor, reason: str, level: str = "warning") -> None:
        self._log.write("change_unconfirmed", level=level, slot=processor.slot, pid=processor.pid, reason=reason)


def _abort(numbers: dict[Processor, int]) -> None:
    for processor, number in numbers.items():
        processor.link.post(PlainCommand(type="abort", id=number))


async def _prepare_one(processor: Processor, number: int, change: Change) -> None:
    """Return when the processor is prepared or has ended: its successor starts with control's state."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            answer = await processor.link.ask(prepare_request(change), number)
    except TimeoutError as error:
        text = f"no processor has the change: processor {processor.slot} did not answer within {PATIENCE_S:g} s"
        raise AbortedError(text, reason="PROCESSOR_SILENT", slot=str(processor.slot)) from error
    except UnavailableError:
        return
    if answer["type"] == "refused" or answer["type"] == "error":
        text = f"no processor has the change: processor {processor.slot}: {_reason(answer)}"
        raise AbortedError(text, reason="CHANGE_REFUSED", slot=str(processor.slot))


def _reason(answer: RefusedReply | ErrorReply) -> str:
    return answer["error"] if answer["type"] == "error" else answer["reason"]
