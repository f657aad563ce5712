"""The commands of control (``messages``): a short one is done at once, a long one becomes a job (``jobs``). A reply means: it is in force."""

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from framegate.proxy.relay.drain import NO_LEAD_IN
from framegate.proxy.relay.relay import Relay
from framegate.proxy.server import messages
from framegate.proxy.server.jobs import AccessJob, BulkJob, ClientsJob, EvictJob, FollowJob, HoldersJob, Job, ListJob, PrepareJob
from framegate.proxy.server.pair_rows import endpoint_row, open_row
from framegate.proxy.server.protocol import Message, read_command
from framegate.proxy.server.settings import Settings

_JOBS: Final[dict[str, Callable[[Any, Relay], Job]]] = {
    "list": ListJob,
    "mute": BulkJob,
    "unmute": BulkJob,
    "close": BulkJob,
    "throttle": BulkJob,
    "evict": EvictJob,
    "holders": HoldersJob,
    "clients": ClientsJob,
}


class Commands:
    """Carries out the commands of control. ``drain``: begins a drain; takes its timeout in ms, and the delay of a lead-in, or ``NO_LEAD_IN``."""

    def __init__(
        self,
        relay: Relay,
        settings: Settings,
        drain: Callable[[int, int], None],
        reply: Callable[[messages.Reply], None],
        report_access: Callable[[list[str]], None],
        stop: Callable[[], None],
    ) -> None:
        self._relay: Final = relay
        self._pairs: Final = relay.pairs
        self._faults: Final = relay.pairs.selector.faults
        self._settings: Final = settings
        self._drain: Final = drain
        self._reply: Final = reply
        self._report_access: Final = report_access
        self._stop: Final = stop
        self._jobs: deque[Job] = deque()
        self._waiting: list[BulkJob] = []
        self._handlers: Final[dict[str, Callable[[Any], None]]] = {
            "prepare": self._prepare,
            "commit": self._commit,
            "abort": self._abort,
            "describe": self._describe,
            "upstreams": self._upstreams,
            "parts": self._set_parts,
            "access": self._access,
            "drain": self._begin_drain,
            "answer": self._answer,
            "stop": self._begin_stop,
        }

    @property
    def busy(self) -> bool:
        return bool(self._jobs)

    @property
    def backlog(self) -> int:
        return len(self._jobs)

    def handle(self, message: Message) -> None:
        """One message from control. Never raises."""
        try:
            command = read_command(message)
            job = _JOBS.get(command["type"])
            if job is None:
                self._handlers[command["type"]](command)
            else:
                self._jobs.append(job(command, self._relay))
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
        """Answer the commands that waited for this: a pair is closed, or its mute is in force or taken away."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for job in waiting:
                self._finish(job)

    def end(self) -> None:
        """There will be no more steps: answer each command that is not done, and say so."""
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
        """Count and answer a fault of ours: control sends no command that cannot be read."""
        self._faults.note("command", error)
        self._reply(messages.ErrorReply(type="error", id=identifier, error=f"{type(error).__name__}: {error}"))

    def _refuse(self, number: int, reason: str) -> None:
        self._reply(messages.RefusedReply(type="refused", id=number, reason=reason))

    def _prepare(self, message: messages.PrepareCommand) -> None:
        job = PrepareJob(message, self._relay, self._settings)
        if job.step():  # most changes are small: at once
            self._reply(job.result())
        else:
            self._jobs.appendleft(job)  # before lists and the like

    def _commit(self, message: messages.PlainCommand) -> None:
        follow = self._settings.commit(message["id"])
        if follow is None:
            self._refuse(message["id"], "that change is not prepared")
        elif not any(follow):
            self._reply(messages.DecidedReply(type="committed", id=message["id"]))
        else:
            # Before lists and the like: the next change waits for this one.
            self._jobs.appendleft(FollowJob(message, self._relay, follow))

    def _abort(self, message: messages.PlainCommand) -> None:
        for job in [job for job in self._jobs if isinstance(job, PrepareJob) and job.id == message["id"]]:
            self._jobs.remove(job)
            self._reply(job.give_up())
        self._settings.abort(message["id"])
        self._reply(messages.DecidedReply(type="aborted", id=message["id"]))

    def _describe(self, message: messages.DescribeCommand) -> None:
        pair = self._pairs.open.get(message["connection"])
        row = None if pair is None else open_row(pair, self._pairs.wall_offset_ns)
        self._reply(messages.DescribeReply(type="result", id=message["id"], row=row))

    def _upstreams(self, message: messages.PlainCommand) -> None:
        now_ns = self._pairs.selector.now_ns
        endpoints = [(upstream, endpoint) for upstream in self._settings.in_force.upstreams.values() for endpoint in upstream.endpoints]
        rows = [endpoint_row(upstream, endpoint, now_ns, self._pairs.wall_offset_ns) for upstream, endpoint in endpoints]
        self._reply(messages.UpstreamsReply(type="result", id=message["id"], rows=rows))

    def _set_parts(self, message: messages.PartsCommand) -> None:
        parts = [(row["level"], row["name"], row["counter"], row["part"]) for row in message["parts"]]
        self._settings.set_parts(message["default"], parts)

    def _access(self, message: messages.AccessCommand) -> None:
        self._jobs.append(AccessJob(message, self._relay, self._report_access))

    def _begin_drain(self, message: messages.DrainCommand) -> None:
        self._drain(message["timeout_ms"], message.get("delay_ms", NO_LEAD_IN))
        self._reply(messages.DrainReply(type="result", id=message["id"]))

    def _answer(self, message: messages.AnswerCommand) -> None:
        credentials = self._settings.in_force.credentials
        if credentials is not None:
            credentials.answered(message)

    def _begin_stop(self, message: messages.PlainCommand) -> None:
        del message
        self._stop()
