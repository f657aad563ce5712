"""Commands on many pairs, done in slices: the loop calls ``step`` of a job as long as there is time, and sends its reply at the end."""

import abc
import bisect
import heapq
import itertools
import operator
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from framegate.proxy.cause import Cause
from framegate.proxy.cells import MEMORY_KINDS
from framegate.proxy.errors import shown
from framegate.proxy.network import mute
from framegate.proxy.network.channel import Channel
from framegate.proxy.relay import administration, ending
from framegate.proxy.relay.pair import Leg, Pair
from framegate.proxy.relay.relay import Relay
from framegate.proxy.relay.route import Route
from framegate.proxy.relay.state import PairState
from framegate.proxy.server import messages
from framegate.proxy.server.pair_rows import access_line, holder_row, is_due, last_active_ns, open_row
from framegate.proxy.server.rows import ClientRow, HolderRow, OpenRow
from framegate.proxy.server.settings import ChangeError, Follow, Settings

STEP: Final = 8  # pairs between two looks at the clock
MAX_ROWS: Final = 10_000
MAX_HOLDERS: Final = 100
MAX_EVICTED: Final = 10_000
PIECES: Final = 4  # of a change, of less than a millisecond each
_DONE: Final = object()


class Job(abc.ABC):
    """Work on many pairs, in the order of their ids. ``ids``: of the pairs to visit; None: of all that are open at the first step. ``after``: if
    ``ids`` is None, only greater ids are visited.
    """

    def __init__(self, command_id: int, relay: Relay, ids: Iterable[int] | None = None, after: int = 0) -> None:
        self.id: Final = command_id
        self._relay: Final = relay
        self._pairs: Final = relay.pairs.open
        self._wall_offset_ns: Final = int(relay.pairs.wall_offset_ns)
        self._left: deque[int] | None = None if ids is None else deque(ids)
        self._after: Final = after

    def step(self) -> bool:
        """Visit some pairs; True when all is done."""
        left = self._left
        if left is None:
            ids = list(self._pairs)
            left = self._left = deque(ids[bisect.bisect_right(ids, self._after) :])
        for _ in range(STEP):
            if not left or self._is_full():
                return True
            number = left.popleft()
            self._visit(number, self._pairs.get(number))
        return False

    def _is_full(self) -> bool:
        """Whether no further pair is to be visited."""
        return False

    @abc.abstractmethod
    def _visit(self, number: int, pair: Pair | None) -> None:
        """Do the work on the pair with that id; None: it is closed, or there never was one."""

    @abc.abstractmethod
    def result(self) -> messages.Reply:
        """The answer when all is done."""

    def cut(self) -> messages.Reply:
        """The answer when there will be no more steps."""
        return messages.ErrorReply(type="error", id=self.id, error="the processor ends")


class ListJob(Job):
    """One page of rows, in the order of ids."""

    def __init__(self, message: messages.ListCommand, relay: Relay) -> None:
        super().__init__(message["id"], relay, after=message.get("after", 0))
        self._listener = message.get("listener")
        self._limit = min(message.get("limit") or MAX_ROWS, MAX_ROWS)
        self._rows: list[OpenRow] = []

    def _is_full(self) -> bool:
        return len(self._rows) >= self._limit

    def _visit(self, number: int, pair: Pair | None) -> None:
        if pair is not None and self._listener in (None, pair.route.listener):
            self._rows.append(open_row(pair, self._wall_offset_ns))

    def result(self) -> messages.Reply:
        return messages.ListReply(type="result", id=self.id, rows=self._rows, next=self._rows[-1]["id"] if self._left and self._rows else 0)


class AccessJob(Job):
    """Rows of pairs that have been open for long: those whose time has come (``AccessCommand``)."""

    def __init__(self, message: messages.AccessCommand, relay: Relay, report: Callable[[list[str]], None]) -> None:
        super().__init__(message["id"], relay, after=message["after"])
        if message["every_ms"] < 1 or message["limit"] < 1:
            raise ValueError(f"up to {message['limit']} rows, each {message['every_ms']} ms")
        self._limit = min(message["limit"], MAX_ROWS)
        self._every_ns = message["every_ms"] * 1_000_000
        self._since_ns = message["since_ns"]
        self._until_ns = message["until_ns"]
        self._report = report
        self._visited = 0  # the last id
        self._lines: list[tuple[int, str]] = []

    def _is_full(self) -> bool:
        return len(self._lines) >= self._limit

    def _visit(self, number: int, pair: Pair | None) -> None:
        self._visited = number
        if pair is not None and is_due(int(pair.opened_ns), number, self._every_ns, self._since_ns, self._until_ns):
            self._lines.append((number, access_line(pair, self._wall_offset_ns)))

    def result(self) -> messages.Reply:
        """A pair that has closed since it was visited has, or will have, a closed row: no row is sent after that."""
        lines = [line for number, line in self._lines if number in self._pairs]
        if lines:
            self._report(lines)
        return messages.AccessReply(type="result", id=self.id, next=self._visited if self._left else 0)


class HoldersJob(Job):
    """Which channels hold most of the memory pool: each counts once for each kind of memory, as it is when its pair is visited."""

    def __init__(self, message: messages.HoldersCommand, relay: Relay) -> None:
        super().__init__(message["id"], relay)
        self._limit = message["limit"]
        if not 1 <= self._limit <= MAX_HOLDERS:
            raise ValueError(f"a limit of {self._limit} holders")
        self._order = itertools.count(0, -1)  # of two that hold the same, the older pair comes first
        self._most: list[tuple[int, int, HolderRow]] = []  # a heap: the one that holds least is first

    def _visit(self, number: int, pair: Pair | None) -> None:
        if pair is not None:
            self._add_channel(pair, pair.client)
            self._add_channel(pair, pair.upstream)

    def _add_channel(self, pair: Pair, leg: Leg) -> None:
        channel = leg.channel
        if channel is None:
            return
        writes = channel.write_half
        begun, pending, tls = MEMORY_KINDS
        self._add(pair, channel, begun, int(channel.read_booked + leg.held_bytes()))
        # The rest of a frame that is cut through stays in the kernel while its receiver is slow: such a channel is shown with 0 bytes.
        self._add(pair, channel, pending, int(writes.pending.booked), even_nothing=writes.room_wanted and writes.booked_tls == 0)
        self._add(pair, channel, tls, int(writes.booked_tls))

    def _add(self, pair: Pair, channel: Channel, kind: str, size: int, *, even_nothing: bool = False) -> None:
        if size == 0 and not even_nothing:
            return
        if len(self._most) < self._limit:
            heapq.heappush(self._most, (size, next(self._order), holder_row(pair, channel, kind, size, self._wall_offset_ns)))
        elif size > self._most[0][0]:
            heapq.heapreplace(self._most, (size, next(self._order), holder_row(pair, channel, kind, size, self._wall_offset_ns)))

    def result(self) -> messages.Reply:
        return messages.HoldersReply(type="result", id=self.id, rows=[row for _, _, row in sorted(self._most, reverse=True)])


class ClientsJob(Job):
    """What clients used since the last such job: what all open pairs have passed is added to what ended ones had."""

    def __init__(self, message: messages.ClientsCommand, relay: Relay) -> None:
        super().__init__(message["id"], relay)
        self._limit = message["limit"]
        if not 1 <= self._limit <= MAX_HOLDERS:
            raise ValueError(f"a limit of {self._limit} clients")
        self._use = relay.pairs.use

    def _visit(self, number: int, pair: Pair | None) -> None:
        if pair is not None:
            self._use.see(pair)

    def result(self) -> messages.Reply:
        lists, totals = self._use.take()
        rows = [
            ClientRow(measure=measure, client=[*map(shown, client)], amount=amount)
            for measure, found in lists.items()
            for client, amount in heapq.nlargest(self._limit, found.counts.items(), key=operator.itemgetter(1))
        ]
        sums = [ClientRow(measure=measure, client=[listener], amount=amount) for (measure, listener), amount in totals.items()]
        return messages.ClientsReply(type="result", id=self.id, rows=rows, totals=sums)


class BulkJob(Job):
    """Mute, unmute, close or throttle many pairs."""

    def __init__(self, message: messages.BulkCommand, relay: Relay) -> None:
        self._lifts = message.get("lifts", 0)
        super().__init__(message["id"], relay, None if self._lifts else message["connections"])
        self._verb = message["type"]
        self._reason = message.get("reason", "")
        self._number = message.get("action", 0)
        self._rates = message.get("request_rate", 0), message.get("response_rate", 0)
        self._affected: list[int] = []
        self._missing: list[int] = []
        self._undone: list[int] = []
        self._pending: list[Pair] = []

    def _is_chosen(self, pair: Pair | None) -> bool:
        if not self._lifts or pair is None:
            return not self._lifts
        return self._lifts == (pair.mute_action if self._verb == "unmute" else 0 if pair.rates is None else pair.rates.action)

    def _act(self, pair: Pair) -> bool:
        """Whether it is in force at once."""
        match self._verb:
            case "mute":
                return administration.mute(pair, self._number, self._reason)
            case "unmute":
                administration.unmute(pair)
            case "close":
                administration.close(pair, self._reason)
            case "throttle":
                administration.throttle(pair, self._number, self._reason, *self._rates)
        return True

    def _visit(self, number: int, pair: Pair | None) -> None:
        if not self._is_chosen(pair):
            return
        if pair is None or _has_ended(pair):
            self._missing.append(number)
            return
        try:
            if self._act(pair):
                self._affected.append(number)
            else:
                self._pending.append(pair)
        except Exception as error:  # the state of the pair is unknown: end it
            ending.crash(pair, error, "command")
            self._undone.append(number)

    def waits(self) -> bool:
        """Whether a mute is not in force yet; looks at those that were not."""
        pending = self._pending
        self._pending = []
        for pair in pending:
            client = pair.client.channel
            if _has_ended(pair) or client is None:
                self._missing.append(int(pair.id))
            elif client.mute_in_force:
                self._affected.append(int(pair.id))
            elif client.mute_causes & mute.ADMIN:
                self._pending.append(pair)
            else:
                self._undone.append(int(pair.id))
        return bool(self._pending)

    def result(self) -> messages.Reply:
        return messages.BulkReply(type="result", id=self.id, affected=self._affected, missing=self._missing, undone=self._undone)

    def cut(self) -> messages.Reply:
        self.waits()
        self._undone += [int(pair.id) for pair in self._pending]
        for number in self._pairs if self._left is None else self._left:
            pair = self._pairs.get(number)
            if self._is_chosen(pair):
                (self._missing if pair is None or _has_ended(pair) else self._undone).append(number)
        return self.result()


class EvictJob(Job):
    """Close the pairs on which no byte passed for longest: all are visited, then those are closed that are still as idle as they were."""

    def __init__(self, message: messages.EvictCommand, relay: Relay) -> None:
        super().__init__(message["id"], relay)
        self._count = message["count"]
        if not 1 <= self._count <= MAX_EVICTED:
            raise ValueError(f"{self._count} pairs to be closed")
        self._spared = message["spared"]
        self._idlest: list[tuple[int, int]] = []  # a heap of -last_active_ns and -id: the least idle is first, of two the younger pair
        self._victims: deque[tuple[int, int]] | None = None
        self._affected: list[int] = []

    def step(self) -> bool:
        if self._victims is None:
            if super().step():
                self._victims = deque(sorted(self._idlest, reverse=True))
            return False
        for _ in range(STEP):
            if not self._victims:
                return True
            last_ns, number = self._victims.popleft()
            self._close(-number, -last_ns)
        return False

    def _visit(self, number: int, pair: Pair | None) -> None:
        if pair is None or pair.route.listener == self._spared or _has_ended(pair):
            return
        entry = (-int(last_active_ns(pair)), -number)
        if len(self._idlest) < self._count:
            heapq.heappush(self._idlest, entry)
        elif entry > self._idlest[0]:
            heapq.heapreplace(self._idlest, entry)

    def _close(self, number: int, last_ns: int) -> None:
        pair = self._pairs.get(number)
        if pair is None or _has_ended(pair) or last_active_ns(pair) != last_ns:
            return
        try:
            ending.end(pair, Cause.LIMIT, "the idlest, for more connections are open than the node may have", "internal")
        except Exception as error:  # the state of the pair is unknown: end it
            ending.crash(pair, error, "command")
        self._affected.append(number)

    def result(self) -> messages.Reply:
        return messages.EvictReply(type="result", id=self.id, affected=self._affected)

    def cut(self) -> messages.Reply:
        return self.result()  # all pairs end


class PrepareJob(Job):
    """Prepare a change, some pieces in each step: most changes are small, and have no more."""

    def __init__(self, message: messages.PrepareCommand, relay: Relay, settings: Settings) -> None:
        super().__init__(message["id"], relay, ())
        self._work: Final = settings.prepare(message["id"], message["change"])
        self._refusal: str | None = None

    def step(self) -> bool:
        try:
            return any(next(self._work, _DONE) is _DONE for _ in range(PIECES))
        except ChangeError as error:
            self._refusal = str(error)
            return True

    def _visit(self, number: int, pair: Pair | None) -> None:
        """It visits none."""

    def result(self) -> messages.Reply:
        if self._refusal is not None:
            return messages.RefusedReply(type="refused", id=self.id, reason=self._refusal)
        return messages.DecidedReply(type="prepared", id=self.id)

    def cut(self) -> messages.Reply:
        while not self.step():  # a processor that ends must not have the others refuse the change
            pass
        return self.result()

    def give_up(self) -> messages.Reply:
        """Keep nothing. Returns the answer."""
        self._work.close()
        return messages.RefusedReply(type="refused", id=self.id, reason="it was aborted")


class FollowJob(Job):
    """Apply a committed change to each pair that was open then: the tap's rules, the limits, and what was revoked, whichever is new."""

    def __init__(self, message: messages.PlainCommand, relay: Relay, follow: Follow) -> None:
        super().__init__(message["id"], relay, relay.pairs.open)
        self._follow = follow
        self._routes: set[Route] = set()

    def _visit(self, number: int, pair: Pair | None) -> None:
        if pair is None:
            return
        self._routes.add(pair.route)
        if self._follow.rules:
            self._relay.follow(pair)
        if self._follow.limits:
            self._relay.follow_limits(pair)
        if self._follow.revoked:
            self._relay.end_revoked(pair)

    def result(self) -> messages.Reply:
        if self._follow.routes is not None:
            self._follow.routes(self._routes)
        return messages.DecidedReply(type="committed", id=self.id)

    def cut(self) -> messages.Reply:
        return messages.DecidedReply(type="committed", id=self.id)  # the pairs that have not followed end


def _has_ended(pair: Pair) -> bool:
    """Whether its cause is known: then no command changes its end."""
    return pair.state is PairState.CLOSING or pair.state is PairState.CLOSED
