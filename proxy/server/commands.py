"""What control may ask for while traffic flows (``messages``): each command does it at once, or makes a job of it (``jobs``). A reply is sent when
what was asked for is in force.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from framegate.proxy.cause import Cause
from framegate.proxy.network import mute
from framegate.proxy.relay import ending
from framegate.proxy.relay.pair import Pair
from framegate.proxy.relay.relay import Relay
from framegate.proxy.server.jobs import AccessJob, BulkJob, EvictJob, FollowJob, HoldersJob, Job, ListJob
from framegate.proxy.server.messages import (
    AccessCommand,
    AnswerCommand,
    BulkCommand,
    DecidedReply,
    DescribeCommand,
    DescribeReply,
    DrainCommand,
    DrainReply,
    ErrorReply,
    EvictCommand,
    HoldersCommand,
    ListCommand,
    PartsCommand,
    PlainCommand,
    PrepareCommand,
    RefusedReply,
    Reply,
    UpstreamsReply,
)
from framegate.proxy.server.pair_rows import endpoint_down_row, open_row
from framegate.proxy.server.protocol import Message, read_command
from framegate.proxy.server.settings import ChangeError, Settings

__all__ = ["Commands"]


class Commands:
    """Does what control asks for.

    Args:
        relay: the pairs.
        settings: what changes are made to.
        drain: begins a drain; takes its timeout in ms.
        reply: sends a message to control.
        tell_access: sends it rows of open pairs.
        stop: begins the end of this processor.
    """

    def __init__(
        self,
        relay: Relay,
        settings: Settings,
        drain: Callable[[int], None],
        reply: Callable[[Reply], None],
        tell_access: Callable[[list[str]], None],
        stop: Callable[[], None],
    ) -> None:
        self._relay: Final = relay
        self._pairs: Final = relay.pairs
        self._faults: Final = relay.pairs.selector.faults
        self._settings: Final = settings
        self._drain: Final = drain
        self._reply: Final = reply
        self._report_access: Final = tell_access
        self._stop: Final = stop
        self._jobs: deque[Job] = deque()
        self._waiting: list[BulkJob] = []
        self._handlers: Final[dict[str, Callable[[Any], None]]] = {
            "prepare": self._prepare,
            "commit": self._commit,
            "abort": self._abort,
            "list": self._list,
            "describe": self._describe,
            "mute": self._mute,
            "unmute": self._unmute,
            "close": self._close,
            "evict": self._evict,
            "upstreams": self._upstreams,
            "holders": self._holders,
            "parts": self._set_parts,
            "access": self._access,
            "drain": self._begin_drain,
            "answer": self._answer,
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
        try:
            command = read_command(message)
            self._handlers[command["type"]](command)
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

    def _finish(self, job: Job) -> None:
        try:
            if isinstance(job, BulkJob) and job.waits():
                self._waiting.append(job)
            else:
                self._reply(job.result())
        except Exception as error:
            self._fail(job.id, error)

    def _fail(self, identifier: Any, error: Exception) -> None:
        """A fault of ours: control asks for nothing that cannot be read. It costs this command."""
        self._faults.note("command", error)
        self._reply(ErrorReply(type="error", id=identifier, error=f"{type(error).__name__}: {error}"))

    def _refuse(self, number: int, reason: str) -> None:
        self._reply(RefusedReply(type="refused", id=number, reason=reason))

    def _prepare(self, message: PrepareCommand) -> None:
        try:
            self._settings.prepare(message["id"], message["change"])
        except ChangeError as error:
            self._refuse(message["id"], str(error))
        else:
            self._reply(DecidedReply(type="prepared", id=message["id"]))

    def _commit(self, message: PlainCommand) -> None:
        rules, limits, revoked = self._pairs.rules, self._pairs.quotas.limits, self._settings.revokes(message["id"])
        if not self._settings.commit(message["id"]):
            self._refuse(message["id"], "that change is not prepared")
            return
        retaps, limited = self._pairs.rules is not rules, self._pairs.quotas.limits is not limits
        if not retaps and not limited and not revoked:
            self._reply(DecidedReply(type="committed", id=message["id"]))
        else:
            self._jobs.appendleft(
                FollowJob(message, self._relay, rules=retaps, limits=limited, revoked=revoked)
            )  # before lists and the like: who changes something holds up the next change

    def _abort(self, message: PlainCommand) -> None:
        self._settings.abort(message["id"])
        self._reply(DecidedReply(type="aborted", id=message["id"]))

    def _list(self, message: ListCommand) -> None:
        self._jobs.append(ListJob(message, self._pairs.open, int(self._pairs.wall_offset_ns)))

    def _describe(self, message: DescribeCommand) -> None:
        pair = self._pairs.open.get(message["connection"])
        row = None if pair is None else open_row(pair, int(self._pairs.wall_offset_ns))
        self._reply(DescribeReply(type="result", id=message["id"], row=row))

    def _mute(self, message: BulkCommand) -> None:
        reason = message.get("reason", "")

        def act(pair: Pair) -> bool:
            pair.reason = reason
            client = pair.client.channel
            return client is None or client.mute(mute.ADMIN)

        self._jobs.append(BulkJob(message, self._pairs.open, act))

    def _unmute(self, message: BulkCommand) -> None:
        def act(pair: Pair) -> bool:
            client = pair.client.channel
            if client is not None:
                client.unmute(mute.ADMIN)
            return True

        self._jobs.append(BulkJob(message, self._pairs.open, act))

    def _close(self, message: BulkCommand) -> None:
        reason = message.get("reason", "")

        def act(pair: Pair) -> bool:
            ending.end(pair, Cause.ADMIN, reason, "internal")
            return True

        self._jobs.append(BulkJob(message, self._pairs.open, act))

    def _evict(self, message: EvictCommand) -> None:
        self._jobs.append(EvictJob(message, self._pairs.open))

    def _upstreams(self, message: PlainCommand) -> None:
        endpoints = [(upstream, endpoint) for upstream in self._settings.upstreams.values() for endpoint in upstream.endpoints]
        rows = [endpoint_down_row(upstream, endpoint) for upstream, endpoint in endpoints if endpoint.down]
        self._reply(UpstreamsReply(type="result", id=message["id"], rows=rows))

    def _holders(self, message: HoldersCommand) -> None:
        self._jobs.append(HoldersJob(message, self._pairs.open, int(self._pairs.wall_offset_ns)))

    def _set_parts(self, message: PartsCommand) -> None:
        parts = [(row["level"], row["name"], row["counter"], row["part"]) for row in message["parts"]]
        self._pairs.quotas.set_parts(message["default"], parts)

    def _access(self, message: AccessCommand) -> None:
        self._jobs.append(AccessJob(message, self._pairs.open, int(self._pairs.wall_offset_ns), self._report_access))

    def _begin_drain(self, message: DrainCommand) -> None:
        self._drain(message["timeout_ms"])
        self._reply(DrainReply(type="result", id=message["id"]))

    def _answer(self, message: AnswerCommand) -> None:
        if self._settings.credentials is not None:
            self._settings.credentials.answered(message)

    def _begin_stop(self, message: PlainCommand) -> None:
        del message
        self._stop()
