"""Builds the auth worker pool from the files of listeners and the API versions of upstreams."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from framegate.control.accept.api_versions import ApiVersions, Tls
from framegate.control.errors import StartError
from framegate.control.fleet.auth_requests import AuthRequests
from framegate.control.identity.auth_responder import AuthResponder
from framegate.control.identity.auth_worker_pool import AuthWorkerPool
from framegate.control.identity.files import IdentityFileError, files_of, listener_answers, read_files
from framegate.control.identity.password_checks import PasswordChecks
from framegate.control.identity.secrets import Secrets
from framegate.control.identity.users import Users
from framegate.control.logs import RowLog
from framegate.control.meters import Meters
from framegate.control.task_monitor import TaskMonitor
from framegate.proxy.auth.messages import NONE, ApiVersionsAnswer
from framegate.proxy.config.model import ListenerConfig, ProxyConfig, UpstreamConfig
from framegate.proxy.config.sasl import secret_files
from framegate.proxy.server.credentials import listener_auth_queue, upstream_auth_queue
from framegate.proxy.server.rows import Store, upstream_owner

__all__ = ["Identity"]

Addresses = Callable[[], Mapping[str, Sequence[Sequence[Any]]]]


class Identity:
    """Event loop only.

    Args:
        addresses: of each upstream's endpoints now, as the link has them.
        stores: what is in force of certificates, keys and authorities, by owner. Any thread.

    Attributes:
        questions: of the processors; once it is started.
        listeners: those with SASL.
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
        """Read the files, and begin to ask the upstreams; what was in the files, by listener and path.

        Raises:
            StartError: a file cannot be used, which was good when the configuration was validated.
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
        return tuple(self._listeners)

    def users_file(self, listener: str) -> str | None:
        """The path of a listener's file of users; None of a listener without."""
        sasl = self._listeners[listener].sasl if listener in self._listeners else None
        return None if sasl is None else sasl.users

    def users(self, listener: str) -> Users:
        """The users in force of a listener that has a file of them."""
        assert self._auth_pool is not None, "after the start"
        found = self._auth_pool.answers(listener_auth_queue(listener)).users
        assert found is not None, f"{listener} has no file of users"
        return found

    def files(self, listener: str) -> dict[str, str]:
        """The paths of what a listener's SASL is checked against, by kind; none of a listener without."""
        sasl = self._listeners[listener].sasl if listener in self._listeners else None
        return {} if sasl is None else files_of(sasl)

    def take(self, listener: str, contents: Mapping[str, bytes]) -> None:
        """Check what some of a listener's files hold now, and have it hold for all that is asked afterwards; what there is stays if it is not good.

        Takes a while: 15 µs a user, in which nobody else waits for more than some milliseconds. Any thread.

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
        """What its upstream understands. Of a handler alone nobody can know: what framegate answers itself is all that is promised."""
        return (lambda version: ApiVersionsAnswer(NONE)) if listener.upstream is None else self._apis[listener.upstream].known

    def _ask(self, upstream: UpstreamConfig) -> ApiVersions:
        def tls(host: str) -> Tls | None:
            config = upstream.tls
            if config is None:
                return None
            from framegate.proxy.network.tls_context import upstream_context  # it loads OpenSSL

            files = {path: content.encode("latin-1") for path, content in self._stores()[upstream_owner(upstream.name)].files.items()}
            return Tls(upstream_context(config, files), config.server_name or host.rstrip(".") or "localhost", config.pins)

        timeout_s = upstream.timeouts.connect_ms / 1000
        return ApiVersions(upstream.name, lambda: self._addresses()[upstream.name], tls, self._log, self._task_monitor, timeout_s=timeout_s)
