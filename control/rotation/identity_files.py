"""Reloads users and token keys. They apply to later authentications. Processors do not have them: control tells processors which users were removed
or have another password, and processors end the connections of these users.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

from framegate.control.errors import AbortedError, UnavailableError
from framegate.control.files import Contents, digest
from framegate.control.fleet.identity import Identity
from framegate.control.fleet.supervisor import Supervisor
from framegate.control.identity.auth_responder import MAX_BYTES, IdentityFileError
from framegate.control.identity.users import Users
from framegate.control.rotation.source import ContentReloader, Refusal, RefusedError, Reloader, Source
from framegate.proxy.server.messages import Change
from framegate.proxy.server.protocol import revoked_row
from framegate.proxy.server.rows import listener_owner

__all__ = ["IdentityFiles"]

USERS: Final = "sasl"
"""The kind of files of users; other kinds have keys of tokens."""


class IdentityFiles(Reloader):
    """Reloads the users files and token keys of all listeners with SASL. Event loop only.

    Args:
        contents: of the files at the start, by listener.
    """

    def __init__(self, identity: Identity, supervisor: Supervisor, contents: Mapping[str, Contents]) -> None:
        self._identity: Final = identity
        self._supervisor: Final = supervisor
        self._contents: Final = contents
        self._names: Final = {listener_owner(name): name for name in identity.listeners}
        self._closes: Final = {item.name for item in supervisor.desired.config.listeners if item.close_revoked}
        # By listener: the users of whom connections may be open, until those that are no more were ended.
        self._users: Final = {name: self._users_of(name) for name in identity.listeners}

    def sources(self) -> list[Source]:
        """The sources to watch: one for each file, so that a broken file does not delay another."""
        keys = ContentReloader(self._load)
        return [
            Source(
                owner=owner,
                kind=kind,
                paths=(path,),
                reloader=self if kind == USERS else keys,
                in_force=digest({path: self._contents[name][path]}),
                max_bytes=MAX_BYTES,
            )
            for owner, name in self._names.items()
            for kind, path in self._identity.files(name).items()
        ]

    async def take(self, found: Mapping[str, Contents]) -> dict[str, Refusal]:
        """See ``Reloader``. Contents are also refused when connections could not be ended; the rotation tries again."""
        refused = {}
        for owner, contents in found.items():
            name = self._names[owner]
            try:
                await asyncio.to_thread(self._identity.take, name, contents)
                await self._end_revoked(name)
            except IdentityFileError as error:
                refused[owner] = Refusal(error.path, error.reason)
            except AbortedError as error:
                refused[owner] = Refusal("", str(error))
        return refused

    async def _end_revoked(self, listener: str) -> None:
        """End the connections of users that are gone or have other passwords."""
        old, new = self._users[listener], self._users_of(listener)
        if old is not None and new is not None and listener in self._closes:
            names = await asyncio.to_thread(new.changed, old)
            if names:
                change = Change(revoked={listener: revoked_row(users=names)})
                try:
                    await self._supervisor.change(lambda slot: change, lambda desired: None)
                except UnavailableError as error:
                    if error.reason != "CHANGE_PENDING":
                        raise  # otherwise it is decided, as in ``TlsStores``
        self._users[listener] = new

    def _users_of(self, listener: str) -> Users | None:
        return None if self._identity.users_file(listener) is None else self._identity.users(listener)

    def _load(self, owner: str, found: Contents) -> None:
        """New keys of tokens."""
        try:
            self._identity.take(self._names[owner], found)
        except IdentityFileError as error:
            raise RefusedError(error.path, error.reason) from None
