"""Authentication in the control process. On the event loop.

``Identity`` builds the auth worker pool (``framegate.control.identity.auth_worker_pool``) from the files of listeners and the API versions of
upstreams. ``AuthRequests`` passes auth requests of processors to the pool, and the responses back.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from framegate.control.accept.api_versions import ApiVersions
from framegate.control.accept.broker_connection import own_header, tls_of
from framegate.control.errors import StartError
from framegate.control.fleet.child import Child
from framegate.control.identity.auth_responder import AuthResponder, IdentityFileError, files_of, listener_answers, read_files
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

__all__ = ["LATER_S", "AuthRequests", "Identity"]

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
        answer = self._auth_pool.at_once(notice["desk"], auth_request, address)
        if isinstance(auth_request, CheckPassword) and isinstance(answer, Refused | Unavailable):
            later = self._loop.call_later(random.uniform(*LATER_S), self._deliver, child, number, answer)
            self._open.setdefault(child, {})[number] = later
            return
        if answer is not None:
            _post(child, number, answer)
            return
        try:
            self._open.setdefault(child, {})[number] = self._auth_pool.ask(notice["desk"], auth_request, self._reply(child, number), address)
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


class Identity:
    """The auth worker pool and its files. Event loop only.

    Args:
        addresses: the addresses of each upstream in force, as on the link.
        stores: the certificates, keys and authorities in force, by owner. Any thread.

    Attributes:
        auth_requests: those of processors; None before the start.
    """

    def __init__(
        self,
        config: ProxyConfig,
        addresses: Addresses,
        stores: Callable[[], Mapping[str, Store]],
        meters: Meters,
        log: RowLog,
        task_monitor: TaskMonitor,
    ) -> None:
        self._listeners: Final = {item.name: item for item in config.listeners if item.sasl is not None}
        self._upstreams: Final = {item.name: item for item in config.upstreams}
        self._secrets: Final = secret_files(config)
        self._addresses: Final = addresses
        self._stores: Final = stores
        self._meters: Final = meters
        self._log: Final = log
        self._task_monitor: Final = task_monitor
        self._apis: Final[dict[str, ApiVersions]] = {}
        self._checks: Final = {name: PasswordChecks() for name in self._listeners}
        self._auth_pool: AuthWorkerPool | None = None
        self.auth_requests: AuthRequests | None = None

    async def start(self) -> dict[str, dict[str, bytes]]:
        """Read the files, and begin to ask the upstreams for their API versions. Returns the contents of the files, by listener and path.

        Raises:
            StartError: a file cannot be used any more, since the configuration was validated.
        """
        for name in sorted({item.upstream for item in self._listeners.values() if item.upstream is not None}):
            self._apis[name] = self._ask(self._upstreams[name])
        try:
            contents = {name: await asyncio.to_thread(read_files, self.files(name).values()) for name in self._listeners}
            answers = {
                listener_auth_queue(name): await asyncio.to_thread(self._answers, item, contents[name]) for name, item in self._listeners.items()
            }
        except IdentityFileError as error:
            raise StartError(str(error), reason="IDENTITY_FILE") from error
        secrets = Secrets(self._secrets)
        answers |= {upstream_auth_queue(name): AuthResponder(secrets=secrets) for name, item in self._upstreams.items() if item.sasl is not None}
        self._auth_pool = AuthWorkerPool(answers, lambda error: self._task_monitor.failed("desk", error))
        self.auth_requests = AuthRequests(self._auth_pool, self._meters)
        return contents

    async def stop(self) -> None:
        """Stop the worker pool."""
        for each in self._apis.values():
            await each.stop()
        if self._auth_pool is not None:
            await asyncio.to_thread(self._auth_pool.close)

    @property
    def listeners(self) -> tuple[str, ...]:
        """The listeners with SASL."""
        return tuple(self._listeners)

    def users_file(self, listener: str) -> str | None:
        """The path of a listener's file of users; None without one."""
        sasl = self._listeners[listener].sasl if listener in self._listeners else None
        return None if sasl is None else sasl.users

    def users(self, listener: str) -> Users:
        """The users in force of a listener with a file of users."""
        assert self._auth_pool is not None, "after the start"
        found = self._auth_pool.answers(listener_auth_queue(listener)).users
        assert found is not None, f"{listener} has no file of users"
        return found

    def files(self, listener: str) -> dict[str, str]:
        """The paths of the files that a listener's SASL uses, by kind; empty without SASL."""
        sasl = self._listeners[listener].sasl if listener in self._listeners else None
        return {} if sasl is None else files_of(sasl)

    def take(self, listener: str, contents: Mapping[str, bytes]) -> None:
        """Check new contents of some of a listener's files, and use them for all later requests. Contents that are not good change nothing.

        Takes 15 µs a user, and holds the interpreter for some milliseconds at most. Any thread.

        Raises:
            IdentityFileError: a file is not what it should be.
        """
        assert self._auth_pool is not None, "after the start"
        auth_queue = listener_auth_queue(listener)
        self._auth_pool.replace(auth_queue, self._answers(self._listeners[listener], contents, self._auth_pool.answers(auth_queue)))

    def _answers(self, listener: ListenerConfig, contents: Mapping[str, bytes], before: AuthResponder | None = None) -> AuthResponder:
        assert listener.sasl is not None, "of a listener with SASL"
        return listener_answers(listener.sasl, contents, self._versions(listener), before, self._checks[listener.name])

    def _versions(self, listener: ListenerConfig) -> Callable[[int], ApiVersionsAnswer]:
        """The API versions of its upstream. A handler's are not known: then only those that framegate answers itself are offered."""
        return (lambda version: ApiVersionsAnswer(NONE)) if listener.upstream is None else self._apis[listener.upstream].known

    def _ask(self, upstream: UpstreamConfig) -> ApiVersions:
        timeout_s = upstream.timeouts.connect_ms / 1000
        return ApiVersions(
            upstream.name,
            lambda: self._addresses()[upstream.name],
            tls_of(upstream, self._stores),
            self._log,
            self._task_monitor,
            timeout_s=timeout_s,
            header=own_header(upstream),
        )
