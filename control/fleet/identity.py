"""Authentication in the control process. On the event loop.

``Identity`` builds the auth worker pool (``framegate.control.identity.auth_worker_pool``) from the files of listeners and the API versions of
upstreams. ``AuthRequests`` passes auth requests of processors to the pool, and the responses back.
"""

import asyncio
import contextlib
import functools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from framegate.control.accept.api_versions import ApiVersions
from framegate.control.accept.broker_connection import own_header, tls_of
from framegate.control.errors import StartError
from framegate.control.fleet.child import Child
from framegate.control.identity.auth_responder import AuthResponder, IdentityFileError, UnknownApisError, files_of, listener_answers, read_files
from framegate.control.identity.auth_worker_pool import AuthPoolError, AuthWorkerPool, QueuedRequest
from framegate.control.identity.password_checks import PasswordChecks
from framegate.control.identity.secrets import Secrets
from framegate.control.identity.users import Users
from framegate.control.logs import RowLog
from framegate.control.meters import Meters
from framegate.control.task_monitor import TaskMonitor
from framegate.proxy.auth.auth_requests import AuthResponse, CheckPassword, Refused, Unavailable
from framegate.proxy.auth.messages import NONE, ApiVersionsAnswer
from framegate.proxy.config.model import ListenerConfig, ProxyConfig, UpstreamConfig
from framegate.proxy.config.sasl import secret_files
from framegate.proxy.server.credentials import listener_auth_queue, question_from_row, row_of, upstream_auth_queue
from framegate.proxy.server.messages import AnswerCommand, ForgetNotice, QuestionNotice
from framegate.proxy.server.rows import Store

Addresses = Callable[[], Mapping[str, Sequence[Sequence[Any]]]]
LATER_S: Final = (1.0, 3.0)
"""Delay of a password's refusal that needed no work: it slows down clients that guess, which occupy places of their own address meanwhile. It is
random, so that clients that began together do not return together.
"""


class AuthRequests:
    """Auth requests without a response. A response to a process that has ended is dropped."""

    def __init__(self, auth_pool: AuthWorkerPool, meters: Meters) -> None:
        self._auth_pool: Final = auth_pool
        self._meters: Final = meters
        self._loop: Final = asyncio.get_running_loop()
        self._open: Final[dict[Child, dict[int, QueuedRequest | asyncio.TimerHandle]]] = {}
        meters.gauge("authentication.questions.waiting", lambda: float(auth_pool.waiting))

    def count(self, child: Child) -> int:
        """The requests of a process without a response."""
        return len(self._open.get(child, ()))

    def hear(self, child: Child, notice: QuestionNotice | ForgetNotice) -> None:
        """Take or withdraw a request of a process. Raises MessageError: it cannot be read."""
        number = notice["number"]
        if notice["type"] == "forget":
            self._withdraw(self._open.get(child, {}).pop(number, None))
            return
        auth_request, address = question_from_row(notice["kind"], notice["row"]), notice["address"]
        answer = self._auth_pool.at_once(notice["queue"], auth_request, address)
        if isinstance(auth_request, CheckPassword) and isinstance(answer, Refused | Unavailable):
            later = self._loop.call_later(random.uniform(*LATER_S), self._deliver, child, number, answer)
            self._open.setdefault(child, {})[number] = later
            return
        if answer is not None:
            _post(child, number, answer)
            return
        try:
            self._open.setdefault(child, {})[number] = self._auth_pool.ask(notice["queue"], auth_request, self._reply(child, number), address)
        except AuthPoolError as error:
            self._meters.add("authentication.questions.refused")
            _post(child, number, Unavailable(str(error)))

    def forget(self, child: Child) -> None:
        """A process has ended: withdraw its requests."""
        for waiting in self._open.pop(child, {}).values():
            self._withdraw(waiting)

    def _withdraw(self, waiting: QueuedRequest | asyncio.TimerHandle | None) -> None:
        if isinstance(waiting, QueuedRequest):
            self._auth_pool.withdraw(waiting)
        elif waiting is not None:
            waiting.cancel()

    def _reply(self, child: Child, number: int) -> Callable[[AuthResponse], None]:
        def reply(answer: AuthResponse) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._deliver, child, number, answer)

        return reply

    def _deliver(self, child: Child, number: int, answer: AuthResponse) -> None:
        if self._open.get(child, {}).pop(number, None) is not None:
            _post(child, number, answer)


def _post(child: Child, number: int, answer: AuthResponse) -> None:
    kind, row = row_of(answer)
    child.link.post(AnswerCommand(type="answer", number=number, kind=kind, row=row))


class StagedIdentity(NamedTuple):
    """What the listeners and upstreams of another configuration need."""

    config: ProxyConfig  # the configuration
    contents: dict[str, dict[str, bytes]]  # of the files of listeners that are new or use other files, by listener and path
    answers: dict[str, AuthResponder]  # the responders that are new, by queue


class Identity:
    """The auth worker pool and its files. Event loop only. ``addresses``: the addresses of each upstream in force, as on the link. ``stores``: the
    certificates, keys and authorities in force, by owner. Any thread.
    """

    def __init__(
        self, addresses: Addresses, stores: Callable[[], Mapping[str, Store]], meters: Meters, log: RowLog, task_monitor: TaskMonitor
    ) -> None:
        self._listeners: dict[str, ListenerConfig] = {}
        self._upstreams: dict[str, UpstreamConfig] = {}
        self._secrets: dict[str, str] = {}
        self._addresses: Final = addresses
        self._stores: Final = stores
        self._log: Final = log
        self._task_monitor: Final = task_monitor
        self._apis: Final[dict[str, ApiVersions]] = {}
        self._checks: Final[dict[str, PasswordChecks]] = {}
        self._auth_pool: Final = AuthWorkerPool({}, lambda error: self._task_monitor.failed("authentication", error))
        self.auth_requests: Final = AuthRequests(self._auth_pool, meters)  # those of processors

    async def stage(self, config: ProxyConfig) -> StagedIdentity:
        """Read the files that another configuration needs and the present one does not. Raises StartError: a file cannot be used, or not any more,
        since the configuration was validated.
        """
        listeners = [item for item in config.listeners if item.sasl is not None]
        fresh = [item for item in listeners if _own(item) != _own(self._listeners.get(item.name))]
        try:
            contents = {item.name: await asyncio.to_thread(read_files, _files(item).values()) for item in fresh}
            answers = {listener_auth_queue(item.name): await asyncio.to_thread(self._answers, item, contents[item.name]) for item in fresh}
        except IdentityFileError as error:
            raise StartError(str(error), reason="IDENTITY_FILE") from error
        files = secret_files(config)
        if files != self._secrets:
            secrets = Secrets(files)
            answers |= {upstream_auth_queue(item.name): AuthResponder(secrets=secrets) for item in config.upstreams if item.sasl is not None}
        return StagedIdentity(config, contents, answers)

    def follow(self, staged: StagedIdentity) -> None:
        """Answer for the listeners and upstreams of another configuration, and ask its upstreams for their API versions."""
        config = staged.config
        self._listeners = {item.name: item for item in config.listeners if item.sasl is not None}
        before, self._upstreams = self._upstreams, {item.name: item for item in config.upstreams}
        self._secrets = secret_files(config)
        wanted = {item.upstream for item in self._listeners.values() if item.upstream is not None}
        for name in [name for name in self._apis if name not in wanted or _asked(before[name]) != _asked(self._upstreams[name])]:
            self._apis.pop(name).cancel()
        for name in sorted(wanted - self._apis.keys()):
            self._apis[name] = self._ask(self._upstreams[name])
        for name in self._checks.keys() - self._listeners.keys():
            del self._checks[name]
        queues = {listener_auth_queue(name) for name in self._listeners}
        queues |= {upstream_auth_queue(item.name) for item in config.upstreams if item.sasl is not None}
        self._auth_pool.put(staged.answers, queues)

    async def stop(self) -> None:
        for each in self._apis.values():
            await each.stop()
        await asyncio.to_thread(self._auth_pool.close)

    @property
    def listeners(self) -> tuple[str, ...]:
        return tuple(self._listeners)

    def users_file(self, listener: str) -> str | None:
        sasl = self._listeners[listener].sasl if listener in self._listeners else None
        return None if sasl is None else sasl.users

    def users(self, listener: str) -> Users:
        """The users in force of a listener with a file of users."""
        found = self._auth_pool.answers(listener_auth_queue(listener)).users
        assert found is not None, f"{listener} has no file of users"
        return found

    def files(self, listener: str) -> dict[str, str]:
        """The paths of the files that a listener's SASL uses, by kind; empty without SASL."""
        return _files(self._listeners[listener]) if listener in self._listeners else {}

    def take(self, listener: str, contents: Mapping[str, bytes]) -> None:
        """Check new contents of some of a listener's files, and use them for all later requests. Contents that are not good change nothing. Takes 15
        µs a user, and holds the interpreter for some milliseconds at most. Any thread. Raises IdentityFileError: a file is not what it should be.
        """
        auth_queue = listener_auth_queue(listener)
        self._auth_pool.replace(auth_queue, self._answers(self._listeners[listener], contents, self._auth_pool.answers(auth_queue)))

    def _answers(self, listener: ListenerConfig, contents: Mapping[str, bytes], before: AuthResponder | None = None) -> AuthResponder:
        assert listener.sasl is not None, "of a listener with SASL"
        checks = self._checks.setdefault(listener.name, PasswordChecks())
        return listener_answers(listener.sasl, contents, functools.partial(self._versions, listener.upstream), before, checks)

    def _versions(self, upstream: str | None, version: int) -> ApiVersionsAnswer:
        """The API versions of an upstream. A handler's are not known: then only those that framegate answers itself are offered. Any thread."""
        if upstream is None:
            return ApiVersionsAnswer(NONE)
        apis = self._apis.get(upstream)
        if apis is None:
            raise UnknownApisError(f"what the upstream {upstream} understands is not known: it is new, or gone")
        return apis.known(version)

    def _ask(self, upstream: UpstreamConfig) -> ApiVersions:
        timeout_s = upstream.timeouts.connect_ms / 1000
        return ApiVersions(
            upstream.name,
            lambda: self._addresses().get(upstream.name, ()),
            tls_of(upstream, self._stores),
            self._log,
            self._task_monitor,
            timeout_s=timeout_s,
            header=own_header(upstream),
        )


def _files(listener: ListenerConfig) -> dict[str, str]:
    return {} if listener.sasl is None else files_of(listener.sasl)


def _own(listener: ListenerConfig | None) -> tuple[object, object]:
    return (None, None) if listener is None else (listener.sasl, listener.upstream)


def _asked(upstream: UpstreamConfig) -> tuple[object, ...]:
    """How an upstream is asked for its API versions."""
    return upstream.tls, upstream.timeouts, upstream.send_proxy_protocol
