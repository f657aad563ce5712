"""What control may ask for while traffic flows. Bulk work is a job, done in slices; answers are sent when what was asked for is in force.

Messages and answers (``id`` is repeated in the answer; ``refused`` and ``error`` carry a text)::

    prepare {change}                          prepared | refused {reason}
    commit | abort                            committed, aborted | refused {reason}
    list {after, limit, listener|null}        result {rows, next}            next: 0 when that was all
    describe {connection}                     result {row|null}
    mute | unmute | close {connections | listener, reason}
                                              result {affected, missing}     mute: when no further header will be read
    upstreams                                 result {rows}                  of endpoints that are left out
    drain {timeout_ms}                        result {} at once; later the notice drained {open, cut_off}
    stop                                      no answer: flush and exit

Anything else, and what cannot be read, is answered with ``error {error}``.
"""

import abc
import bisect
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final

from proxy.network import mute
from proxy.network.cause import Cause
from proxy.relay.pair import Pair
from proxy.relay.relay import Relay
from proxy.relay.rows import endpoint_row, open_row
from proxy.relay.state import PairState
from proxy.server.settings import ChangeError, Settings

__all__ = ["Commands"]

Message = dict[str, Any]
Reply = Callable[[Message], None]
STEP: Final = 8  # pairs between two looks at the clock
MAX_ROWS: Final = 10_000


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


class _List(_Job):
    """One page of rows, in the order of ids."""

    def __init__(self, message: Message, pairs: dict[int, Pair], wall_offset_ns: int) -> None:
        super().__init__(message)
        self._listener = message.get("listener")
        self._ids = list(pairs)
        self._pairs = pairs
        self._at = bisect.bisect_right(self._ids, int(message.get("after") or 0))
        self._limit = min(int(message.get("limit") or MAX_ROWS), MAX_ROWS)
        self._wall_offset_ns = wall_offset_ns
        self._rows: list[Message] = []

    def step(self) -> bool:
        for _ in range(STEP):
            if self._at >= len(self._ids) or len(self._rows) >= self._limit:
                return True
            pair = self._pairs.get(self._ids[self._at])
            self._at += 1
            if pair is not None and self._listener in (None, pair.route.listener):
                self._rows.append(open_row(pair, self._wall_offset_ns))
        return False

    def result(self) -> Message:
        more = self._at < len(self._ids) and bool(self._rows)
        return {"type": "result", "id": self.id, "rows": self._rows, "next": self._rows[-1]["id"] if more else 0}


class _Bulk(_Job):
    """Mute, unmute or close many pairs."""

    def __init__(self, message: Message, pairs: dict[int, Pair], act: Callable[[Pair], bool]) -> None:
        super().__init__(message)
        self._listener = message.get("listener")
        ids = [int(item) for item in message["connections"]] if self._listener is None else list(pairs)
        self._ids: Iterator[int] = iter(ids)
        self._pairs = pairs
        self._act = act
        self._affected: list[int] = []
        self._missing: list[int] = []
        self._begun: list[Pair] = []

    def step(self) -> bool:
        for _ in range(STEP):
            number = next(self._ids, None)
            if number is None:
                return True
            pair = self._pairs.get(number)
            if self._listener is not None and (pair is None or pair.route.listener != self._listener):
                continue
            if pair is None:
                self._missing.append(number)
            elif self._act(pair):
                self._affected.append(number)
            else:
                self._begun.append(pair)
        return False

    def waits(self) -> bool:
        """Whether a mute is not in force yet; looks at those that were not."""
        begun = self._begun
        self._begun = []
        for pair in begun:
            if pair.state is PairState.CLOSED:
                self._missing.append(int(pair.id))
            elif self._in_force(pair):
                self._affected.append(int(pair.id))
            else:
                self._begun.append(pair)
        return bool(self._begun)

    def _in_force(self, pair: Pair) -> bool:
        client = pair.client.channel
        return client is None or client.mute_in_force or not client.causes & mute.ADMIN

    def result(self) -> Message:
        return {"type": "result", "id": self.id, "affected": self._affected, "missing": self._missing}


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
        self._pairs: Final = relay.pairs
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
        """One message from control."""
        handler = self._handlers.get(message["type"])
        try:
            if handler is None:
                raise ValueError(f"no command {message['type']}")
            handler(message)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            self._reply({"type": "error", "id": message.get("id"), "error": f"{type(error).__name__}: {error}"})

    def work(self, until_ns: int, now: Callable[[], int]) -> None:
        """Go on with jobs, oldest first, until the time is over."""
        while self._jobs:
            job = self._jobs[0]
            if job.step():
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

    def _finish(self, job: _Job) -> None:
        if isinstance(job, _Bulk) and job.waits():
            self._waiting.append(job)
        else:
            self._reply(job.result())

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
        if self._settings.commit(message["id"]):
            self._answer(message, "committed")
        else:
            self._answer(message, "refused", reason="that change is not prepared")

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
            pair.end(Cause.ADMIN, reason, "internal")
            return True

        self._jobs.append(_Bulk(message, self._pairs.open, act))

    def _upstreams(self, message: Message) -> None:
        rows = [
            endpoint_row(upstream, endpoint) for upstream in self._settings.upstreams.values() for endpoint in upstream.endpoints if endpoint.down
        ]
        self._answer(message, "result", rows=rows)

    def _begin_drain(self, message: Message) -> None:
        self._drain(int(message["timeout_ms"]))
        self._answer(message, "result")

    def _begin_stop(self, message: Message) -> None:
        del message
        self._stop()
