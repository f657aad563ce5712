"""The channels of all processors: listed in pages, described, muted and closed; and those that hold most memory.

A change in one processor does not depend on the others. If some do not answer, the error says which, and for how many channels it is in force.
"""

import asyncio
import heapq
from collections.abc import Sequence
from typing import Final, Literal

from framegate.control.bounds import MAX_HOLDERS, rows_per_page
from framegate.control.configuration.units import counted
from framegate.control.errors import InvalidArgumentError, NotFoundError, UnavailableError, Violation
from framegate.control.fleet.processor import REQUEST_MS, Processor, Slot
from framegate.control.fleet.supervisor import Supervisor
from framegate.control.status import Holder, Outcome
from framegate.control.steering.listeners import find_listener
from framegate.control.steering.transactions import Transaction, Transactions
from framegate.proxy.network.connection_id import format_connection_id, slot_of
from framegate.proxy.server.messages import BulkCommand, BulkReply
from framegate.proxy.server.protocol import bulk_request, describe_request, holders_request, list_request
from framegate.proxy.server.rows import HolderRow, OpenRow

__all__ = ["Channels"]

Verb = Literal["mute", "unmute", "close"]
LINK_ROWS: Final = 100
"""Rows in one answer: under 1 ms of work in the processor, and here. A page may need several answers."""


class Channels:
    """Asks the processors about channels, and changes them."""

    def __init__(self, supervisor: Supervisor, transactions: Transactions) -> None:
        self._supervisor = supervisor
        self._transactions = transactions

    # --- reads -------------------------------------------------------------------------------------------------------------------

    async def page(self, listener: str | None = None, page_size: int = 0, page_token: str = "") -> tuple[list[OpenRow], str]:
        """One page of pairs in a stable order, and the token of the next page (empty: that was the last).

        Args:
            listener: only those of this listener.
            page_size: at most so many rows, as ``rows_per_page`` takes it.
            page_token: of the page before; empty for the first.

        Raises:
            NotFoundError: no such listener. InvalidArgumentError: a bad page size or token. UnavailableError: a processor does not answer.
        """
        if listener is not None:
            find_listener(self._supervisor.desired.config, listener)
        size = rows_per_page(page_size)
        slot, after = _page_position(page_token)
        rows: list[OpenRow] = []
        processors = [processor for processor in self._supervisor.running if processor.slot >= slot]
        for index, processor in enumerate(processors):
            start = after if processor.slot == slot else 0
            while len(rows) < size:
                request = list_request(after=start, limit=min(size - len(rows), LINK_ROWS), listener=listener)
                answer = await processor.request(request, REQUEST_MS)
                rows += answer["rows"]
                start = answer["next"]
                if not start:
                    break
            if start:
                return rows, f"{processor.slot}:{start}"
            if len(rows) >= size and index + 1 < len(processors):
                return rows, f"{processors[index + 1].slot}:0"
        return rows, ""

    async def describe(self, channel: int) -> OpenRow:
        """The row of one pair. Raises NotFoundError."""
        processor = self._processor_of(channel)
        if processor is not None:
            row = (await processor.request(describe_request(channel), REQUEST_MS))["row"]
            if row is not None:
                return row
        raise NotFoundError("channel", format_connection_id(channel))

    async def top_holders(self, count: int) -> list[Holder]:
        """The channels that hold most of the memory pool, largest first, at most ``count`` (1 to ``MAX_HOLDERS``).

        Raises:
            InvalidArgumentError: the count is out of range. UnavailableError: a processor does not answer.
        """
        if not 1 <= count <= MAX_HOLDERS:
            raise InvalidArgumentError([Violation("count", f"must be from 1 to {MAX_HOLDERS}, not {count}")])
        answers = await asyncio.gather(*(_held(processor, count) for processor in self._supervisor.running))
        rows = [row for answer in answers for row in answer]
        return [_holder(row) for row in heapq.nlargest(count, rows, key=lambda row: row["bytes"])]

    def _processor_of(self, channel: int) -> Processor | None:
        return next((item for item in self._supervisor.running if item.slot == slot_of(channel)), None)

    # --- changes -----------------------------------------------------------------------------------------------------------------

    async def act(
        self, verb: Verb, channels: Sequence[int] = (), listener: str | None = None, reason: str = "", principal: str | None = None
    ) -> Outcome:
        """Mute, unmute or close pairs: named by id, or all of a listener or of a principal.

        A mute returns when no further header will be read; a close has the cause ``admin``.

        Raises:
            NotFoundError: the only named channel, or the listener, does not exist. InvalidArgumentError: not exactly one of the three is given.
            UnavailableError: processors do not answer; its metadata say which, and for how many channels of the others the change is in force.
        """
        if bool(channels) + (listener is not None) + (principal is not None) != 1:
            raise InvalidArgumentError([Violation("channels", "name channels, a listener or a principal, and one of these only")])
        if listener is not None:
            find_listener(self._supervisor.desired.config, listener)
        if not channels:
            command = BulkCommand(type=verb, listener=listener, principal=principal, reason=reason)
            messages = [(processor, command) for processor in self._supervisor.running]
            missing: list[int] = []
        else:
            messages, missing = self._by_processor(verb, channels, reason)
        outcome = await self._transactions.run(verb, lambda transaction: self._ask(transaction, verb, messages, missing))
        if len(channels) == 1 and outcome.missing:
            raise NotFoundError("channel", format_connection_id(outcome.missing[0]))
        return outcome

    async def _ask(self, transaction: Transaction, verb: str, messages: list[tuple[Processor, BulkCommand]], missing: list[int]) -> Outcome:
        """Ask each processor, and wait for all answers."""
        transaction.decide()
        answers = await asyncio.gather(*(_answer(processor, message) for processor, message in messages))
        failures = [answer for answer in answers if isinstance(answer, UnavailableError)]
        told = [answer for answer in answers if not isinstance(answer, UnavailableError)]
        affected = [item for answer in told for item in answer["affected"]]
        missing = missing + [item for answer in told for item in answer["missing"]]
        undone = [item for answer in told for item in answer["undone"]]
        if failures:
            silent = all(error.reason == "PROCESSOR_SILENT" for error in failures)
            slots = [self._supervisor.slots[int(error.metadata["processor"])] for error in failures]
            pending = verb == "mute" and silent and all(map(_reads_commands, slots))
            raise _unanswered(verb, failures, affected, missing, pending=pending)
        if undone:
            done = f"{verb} is in force for {counted(len(affected), 'channel')}"
            text = f"{done}, and not for {len(undone)}: {', '.join(map(format_connection_id, undone[:3]))}"
            metadata = {"affected_count": str(len(affected)), "missing_count": str(len(missing)), "undone_count": str(len(undone))}
            raise UnavailableError(text, reason="PARTLY_DONE", **metadata)
        return Outcome(affected=tuple(affected), missing=tuple(missing))

    def _by_processor(self, verb: Verb, channels: Sequence[int], reason: str) -> tuple[list[tuple[Processor, BulkCommand]], list[int]]:
        groups: dict[Processor, list[int]] = {}
        missing: list[int] = []
        for channel in dict.fromkeys(channels):
            processor = self._processor_of(channel)
            if processor is None:
                missing.append(channel)
            else:
                groups.setdefault(processor, []).append(channel)
        return [(processor, BulkCommand(type=verb, connections=ids, reason=reason)) for processor, ids in groups.items()], missing


async def _held(processor: Processor, count: int) -> list[HolderRow]:
    """The channels that hold most in one processor; none if it has ended."""
    try:
        return (await processor.request(holders_request(count), REQUEST_MS))["rows"]
    except UnavailableError as error:
        if error.reason != "PROCESSOR_GONE":
            raise
        return []


def _holder(row: HolderRow) -> Holder:
    return Holder(
        channel=row["id"],
        listener=row["listener"],
        side=row["side"],
        peer=row["peer"],
        kind=row["kind"],
        bytes=row["bytes"],
        muted=tuple(row["muted"]),
        muted_ns=row["muted_ns"],
        last_active_ns=row["last_active_ns"],
    )


async def _answer(processor: Processor, command: BulkCommand) -> BulkReply | UnavailableError:
    """The answer of a processor, or the error. If it has ended, its channels have ended, too: those named are missing."""
    try:
        return await processor.request(bulk_request(command), REQUEST_MS)
    except UnavailableError as error:
        if error.reason == "PROCESSOR_GONE":
            return BulkReply(type="result", id=0, affected=[], missing=command.get("connections", []), undone=[])
        error.metadata["processor"] = str(processor.slot)
        return error


def _reads_commands(slot: Slot) -> bool:
    """Whether its processor must have read a command of ``REQUEST_MS`` ago: it reads commands as often as its heartbeat moves, every 50 ms."""
    return 0 <= slot.heartbeat_age_ms() < REQUEST_MS // 2


def _unanswered(verb: str, failures: list[UnavailableError], affected: list[int], missing: list[int], *, pending: bool) -> UnavailableError:
    """The error when some processors did not answer in time; ``pending``: they have read the command."""
    slots = ",".join(error.metadata["processor"] for error in failures)
    metadata = {"processors": slots, "affected_count": str(len(affected)), "missing_count": str(len(missing))}
    done = f"{verb} is in force for {counted(len(affected), 'channel')}"
    if pending:
        text = f"{done}; in processor {slots} it is set, but not in force within {REQUEST_MS} ms: a frame begun has not ended; see muting"
        return UnavailableError(text, reason="MUTE_PENDING", **metadata)
    return UnavailableError(f"{done}; of processor {slots} it is not known: {failures[0]}", reason=failures[0].reason, **metadata)


def _page_position(page_token: str) -> tuple[int, int]:
    if not page_token:
        return 0, 0
    slot, _, after = page_token.partition(":")
    if not (slot.isascii() and slot.isdigit() and after.isascii() and after.isdigit()):
        raise InvalidArgumentError([Violation("page_token", "is not one that a page gave")])
    return int(slot), int(after)
