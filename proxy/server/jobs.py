"""Commands on many pairs, done in slices: a job is asked to ``step`` as long as there is time, and gives its reply at the end."""

import abc
import bisect
import heapq
import itertools
from collections import deque
from collections.abc import Callable
from typing import Final

from framegate.proxy.cause import Cause
from framegate.proxy.cells import MEMORY_KINDS
from framegate.proxy.network import mute
from framegate.proxy.network.channel import Channel
from framegate.proxy.relay import ending
from framegate.proxy.relay.pair import Leg, Pair
from framegate.proxy.relay.relay import Relay
from framegate.proxy.relay.state import PairState
from framegate.proxy.server.messages import (
    AccessCommand,
    AccessReply,
    BulkCommand,
    BulkReply,
    DecidedReply,
    ErrorReply,
    EvictCommand,
    EvictReply,
    HoldersCommand,
    HoldersReply,
    ListCommand,
    ListReply,
    PlainCommand,
    Reply,
)
from framegate.proxy.server.pair_rows import access_line, holder_row, is_due, open_row
from framegate.proxy.server.rows import HolderRow, OpenRow

__all__ = ["AccessJob", "BulkJob", "EvictJob", "FollowJob", "HoldersJob", "Job", "ListJob"]

STEP: Final = 8  # pairs between two looks at the clock
MAX_ROWS: Final = 10_000
MAX_HOLDERS: Final = 100
MAX_EVICTED: Final = 10_000


class Job(abc.ABC):
    """Work on many pairs. ``id``: of the command."""

    def __init__(self, number: int) -> None:
        self.id: Final = number

    @abc.abstractmethod
    def step(self) -> bool:
        """Do a little; True when all is done."""

    @abc.abstractmethod
    def result(self) -> Reply:
        """The answer."""

    @abc.abstractmethod
    def cut(self) -> Reply:
        """The answer when there will be no more steps."""


class ListJob(Job):
    """One page of rows, in the order of ids."""

    def __init__(self, message: ListCommand, pairs: dict[int, Pair], wall_offset_ns: int) -> None:
        super().__init__(message["id"])
        self._listener = message.get("listener")
        self._after = message.get("after", 0)
        self._ids: list[int] | None = None
        self._pairs = pairs
        self._at = 0
        self._limit = min(message.get("limit") or MAX_ROWS, MAX_ROWS)
        self._wall_offset_ns = wall_offset_ns
        self._rows: list[OpenRow] = []

    def step(self) -> bool:
        ids = self._ids
        if ids is None:
            ids = self._ids = list(self._pairs)
            self._at = bisect.bisect_right(ids, self._after)
        for _ in range(STEP):
            if self._at >= len(ids) or len(self._rows) >= self._limit:
                return True
            pair = self._pairs.get(ids[self._at])
            self._at += 1
            if pair is not None and self._listener in (None, pair.route.listener):
                self._rows.append(open_row(pair, self._wall_offset_ns))
        return False

    def result(self) -> Reply:
        more = self._ids is not None and self._at < len(self._ids) and bool(self._rows)
        return ListReply(type="result", id=self.id, rows=self._rows, next=self._rows[-1]["id"] if more else 0)

    def cut(self) -> Reply:
        return ErrorReply(type="error", id=self.id, error="the processor ends")


class AccessJob(Job):
    """Rows of pairs that have been open for long: those whose moment has come (``AccessCommand``)."""

    def __init__(self, message: AccessCommand, pairs: dict[int, Pair], wall_offset_ns: int, tell: Callable[[list[str]], None]) -> None:
        super().__init__(message["id"])
        if message["every_ms"] < 1 or message["limit"] < 1:
            raise ValueError(f"up to {message['limit']} rows, each {message['every_ms']} ms")
        self._limit = min(message["limit"], MAX_ROWS)
        self._every_ns = message["every_ms"] * 1_000_000
        self._since_ns = message["since_ns"]
        self._until_ns = message["until_ns"]
        self._after = message["after"]
        self._pairs = pairs
        self._wall_offset_ns = wall_offset_ns
        self._report = tell
        self._ids: list[int] | None = None
        self._at = 0
        self._lines: list[tuple[int, str]] = []

    def step(self) -> bool:
        ids = self._ids
        if ids is None:
            ids = self._ids = list(self._pairs)
            self._at = bisect.bisect_right(ids, self._after)
        for _ in range(STEP):
            if self._at >= len(ids) or len(self._lines) >= self._limit:
                return True
            pair = self._pairs.get(ids[self._at])
            self._at += 1
            if pair is not None and is_due(int(pair.opened_ns), int(pair.id), self._every_ns, self._since_ns, self._until_ns):
                self._lines.append((int(pair.id), access_line(pair, self._wall_offset_ns)))
        return False

    def result(self) -> Reply:
        """A pair that has closed since its turn has, or will have, another row: nothing is told of it behind that."""
        lines = [line for number, line in self._lines if number in self._pairs]
        if lines:
            self._report(lines)
        more = self._ids is not None and self._at < len(self._ids)
        return AccessReply(type="result", id=self.id, next=self._ids[self._at - 1] if more and self._ids is not None and self._at else 0)

    def cut(self) -> Reply:
        return ErrorReply(type="error", id=self.id, error="the processor ends")


class HoldersJob(Job):
    """Who holds most of the memory pool: each channel counts for each kind, as it is when its turn comes."""

    def __init__(self, message: HoldersCommand, pairs: dict[int, Pair], wall_offset_ns: int) -> None:
        super().__init__(message["id"])
        self._limit = message["limit"]
        if not 1 <= self._limit <= MAX_HOLDERS:
            raise ValueError(f"a limit of {self._limit} holders")
        self._pairs = pairs
        self._wall_offset_ns = wall_offset_ns
        self._ids: list[int] | None = None
        self._at = 0
        self._order = itertools.count(0, -1)  # of two that hold the same, the older pair comes first
        self._most: list[tuple[int, int, HolderRow]] = []  # a heap: who holds least is first

    def step(self) -> bool:
        ids = self._ids
        if ids is None:
            ids = self._ids = list(self._pairs)
        for _ in range(STEP):
            if self._at >= len(ids):
                return True
            pair = self._pairs.get(ids[self._at])
            self._at += 1
            if pair is not None:
                self._add_channel(pair, pair.client)
                self._add_channel(pair, pair.upstream)
        return False

    def _add_channel(self, pair: Pair, leg: Leg) -> None:
        channel = leg.channel
        if channel is None:
            return
        writes = channel.write_half
        begun, pending, tls = MEMORY_KINDS
        self._add(pair, channel, begun, int(channel.read_booked + leg.held_bytes()))
        self._add(pair, channel, pending, int(writes.pending.booked), even_nothing=writes.room_wanted and writes.booked_tls == 0)
        self._add(pair, channel, tls, int(writes.booked_tls))

    def _add(self, pair: Pair, channel: Channel, kind: str, size: int, *, even_nothing: bool = False) -> None:
        """``even_nothing``: of a frame that is cut through the rest stays in the kernel while its receiver is slow."""
        if size == 0 and not even_nothing:
            return
        if len(self._most) < self._limit:
            heapq.heappush(self._most, (size, next(self._order), holder_row(pair, channel, kind, size, self._wall_offset_ns)))
        elif size > self._most[0][0]:
            heapq.heapreplace(self._most, (size, next(self._order), holder_row(pair, channel, kind, size, self._wall_offset_ns)))

    def result(self) -> Reply:
        return HoldersReply(type="result", id=self.id, rows=[row for _, _, row in sorted(self._most, reverse=True)])

    def cut(self) -> Reply:
        return ErrorReply(type="error", id=self.id, error="the processor ends")


class BulkJob(Job):
    """Mute, unmute or close many pairs."""

    def __init__(self, message: BulkCommand, pairs: dict[int, Pair], act: Callable[[Pair], bool]) -> None:
        super().__init__(message["id"])
        self._listener = message.get("listener")
        self._principal = message.get("principal")
        self._chooses = self._listener is not None or self._principal is not None
        self._ids: deque[int] | None = None if self._chooses else deque(message["connections"])
        self._pairs = pairs
        self._act = act
        self._affected: list[int] = []
        self._missing: list[int] = []
        self._undone: list[int] = []
        self._pending: list[Pair] = []

    def step(self) -> bool:
        ids = self._ids
        if ids is None:
            ids = self._ids = deque(self._pairs)
        for _ in range(STEP):
            if not ids:
                return True
            number = ids.popleft()
            pair = self._pairs.get(number)
            if self._is_chosen(pair):
                self._begin(number, pair)
        return False

    def _is_chosen(self, pair: Pair | None) -> bool:
        if not self._chooses or pair is None:
            return not self._chooses
        client = pair.client.channel
        return pair.route.listener == self._listener or (client is not None and client.ready_ns != 0 and client.principal == self._principal)

    def _begin(self, number: int, pair: Pair | None) -> None:
        if pair is None or _has_ended(pair):
            self._missing.append(number)
            return
        try:
            if self._act(pair):
                self._affected.append(number)
            else:
                self._pending.append(pair)
        except Exception as error:  # what became of the pair is not known: it ends
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

    def result(self) -> Reply:
        return BulkReply(type="result", id=self.id, affected=self._affected, missing=self._missing, undone=self._undone)

    def cut(self) -> Reply:
        self.waits()
        self._undone += [int(pair.id) for pair in self._pending]
        for number in self._pairs if self._ids is None else self._ids:
            pair = self._pairs.get(number)
            if self._is_chosen(pair):
                (self._missing if pair is None or _has_ended(pair) else self._undone).append(number)
        return self.result()


class EvictJob(Job):
    """Close the pairs of which no byte passed for longest: all are looked at, then those are closed that still are so idle."""

    def __init__(self, message: EvictCommand, pairs: dict[int, Pair]) -> None:
        super().__init__(message["id"])
        self._count = message["count"]
        if not 1 <= self._count <= MAX_EVICTED:
            raise ValueError(f"{self._count} pairs to be closed")
        self._spared = message["spared"]
        self._pairs = pairs
        self._ids: deque[int] | None = None
        self._idlest: list[tuple[int, int]] = []  # a heap of -last_ns and -id: the least idle is first, of two the younger pair
        self._victims: deque[tuple[int, int]] | None = None
        self._affected: list[int] = []

    def step(self) -> bool:
        ids = self._ids
        if ids is None:
            ids = self._ids = deque(self._pairs)
        for _ in range(STEP):
            if ids:
                self._look(ids.popleft())
            elif self._victims is None:
                self._victims = deque(sorted(self._idlest, reverse=True))
            elif self._victims:
                last_ns, number = self._victims.popleft()
                self._close(-number, -last_ns)
            else:
                return True
        return False

    def _look(self, number: int) -> None:
        pair = self._pairs.get(number)
        if pair is None or pair.route.listener == self._spared or _has_ended(pair):
            return
        entry = (-_last_active_ns(pair), -number)
        if len(self._idlest) < self._count:
            heapq.heappush(self._idlest, entry)
        elif entry > self._idlest[0]:
            heapq.heapreplace(self._idlest, entry)

    def _close(self, number: int, last_ns: int) -> None:
        pair = self._pairs.get(number)
        if pair is None or _has_ended(pair) or _last_active_ns(pair) != last_ns:
            return
        try:
            ending.end(pair, Cause.LIMIT, "the idlest, for more connections are open than the node may have", "internal")
        except Exception as error:  # what became of the pair is not known: it ends
            ending.crash(pair, error, "command")
        self._affected.append(number)

    def result(self) -> Reply:
        return EvictReply(type="result", id=self.id, affected=self._affected)

    def cut(self) -> Reply:
        return self.result()  # all pairs end


class FollowJob(Job):
    """Have each pair that was open when a change was committed follow the tap's rules, the limits, and what was revoked: whichever is new."""

    def __init__(self, message: PlainCommand, relay: Relay, *, rules: bool, limits: bool, revoked: bool) -> None:
        super().__init__(message["id"])
        self._rules = rules
        self._limits = limits
        self._revoked = revoked
        self._relay = relay
        self._ids = deque(relay.pairs.open)

    def step(self) -> bool:
        for _ in range(STEP):
            if not self._ids:
                return True
            pair = self._relay.pairs.open.get(self._ids.popleft())
            if pair is not None and self._rules:
                self._relay.follow(pair)
            if pair is not None and self._limits:
                self._relay.follow_limits(pair)
            if pair is not None and self._revoked:
                self._relay.end_revoked(pair)
        return False

    def result(self) -> Reply:
        return DecidedReply(type="committed", id=self.id)

    def cut(self) -> Reply:
        return self.result()  # the pairs that have not followed end


def _last_active_ns(pair: Pair) -> int:
    """When a byte passed last, on either side, or the client came."""
    last_ns = 0
    for leg in (pair.client, pair.upstream):
        if leg.channel is not None:
            last_ns = max(last_ns, int(leg.channel.last_active_ns))
    return last_ns


def _has_ended(pair: Pair) -> bool:
    """Its cause is known: nothing that is asked for now changes its end."""
    return pair.state is PairState.CLOSING or pair.state is PairState.CLOSED
