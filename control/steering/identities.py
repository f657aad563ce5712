"""Authentication in the control process, which is loaded when it is configured first, and then follows the configuration."""

import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from framegate.control.fleet.supervisor import Supervisor
from framegate.control.logs import RowLog
from framegate.control.meters import Meters
from framegate.control.rotation.rotation import Rotation
from framegate.control.task_monitor import TaskMonitor
from framegate.proxy.config.model import ProxyConfig

if TYPE_CHECKING:
    from framegate.control.fleet.identity import Identity, StagedIdentity
    from framegate.control.rotation.identity_files import IdentityFiles


class Identities:
    """Event loop only."""

    def __init__(self, supervisor: Supervisor, rotation: Rotation, meters: Meters, log: RowLog, task_monitor: TaskMonitor) -> None:
        self.identity: Identity | None = None  # the auth worker pool and its files; None: no listener or upstream uses SASL, or has used it
        self._files: IdentityFiles | None = None
        self._supervisor = supervisor
        self._rotation = rotation
        self._meters = meters
        self._log = log
        self._task_monitor = task_monitor

    @contextlib.asynccontextmanager
    async def changing(self) -> AsyncIterator[None]:
        """Take no changed files of users and keys, from ``stage`` to ``follow``: those that were read for ``stage`` may be older."""
        async with contextlib.nullcontext() if self._files is None else self._files.lock:
            yield

    async def revoked(self, staged: "StagedIdentity | None") -> dict[str, list[str]]:
        """The users whose connections are to end when another configuration is in force, by listener."""
        return {} if staged is None or self._files is None else await self._files.revoked(staged)

    async def stage(self, config: ProxyConfig) -> "StagedIdentity | None":
        """What another configuration needs; None: nothing. Errors as of ``Identity.stage``."""
        if self.identity is None:
            if all(listener.sasl is None for listener in config.listeners) and all(upstream.sasl is None for upstream in config.upstreams):
                return None
            from framegate.control.fleet.identity import Identity
            from framegate.control.rotation.identity_files import IdentityFiles

            desired = self._supervisor.desired
            self.identity = Identity(lambda: desired.endpoints, lambda: desired.stores, self._meters, self._log, self._task_monitor)
            self._files = IdentityFiles(self.identity, self._supervisor)
            self._supervisor.auth_requests = self.identity.auth_requests
        return await self.identity.stage(config)

    def follow(self, staged: "StagedIdentity | None") -> None:
        """Answer for another configuration, which is in force."""
        if staged is not None and self.identity is not None and self._files is not None:
            self.identity.follow(staged)
            self._files.follow(staged.contents, self._rotation)

    async def stop(self) -> None:
        if self.identity is not None:
            await self.identity.stop()
