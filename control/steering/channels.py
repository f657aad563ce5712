"""The channels of all processors: listed in pages, described, muted, closed and throttled; and those that hold most memory.

A change in one processor does not depend on the others. If some do not answer, the error says which, and for how many channels it is in force.

An action that has a time, or stands for new connections, is kept here under a number. A standing one is part of the desired state, so it is put in
force in every processor or in none, before the open channels that match are changed; a processor that starts has it before its first connection.
One that does not stand is forgotten when none of its channels is left: they are closed, or a later action took its place.
"""

import asyncio
import dataclasses
import heapq
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, cast

from framegate.control.bounds import MAX_HOLDERS, rows_per_page
from framegate.control.configuration.units import counted
from framegate.control.errors import AbortedError, FailedPreconditionError, InvalidArgumentError, NotFoundError, UnavailableError, Violation
from framegate.control.fleet.desired_state import DesiredState
from framegate.control.fleet.processor import REQUEST_MS, Processor, Slot
from framegate.control.fleet.supervisor import Supervisor
from framegate.control.status import ChannelAction, ChannelVerb, Holder, Outcome
from framegate.control.steering.filter import STANDING, Counts, Filter, Look, Order, counts_of, rates_between
from framegate.control.steering.transactions import Changed, Transaction, Transactions
from framegate.proxy.network.connection_id import format_connection_id, slot_of
from framegate.proxy.server.messages import BulkCommand, BulkReply, Change
from framegate.proxy.server.protocol import bulk_request, describe_request, holders_request, list_request
from framegate.proxy.server.rows import ConditionRow, HolderRow, OpenRow, StandingRow

LINK_ROWS: Final = 100  # Rows in one answer: under 1 ms of work in the processor, and here. A page may need several answers.
LINK_IDS: Final = 1_000  # Ids in one command
MAX_SCANNED: Final = 10_000  # Pairs that are looked at for one page
MAX_SURVEYS: Final = 4  # Calls at once that look at all pairs; each remembers five numbers of a pair while it measures rates
MAX_ACTIONS: Final = 100  # Actions that are kept
SETTLED_NS: Final = 1_000_000_000  # after this time control has booked each connection of which a processor has sent a row
WINDOW_MS: Final = 500  # for how long rates are measured that a filter or an order asks for
NS_PER_MS: Final = 1_000_000
EXPIRY_S: Final = 0.5  # how often ``expire`` is called
EXPIRY_LIMIT_S: Final = 60.0
ALL: Final = Filter()
NO_CHANNEL: Final = "no_channel"
_UNDOES: Final[Mapping[ChannelVerb, ChannelVerb]] = {"unmute": "mute"}
_Seen = dict[int, tuple[int, Counts]]  # by id: when a pair was seen first, and its counters then


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How pairs are changed."""

    reason: str = ""  # one line
    max_affected: int = 100  # if more pairs are chosen, nothing is changed
    ttl_ms: int = 0  # after this time the change is undone; 0: it stays
    standing: bool = False  # new connections that match are changed, too
    validate_only: bool = False  # change nothing
    # request_rate, response_rate: of ``throttle``: bytes per second of each pair; 0: no limit
    request_rate: int = 0
    response_rate: int = 0


TERMS: Final = Terms()


class Channels:
    """Asks the processors about channels, and changes them. ``now_ns``: the time since 1970, for actions that expire."""

    def __init__(self, supervisor: Supervisor, transactions: Transactions, now_ns: Callable[[], int] = time.time_ns) -> None:
        self._supervisor = supervisor
        self._transactions = transactions
        self._now_ns = now_ns
        self._kept: dict[int, ChannelAction] = {}
        self._members: dict[int, set[int]] = {}  # of the kept actions that do not stand: their channels
        self._last = 0
        self._surveys = asyncio.Semaphore(MAX_SURVEYS)

    # --- reads -------------------------------------------------------------------------------------------------------------------

    async def _rows(self, listener: str | None, slot: int, after: int, limit: int) -> tuple[list[OpenRow], str]:
        """Up to ``limit`` rows from a position on, in the order of ids, and the token of the next position; empty: that was the last."""
        rows: list[OpenRow] = []
        processors = [processor for processor in self._supervisor.running if processor.slot >= slot]
        for index, processor in enumerate(processors):
            start = after if processor.slot == slot else 0
            while len(rows) < limit:
                request = list_request(after=start, limit=min(limit - len(rows), LINK_ROWS), listener=listener)
                answer = await processor.request(request, REQUEST_MS)
                rows += answer["rows"]
                start = answer["next"]
                if not start:
                    break
            if start:
                return rows, f"{processor.slot}:{start}"
            if len(rows) >= limit and index + 1 < len(processors):
                return rows, f"{processors[index + 1].slot}:0"
        return rows, ""

    async def each(self, listener: str | None = None) -> AsyncIterator[list[OpenRow]]:
        """The rows of all pairs, or of those of a listener, a few at a time. Raises UnavailableError: a processor does not answer."""
        token = ":"
        while token:
            rows, token = await self._rows(listener, *_page_position(token), LINK_ROWS)
            yield rows

    async def page(self, chosen: Filter = ALL, page_size: int = 0, page_token: str = "", window_ms: int = 0) -> tuple[list[Look], str]:
        """One page of pairs, oldest first in each processor, and the token of the next page (empty: that was the last).

        Pairs that close between two pages do not shift the others. A page has fewer rows than asked for if few of ``MAX_SCANNED`` pairs match.

        Args:
            page_size: at most so many rows, as ``rows_per_page`` takes it.
            page_token: of the page before; empty for the first.
            window_ms: for how long rates are measured; 0: not at all.

        Raises InvalidArgumentError: a bad page size or token. UnavailableError: a processor does not answer.
        """
        size, token = rows_per_page(page_size), page_token or ":"
        window_ms = window_ms or WINDOW_MS * chosen.rated
        found: list[Look] = []
        scanned = 0
        first: _Seen = {}
        if window_ms:
            rows, _ = await self._rows(chosen.listener, *_page_position(token), MAX_SCANNED if chosen.comparisons else size)
            _note(first, rows)
            await asyncio.sleep(window_ms / 1000)
        while token and len(found) < size and scanned < MAX_SCANNED:
            rows, token = await self._rows(chosen.listener, *_page_position(token), LINK_ROWS if chosen.comparisons else size - len(found))
            scanned += len(rows)
            looks = [look for look in _looks(rows, first) if chosen.matches(look)]
            if len(looks) > size - len(found):
                del looks[size - len(found) :]
                last = looks[-1].row["id"]
                token = f"{slot_of(last)}:{last}"
            found += looks
        return found, token

    async def top(self, chosen: Filter, order: Order, size: int, window_ms: int = 0) -> tuple[list[Look], int]:
        """The first ``size`` pairs of all that match, in an order, and how many match. Arguments and errors as of ``page``."""
        found: list[Look] = []
        count = 0

        def take(looks: list[Look]) -> None:
            nonlocal count
            count += len(looks)
            found.extend(looks)
            if len(found) >= 2 * size + LINK_ROWS:
                found[:] = order.first(found, size)

        await self._all(chosen, take, window_ms if window_ms or not order.rated else WINDOW_MS)
        return order.first(found, size), count

    async def _all(self, chosen: Filter, take: Callable[[list[Look]], None], window_ms: int = 0) -> None:
        """Pass all pairs that match to ``take``, a few at a time."""
        first: _Seen = {}
        async with self._surveys:
            if window_ms or chosen.rated:
                async for rows in self.each(chosen.listener):
                    _note(first, rows)
                await asyncio.sleep((window_ms or WINDOW_MS) / 1000)
            async for rows in self.each(chosen.listener):
                take([look for look in _looks(rows, first) if chosen.matches(look)])

    async def describe(self, channel: int) -> OpenRow:
        """The row of one pair. Raises NotFoundError."""
        processor = self._processor_of(channel)
        if processor is not None:
            row = (await processor.request(describe_request(channel), REQUEST_MS))["row"]
            if row is not None:
                return row
        raise NotFoundError("channel", format_connection_id(channel))

    async def top_holders(self, count: int) -> list[Holder]:
        """The channels that hold most of the memory pool, largest first, at most ``count`` (1 to ``MAX_HOLDERS``). Raises InvalidArgumentError: the
        count is out of range. UnavailableError: a processor does not answer.
        """
        if not 1 <= count <= MAX_HOLDERS:
            raise InvalidArgumentError([Violation("count", f"must be from 1 to {MAX_HOLDERS}, not {count}")])
        answers = await asyncio.gather(*(_held(processor, count) for processor in self._supervisor.running))
        rows = [row for answer in answers for row in answer]
        return [_holder(row) for row in heapq.nlargest(count, rows, key=lambda row: row["bytes"])]

    def _processor_of(self, channel: int) -> Processor | None:
        return next((item for item in self._supervisor.running if item.slot == slot_of(channel)), None)

    # --- changes -----------------------------------------------------------------------------------------------------------------

    @property
    def actions(self) -> list[ChannelAction]:
        return list(self._kept.values())

    async def act(self, verb: ChannelVerb, channels: Sequence[int] | Filter, terms: Terms = TERMS) -> Outcome:
        """Mute, unmute, close or throttle pairs that are named by id, or all that match a filter.

        A mute returns when no further header will be read; a close has the cause ``admin``. A throttle without rates undoes another one. Of several
        mutes, or throttles, of one pair the last one counts.

        Raises NotFoundError: the only named pair does not exist. InvalidArgumentError: a standing action cannot have such a filter, or such terms;
        FailedPreconditionError: TOO_MANY_AFFECTED, TOO_MANY_ACTIONS; nothing is changed. AbortedError: as of any change in two phases;
        UnavailableError: processors do not answer; its metadata say which, and for how many pairs of the others the change is in force.
        """
        chosen = channels if isinstance(channels, Filter) else None
        _check(verb, chosen, terms)
        named = await self._find(channels)
        if len(named) > terms.max_affected:
            text = f"{counted(len(named), 'channel')} would be affected, and max_affected is {terms.max_affected}: nothing is changed"
            raise FailedPreconditionError(text, reason="TOO_MANY_AFFECTED", count=str(len(named)), max_affected=str(terms.max_affected))
        if terms.validate_only:
            present = {*named} if chosen is not None else {*named}.intersection(await self._find(ALL))
            return Outcome(affected=tuple(number for number in named if number in present), missing=tuple({*named} - present))
        keeps = terms.standing or terms.ttl_ms > 0
        if keeps:
            self._check_room()
        self._last += keeps
        now_ns = self._now_ns()
        action = ChannelAction(
            number=self._last if keeps else 0,
            verb=verb,
            filter="" if chosen is None else chosen.text,
            reason=terms.reason,
            request_rate=terms.request_rate,
            response_rate=terms.response_rate,
            standing=terms.standing,
            created_ns=now_ns,
            expires_ns=now_ns + terms.ttl_ms * NS_PER_MS if terms.ttl_ms else 0,
        )

        async def work(transaction: Transaction) -> Outcome:
            numbers, kept, pending = named, {action.number: action} if keeps else {}, None
            if chosen is not None and terms.standing:
                row = _standing_row(action, chosen)
                pending = await self._decide(transaction, self._stand(transaction, lambda rows: [*rows, row], lambda: self._kept.update(kept)))
                numbers = await self._find(chosen)
            self._kept.update(kept)
            if keeps and not terms.standing:
                self._members[action.number] = set(numbers)
            outcome = await self._ask(transaction, verb, *self._by_processor(action, numbers))
            self._replace(action, outcome)
            if pending is not None:
                pending.changed = Changed(None, outcome)
                raise pending
            missing = outcome.missing if chosen is None else ()
            return dataclasses.replace(outcome, missing=missing, action=self._kept.get(action.number))

        try:
            outcome = await self._transactions.run(verb, work)
        except UnavailableError as error:
            self._note_kept(error, action)
            raise
        if chosen is None and len(named) == 1 and outcome.missing:
            raise NotFoundError("channel", format_connection_id(outcome.missing[0]))
        return outcome

    @staticmethod
    async def _decide(transaction: Transaction, stand: Awaitable[None]) -> UnavailableError | None:
        """Await a change of the standing actions; the error if it is decided, but not confirmed everywhere."""
        try:
            await stand
        except UnavailableError as error:
            if transaction.decided:
                return error
            raise
        return None

    def _note_kept(self, error: UnavailableError, action: ChannelAction) -> None:
        """Add to the error of a change that its action is kept nevertheless."""
        if action.number in self._kept:
            outcome = Outcome(affected=(), missing=()) if error.changed is None else error.changed.after
            error.changed = Changed(None, dataclasses.replace(outcome, action=action))

    async def lift(self, number: int, reason: str = "deleted") -> ChannelAction:
        """Delete an action: undo it for all pairs to which it was the last one, and for new connections. Raises NotFoundError: no such action. Others
        as of ``act``; then it is kept.
        """
        action = self._kept.get(number)
        if action is None:
            raise NotFoundError("channel action", str(number))

        async def work(transaction: Transaction) -> None:
            if action.standing:
                await self._stand(transaction, lambda rows: [row for row in rows if row["number"] != number], lambda: None)
            if action.verb != "close":
                verb: ChannelVerb = "unmute" if action.verb == "mute" else "throttle"
                command = BulkCommand(type=verb, lifts=number)
                await self._ask(transaction, verb, [(processor, command) for processor in self._supervisor.running], [])
            self._end(action, reason)

        await self._transactions.run(f"delete of channel action {number}", work)
        return action

    def _end(self, action: ChannelAction, reason: str) -> None:
        self._members.pop(action.number, None)
        if self._kept.pop(action.number, None) is not None:
            row = {"event": "channel_action_ended", "action": action.number, "verb": action.verb, "filter": action.filter}
            self._transactions.publish({**row, "reason": reason})

    def _replace(self, action: ChannelAction, outcome: Outcome) -> None:
        """An action is in force, in place of others for the same channels; one that is in force for none is not kept."""
        verb = _UNDOES.get(action.verb, action.verb)
        for number, members in list(self._members.items()):
            if number == action.number:
                members.intersection_update(outcome.affected)
            elif self._kept[number].verb == verb:
                members.difference_update(outcome.affected, outcome.missing)
            if not members and number != action.number:
                self._end(self._kept[number], NO_CHANNEL)
        if self._members.get(action.number) == set():
            del self._members[action.number], self._kept[action.number]

    def _check_room(self) -> None:
        if len(self._kept) >= MAX_ACTIONS:
            self._forget_idle()
        if len(self._kept) >= MAX_ACTIONS:
            raise FailedPreconditionError(f"{MAX_ACTIONS} actions are kept already: delete some", reason="TOO_MANY_ACTIONS")

    def _forget_idle(self) -> None:
        """Forget the actions that do not stand and have no open channel any more."""
        if self._members:
            self._supervisor.connections.count_handed()
        before_ns = self._now_ns() - SETTLED_NS
        for number, members in list(self._members.items()):
            action = self._kept[number]
            if action.created_ns < before_ns and members.isdisjoint(self._open_numbers()):
                self._end(action, NO_CHANNEL)

    def _open_numbers(self) -> Iterator[int]:
        for processor in self._supervisor.running:
            yield from (given.number for given in processor.open.values() if given is not None)

    async def expire(self) -> None:
        """Delete the actions whose time is over, or whose channels have closed. One that cannot be undone now is tried again at the next call."""
        self._forget_idle()
        now_ns = self._now_ns()
        for action in self.actions:
            if 0 < action.expires_ns <= now_ns:
                try:
                    await self.lift(action.number, "expired")
                except (NotFoundError, AbortedError, UnavailableError):
                    continue

    async def _find(self, channels: Sequence[int] | Filter) -> list[int]:
        """The ids, each once."""
        if isinstance(channels, Filter):
            found: list[int] = []
            await self._all(channels, lambda looks: found.extend(look.row["id"] for look in looks))
            return found
        return list(dict.fromkeys(channels))

    async def _stand(self, transaction: Transaction, edit: Callable[[list[StandingRow]], list[StandingRow]], done: Callable[[], None]) -> None:
        """Change the standing actions in every processor or in none; ``done`` is called when that is decided."""

        def commit(desired: DesiredState) -> None:
            desired.standing = edit(desired.standing)
            done()

        desired = self._supervisor.desired
        await self._supervisor.change(lambda slot: Change(standing=edit(desired.standing)), commit, lambda: None, transaction.decide)

    async def _ask(self, transaction: Transaction, verb: str, messages: list[tuple[Processor, BulkCommand]], missing: list[int]) -> Outcome:
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
            raise _changed(_unanswered(verb, failures, affected, missing, pending=pending), affected, missing)
        if undone:
            done = f"{verb} is in force for {counted(len(affected), 'channel')}"
            text = f"{done}, and not for {len(undone)}: {', '.join(map(format_connection_id, undone[:3]))}"
            metadata = {"affected_count": str(len(affected)), "missing_count": str(len(missing)), "undone_count": str(len(undone))}
            raise _changed(UnavailableError(text, reason="PARTLY_DONE", **metadata), affected, missing)
        return Outcome(affected=tuple(affected), missing=tuple(missing))

    def _by_processor(self, action: ChannelAction, channels: Sequence[int]) -> tuple[list[tuple[Processor, BulkCommand]], list[int]]:
        """The commands, of at most ``LINK_IDS`` ids each; and the ids of no processor that runs."""
        groups: dict[Processor, list[int]] = {}
        missing: list[int] = []
        for channel in channels:
            processor = self._processor_of(channel)
            if processor is None:
                missing.append(channel)
            else:
                groups.setdefault(processor, []).append(channel)
        commands = [
            (processor, _command(action, ids[start : start + LINK_IDS]))
            for processor, ids in groups.items()
            for start in range(0, len(ids), LINK_IDS)
        ]
        return commands, missing


def _command(action: ChannelAction, ids: list[int]) -> BulkCommand:
    command = BulkCommand(type=action.verb, connections=ids, reason=action.reason)
    if action.number:
        command["action"] = action.number
    if action.verb == "throttle":
        command = BulkCommand(**command, request_rate=action.request_rate, response_rate=action.response_rate)
    return command


def _check(verb: ChannelVerb, chosen: Filter | None, terms: Terms) -> None:
    """Raise InvalidArgumentError if an action cannot have these terms."""
    faults = []
    if terms.standing and chosen is None:
        faults.append(Violation("standing", "needs a filter"))
    if terms.standing and chosen is not None:
        known = ", ".join(STANDING)
        faults += [
            Violation("filter", f"{item.name} is not known of a new connection: with standing, use {known}")
            for item in chosen.comparisons
            if item.name not in STANDING
        ]
    if terms.ttl_ms and verb == "close" and not terms.standing:
        faults.append(Violation("ttl", "needs standing: a channel is closed once"))
    if (terms.ttl_ms or terms.standing) and verb == "throttle" and not (terms.request_rate or terms.response_rate):
        faults.append(Violation("standing" if terms.standing else "ttl", "needs a rate"))
    if faults:
        raise InvalidArgumentError(faults)


def _standing_row(action: ChannelAction, chosen: Filter) -> StandingRow:
    return StandingRow(
        number=action.number,
        verb=cast(Literal["mute", "close", "throttle"], action.verb),
        reason=action.reason,
        request_rate=action.request_rate,
        response_rate=action.response_rate,
        conditions=[ConditionRow(field=cast(Any, item.name), value=item.value, negated=item.operator == "!=") for item in chosen.comparisons],
    )


def _note(first: _Seen, rows: Sequence[OpenRow]) -> None:
    now_ns = time.monotonic_ns()
    first.update((row["id"], (now_ns, counts_of(row))) for row in rows)


def _looks(rows: Sequence[OpenRow], first: _Seen) -> list[Look]:
    """Rows with their rates since they were seen first; None where they were not."""
    now_ns, monotonic_ns = time.time_ns(), time.monotonic_ns()
    looks = []
    for row in rows:
        then_ns, then = first.get(row["id"], (0, None))
        looks.append(Look(row, now_ns, None if then is None else rates_between(then, counts_of(row), monotonic_ns - then_ns)))
    return looks


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


def _changed(error: UnavailableError, affected: list[int], missing: list[int]) -> UnavailableError:
    """The error with what was done nevertheless."""
    if affected:
        error.changed = Changed(None, Outcome(affected=tuple(affected), missing=tuple(missing)))
    return error


def _page_position(page_token: str) -> tuple[int, int]:
    if page_token == ":":
        return 0, 0
    slot, _, after = page_token.partition(":")
    if not (slot.isascii() and slot.isdigit() and after.isascii() and after.isdigit()):
        raise InvalidArgumentError([Violation("page_token", "is not one that a page gave")])
    return int(slot), int(after)
