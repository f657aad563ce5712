"""What control may ask for while traffic flows. Bulk work is a job, done in slices; answers are sent when what was asked for is in force.

Messages and answers (``id`` is repeated in the answer; ``refused`` and ``error`` carry a text)::

    prepare {change}                          prepared | refused {reason}
    commit | abort                            committed, aborted | refused {reason}   committed: when open connections follow
    list {after, limit, listener|null}        result {rows, next}            next: 0 when that was all
    describe {connection}                     result {row|null}
    mute | unmute | close {connections | listener, reason}
                                              result {affected, missing, undone}   mute: when no further header will be read
    upstreams                                 result {rows}                  of endpoints that are left out
    holders {limit}                           result {rows}                  who holds most of the memory pool, most first
    drain {timeout_ms}                        result {} at once; later the notice drained {open, cut_off}
    stop                                      no answer: flush and exit

Each connection of a bulk command is in one of three lists. ``affected``: what was asked for is in force. ``missing``: not here, or its end had
begun. ``undone``: here, and not in force: a mute that was taken away before it was, an error of ours, or the processor ended before it came to
that. Where ``listener`` chose them, those whose turn did not come are undone.

Anything else, and what cannot be read, is answered with ``error {error}``; so is a list that the end of the processor cut short.
"""

import abc
import bisect
import heapq
import itertools
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from proxy.cells import MEMORY_KINDS
from proxy.network import mute
from proxy.network.cause import Cause
from proxy.network.channel import Channel
from proxy.relay import ending
from proxy.relay.pair import Pair
from proxy.relay.relay import Relay
from proxy.relay.rows import endpoint_row, holder_row, open_row
from proxy.relay.state import PairState
from proxy.server.settings import ChangeError, Settings

__all__ = ["Commands"]

Message = dict[str, Any]
Reply = Callable[[Message], None]
STEP: Final = 8  # pairs between two looks at the clock
MAX_ROWS: Final = 10_000
MAX_HOLDERS: Final = 100


class _Job(abc.ABC):
    """Work on many pairs."""

    def __init__(self, message: Message) -> None:
        self.id: Final = message.get("id")

    @abc.abstractmethod
    def step(self) -> bool:
        """Do a little; True when all is done."""

    @abc.abstractmethod
    def result(self) -> Message:
        """The answer."""

    @abc.abstractmethod
    def cut(self) -> Message:
        """The answer when there will be no more steps."""


class _List(_Job):
    """One page of rows, in the order of ids."""

    def __init__(self, message: Message, pairs: dict[int, Pair], wall_offset_ns: int) -> None:
        super().__init__(message)
        self._listener = message.get("listener")
        self._after = int(message.get("after") or 0)
        self._ids: list[int] | None = None
        self._pairs = pairs
        self._at = 0
        self._limit = min(int(message.get("limit") or MAX_ROWS), MAX_ROWS)
        self._wall_offset_ns = wall_offset_ns
        self._rows: list[Message] = []

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

    def result(self) -> Message:
        more = self._ids is not None and self._at < len(self._ids) and bool(self._rows)
        return {"type": "result", "id": self.id, "rows": self._rows, "next": self._rows[-1]["id"] if more else 0}

    def cut(self) -> Message:
        return {"type": "error", "id": self.id, "error": "the processor ends"}


class _Holders(_Job):
    """Who holds most of the memory pool: each channel counts for each kind, as it is when its turn comes."""

    def __init__(self, message: Message, pairs: dict[int, Pair], wall_offset_ns: int) -> None:
        super().__init__(message)
        self._limit = int(message["limit"])
        if not 1 <= self._limit <= MAX_HOLDERS:
            raise ValueError(f"a limit of {self._limit} holders")
        self._pairs = pairs
        self._wall_offset_ns = wall_offset_ns
        self._ids: list[int] | None = None
        self._at = 0
        self._order = itertools.count(0, -1)  # of two that hold the same, the older pair comes first
        self._most: list[tuple[int, int, Message]] = []  # a heap: who holds least is first

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
                self._look(pair, pair.client.channel)
                self._look(pair, pair.upstream.channel)
        return False

    def _look(self, pair: Pair, channel: Channel | None) -> None:
        if channel is None or channel.leased == 0:
            return
        begun, pending, tls = MEMORY_KINDS
        self._weigh(pair, channel, begun, int(channel.booked_begun))
        self._weigh(pair, channel, pending, int(channel.booked_pending))
        self._weigh(pair, channel, tls, int(channel.booked_tls))

    def _weigh(self, pair: Pair, channel: Channel, kind: str, size: int) -> None:
        if size == 0:
            return
        if len(self._most) < self._limit:
            heapq.heappush(self._most, (size, next(self._order), holder_row(pair, channel, kind, size, self._wall_offset_ns)))
        elif size > self._most[0][0]:
            heapq.heapreplace(self._most, (size, next(self._order), holder_row(pair, channel, kind, size, self._wall_offset_ns)))

    def result(self) -> Message:
        return {"type": "result", "id": self.id, "rows": [row for _, _, row in sorted(self._most, reverse=True)]}

    def cut(self) -> Message:
        return {"type": "error", "id": self.id, "error": "the processor ends"}


class _Bulk(_Job):
    """Mute, unmute or close many pairs."""

    def __init__(self, message: Message, pairs: dict[int, Pair], act: Callable[[Pair], bool]) -> None:
        super().__init__(message)
        self._listener = message.get("listener")
        self._ids: deque[int] | None = None if self._listener is not None else deque(int(item) for item in message["connections"])
        self._pairs = pairs
        self._act = act
        self._affected: list[int] = []
        self._missing: list[int] = []
        self._undone: list[int] = []
        self._begun: list[Pair] = []

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
                self._look(number, pair)
        return False

    def _is_chosen(self, pair: Pair | None) -> bool:
        return self._listener is None or (pair is not None and pair.route.listener == self._listener)

    def _look(self, number: int, pair: Pair | None) -> None:
        if pair is None or _has_ended(pair):
            self._missing.append(number)
            return
        try:
            if self._act(pair):
                self._affected.append(number)
            else:
                self._begun.append(pair)
        except Exception as error:  # what became of the pair is not known: it ends
            ending.crash(pair, error, "command")
            self._undone.append(number)

    def waits(self) -> bool:
        """Whether a mute is not in force yet; looks at those that were not."""
        begun = self._begun
        self._begun = []
        for pair in begun:
            client = pair.client.channel
            if _has_ended(pair) or client is None:
                self._missing.append(int(pair.id))
            elif client.mute_in_force:
                self._affected.append(int(pair.id))
            elif client.mute_causes & mute.ADMIN:
                self._begun.append(pair)
            else:
                self._undone.append(int(pair.id))
        return bool(self._begun)

    def result(self) -> Message:
        return {"type": "result", "id": self.id, "affected": self._affected, "missing": self._missing, "undone": self._undone}

    def cut(self) -> Message:
        self.waits()
        self._undone += [int(pair.id) for pair in self._begun]
        for number in self._pairs if self._ids is None else self._ids:
            pair = self._pairs.get(number)
            if self._is_chosen(pair):
                (self._missing if pair is None or _has_ended(pair) else self._undone).append(number)
        return self.result()


class _Follow(_Job):
    """Have each pair that was open when a change was committed follow the tap's rules."""

    def __init__(self, message: Message, relay: Relay) -> None:
        super().__init__(message)
        self._relay = relay
        self._ids = deque(relay.pairs.open)

    def step(self) -> bool:
        for _ in range(STEP):
            if not self._ids:
                return True
            pair = self._relay.pairs.open.get(self._ids.popleft())
            if pair is not None:
                self._relay.follow(pair)
        return False

    def result(self) -> Message:
        return {"type": "committed", "id": self.id}

    def cut(self) -> Message:
        return self.result()  # the pairs that have not followed end


def _has_ended(pair: Pair) -> bool:
    """Its cause is known: nothing that is asked for now changes its end."""
    return pair.state is PairState.CLOSING or pair.state is PairState.CLOSED


class Commands:
    """Does what control asks for.

    Args:
        relay: the pairs.
        settings: what changes are made to.
        drain: begins a drain; takes its timeout in ms.
        reply: sends a message to control.
        stop: begins the end of this processor.
    """

    def __init__(self, relay: Relay, settings: Settings, drain: Callable[[int], None], reply: Reply, stop: Callable[[], None]) -> None:
        self._relay: Final = relay
        self._pairs: Final = relay.pairs
        self._faults: Final = relay.pairs.selector.faults
        self._settings: Final = settings
        self._drain: Final = drain
        self._reply: Final = reply
        self._stop: Final = stop
        self._jobs: deque[_Job] = deque()
        self._waiting: list[_Bulk] = []
        self._handlers: Final[dict[str, Callable[[Message], None]]] = {
            "prepare": self._prepare,
            "commit": self._commit,
            "abort": self._abort,
            "list": self._list,
            "describe": self._describe,
            "mute": self._mute,
            "unmute": self._unmute,
            "close": self._close,
            "upstreams": self._upstreams,
            "holders": self._holders,
            "drain": self._begin_drain,
            "stop": self._begin_stop,
        }

    @property
    def busy(self) -> bool:
        """Whether ``work`` has something to do."""
        return bool(self._jobs)

    @property
    def backlog(self) -> int:
        """Jobs that wait."""
        return len(self._jobs)

    def handle(self, message: Message) -> None:
        """One message from control. Never raises."""
        handler = self._handlers.get(message["type"])
        try:
            if handler is None:
                raise ValueError(f"no command {message['type']}")
            handler(message)
        except Exception as error:
            self._fail(message.get("id"), error)

    def work(self, until_ns: int, now: Callable[[], int]) -> None:
        """Go on with jobs, oldest first, until the time is over. A job that raises is answered with its error."""
        while self._jobs:
            job = self._jobs[0]
            try:
                done = job.step()
            except Exception as error:
                self._jobs.popleft()
                self._fail(job.id, error)
            else:
                if done:
                    self._jobs.popleft()
                    self._finish(job)
                    self.pair_changed()  # an unmute answers a mute that waits
            if now() >= until_ns:
                return

    def pair_changed(self) -> None:
        """A pair is closed, or its mute is in force or taken away: answer who waited for that."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for job in waiting:
                self._finish(job)

    def end(self) -> None:
        """There will be no more steps: answer what was asked for and is not done, saying so."""
        jobs = [*self._jobs, *self._waiting]
        self._jobs.clear()
        self._waiting.clear()
        for job in jobs:
            try:
                self._reply(job.cut())
            except Exception as error:
                self._fail(job.id, error)

    def _finish(self, job: _Job) -> None:
        try:
            if isinstance(job, _Bulk) and job.waits():
                self._waiting.append(job)
            else:
                self._reply(job.result())
        except Exception as error:
            self._fail(job.id, error)

    def _fail(self, identifier: Any, error: Exception) -> None:
        """A fault of ours: control asks for nothing that cannot be read. It costs this command."""
        self._faults.note("command", error)
        self._reply({"type": "error", "id": identifier, "error": f"{type(error).__name__}: {error}"})

    def _answer(self, message: Message, kind: str, **fields: Any) -> None:
        self._reply({"type": kind, "id": message["id"], **fields})

    def _prepare(self, message: Message) -> None:
        try:
            self._settings.prepare(message["id"], message["change"])
        except ChangeError as error:
            self._answer(message, "refused", reason=str(error))
        else:
            self._answer(message, "prepared")

    def _commit(self, message: Message) -> None:
        rules = self._pairs.rules
        if not self._settings.commit(message["id"]):
            self._answer(message, "refused", reason="that change is not prepared")
        elif self._pairs.rules is rules:
            self._answer(message, "committed")
        else:
            self._jobs.appendleft(_Follow(message, self._relay))  # before lists and the like: who changes something holds up the next change

    def _abort(self, message: Message) -> None:
        self._settings.abort(message["id"])
        self._answer(message, "aborted")

    def _list(self, message: Message) -> None:
        self._jobs.append(_List(message, self._pairs.open, int(self._pairs.wall_offset_ns)))

    def _describe(self, message: Message) -> None:
        pair = self._pairs.open.get(int(message["connection"]))
        row = None if pair is None else open_row(pair, int(self._pairs.wall_offset_ns))
        self._answer(message, "result", row=row)

    def _mute(self, message: Message) -> None:
        reason = str(message.get("reason") or "")

        def act(pair: Pair) -> bool:
            pair.reason = reason
            client = pair.client.channel
            return client is None or client.mute(mute.ADMIN)

        self._jobs.append(_Bulk(message, self._pairs.open, act))

    def _unmute(self, message: Message) -> None:
        def act(pair: Pair) -> bool:
            client = pair.client.channel
            if client is not None:
                client.unmute(mute.ADMIN)
            return True

        self._jobs.append(_Bulk(message, self._pairs.open, act))

    def _close(self, message: Message) -> None:
        reason = str(message.get("reason") or "")

        def act(pair: Pair) -> bool:
            ending.end(pair, Cause.ADMIN, reason, "internal")
            return True

        self._jobs.append(_Bulk(message, self._pairs.open, act))

    def _upstreams(self, message: Message) -> None:
        rows = [
            endpoint_row(upstream, endpoint) for upstream in self._settings.upstreams.values() for endpoint in upstream.endpoints if endpoint.down
        ]
        self._answer(message, "result", rows=rows)

    def _holders(self, message: Message) -> None:
        self._jobs.append(_Holders(message, self._pairs.open, int(self._pairs.wall_offset_ns)))

    def _begin_drain(self, message: Message) -> None:
        self._drain(int(message["timeout_ms"]))
        self._answer(message, "result")

    def _begin_stop(self, message: Message) -> None:
        del message
        self._stop()
