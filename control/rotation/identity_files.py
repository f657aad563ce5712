"""Reloads users and token keys. They apply to later authentications. Processors do not have them: control tells processors which users were removed
or have another password, and processors end the connections of these users.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from framegate.control.errors import AbortedError, UnavailableError
from framegate.control.files import Contents, digest
from framegate.control.fleet.identity import Identity, StagedIdentity
from framegate.control.fleet.supervisor import Supervisor
from framegate.control.identity.auth_responder import MAX_BYTES, IdentityFileError
from framegate.control.identity.users import Users
from framegate.control.rotation.rotation import Rotation
from framegate.control.rotation.source import Refusal, RefusedError, Reloader, Source
from framegate.proxy.config.model import ProxyConfig
from framegate.proxy.server.credentials import listener_auth_queue
from framegate.proxy.server.messages import Change
from framegate.proxy.server.protocol import revoked_row
from framegate.proxy.server.rows import listener_owner

USERS: Final = "sasl"  # the kind of files of users; other kinds have keys of tokens


class TokenKeys(Reloader):
    """Token keys, put in force with a lock held. ``load``: takes what is in the files of an owner, in a thread; a RefusedError says why it cannot."""

    def __init__(self, load: Callable[[str, Contents], None], lock: asyncio.Lock) -> None:
        self._load: Final = load
        self._lock: Final = lock

    async def take(self, found: Mapping[str, Contents]) -> dict[str, Refusal]:
        refused = {}
        async with self._lock:
            for owner, contents in found.items():
                try:
                    await asyncio.to_thread(self._load, owner, contents)
                except RefusedError as error:
                    refused[owner] = error.refusal
        return refused


class IdentityFiles(Reloader):
    """Reloads the users files and token keys of all listeners with SASL, after ``follow``. Event loop only."""

    def __init__(self, identity: Identity, supervisor: Supervisor) -> None:
        self._identity: Final = identity
        self._supervisor: Final = supervisor
        # held while users are put in force, here or together with a configuration, so that older ones do not replace newer ones
        self.lock: Final = asyncio.Lock()
        self._keys: Final = TokenKeys(self._load, self.lock)
        self._names: dict[str, str] = {}
        # By listener: the users of whom connections may be open, until those that are no more were ended.
        self._users: dict[str, Users | None] = {}
        self._watched: dict[tuple[str, str], str] = {}  # paths, by owner and kind

    def follow(self, contents: Mapping[str, Contents], rotation: Rotation) -> None:
        """Watch the files of all listeners with SASL: each alone, so that a broken file does not delay another. ``contents``: of listeners that are
        new, or use other files, by listener.
        """
        names = self._identity.listeners
        self._names = {listener_owner(name): name for name in names}
        self._users = {name: self._users_of(name) if name in contents else self._users[name] for name in names}
        before, self._watched = (
            self._watched,
            {(owner, kind): path for owner, name in self._names.items() for kind, path in self._identity.files(name).items()},
        )
        for owner, kind in before.keys() - self._watched.keys():
            rotation.forget(owner, kind)
        for (owner, kind), path in self._watched.items():
            if self._names[owner] in contents:
                rotation.watch(self._source(owner, kind, path, contents[self._names[owner]]))

    def _source(self, owner: str, kind: str, path: str, contents: Contents) -> Source:
        return Source(
            owner=owner,
            kind=kind,
            paths=(path,),
            reloader=self if kind == USERS else self._keys,
            in_force=digest({path: contents[path]}),
            max_bytes=MAX_BYTES,
        )

    async def take(self, found: Mapping[str, Contents]) -> dict[str, Refusal]:
        """See ``Reloader``. Contents are also refused when connections could not be ended; the rotation tries again."""
        refused = {}
        for owner, contents in found.items():
            name = self._names.get(owner, "")
            try:
                async with self.lock:
                    if not self._has(owner, contents):
                        continue
                    await asyncio.to_thread(self._identity.take, name, contents)
                    await self._end_revoked(name)
            except IdentityFileError as error:
                refused[owner] = Refusal(error.path, error.reason)
            except AbortedError as error:
                refused[owner] = Refusal("", str(error))
        return refused

    async def _end_revoked(self, listener: str) -> None:
        """End the connections of users that are gone or have other passwords."""
        new = self._users_of(listener)
        names = await self._revoked(self._supervisor.desired.config, listener, new)
        if names:
            change = Change(revoked={listener: revoked_row(users=names)})
            try:
                await self._supervisor.change(lambda slot: change, lambda desired: None)
            except UnavailableError as error:
                if error.reason != "CHANGE_PENDING":
                    raise  # otherwise it is decided, as in ``TlsStores``
        self._users[listener] = new

    async def _revoked(self, config: ProxyConfig, listener: str, new: Users | None) -> list[str]:
        """The users whose connections are to end when a listener has these users."""
        old = self._users.get(listener)
        closes = any(item.close_revoked for item in config.listeners if item.name == listener)
        return await asyncio.to_thread(new.changed, old) if closes and old is not None and new is not None else []

    async def revoked(self, staged: StagedIdentity) -> dict[str, list[str]]:
        """The users whose connections are to end when another configuration is in force, by listener. Call it with ``lock`` held."""
        found = {name: await self._revoked(staged.config, name, staged.answers[listener_auth_queue(name)].users) for name in staged.contents}
        return {name: users for name, users in found.items() if users}

    def _users_of(self, listener: str) -> Users | None:
        return None if self._identity.users_file(listener) is None else self._identity.users(listener)

    def _has(self, owner: str, contents: Contents) -> bool:
        """Whether a listener still has these files: a configuration may have been applied since they were read."""
        return owner in self._names and contents.keys() <= set(self._identity.files(self._names[owner]).values())

    def _load(self, owner: str, found: Contents) -> None:
        if not self._has(owner, found):
            return
        try:
            self._identity.take(self._names[owner], found)
        except IdentityFileError as error:
            raise RefusedError(error.path, error.reason) from None
