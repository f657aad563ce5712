"""The users of listeners with SASL, listed and changed over the API: the file of users is changed with the same lock as by others, and then reloaded
like any watched file.
"""

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from framegate.control.errors import (
    AlreadyExistsError,
    ControlError,
    EtagError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
    Violation,
)
from framegate.control.fleet.supervisor import Supervisor
from framegate.control.rotation.rotation import Rotation
from framegate.control.status import UsersStatus, UserStatus
from framegate.control.steering.identities import Identities
from framegate.control.steering.listeners import find_listener
from framegate.control.steering.transactions import Changed, Transaction, Transactions, etag_of
from framegate.proxy.server.rows import listener_owner

if TYPE_CHECKING:
    from framegate.control.identity.users import Users as KnownUsers
    from framegate.control.identity.users_file import UsersFile
    from framegate.proxy.auth.auth_requests import ScramCredential

USER: Final = "user"  # the kind, for ``NotFoundError`` and others
_KIND: Final = "sasl"
_PATIENCE_S: Final = 5.0
_PAUSE_S: Final = 0.02  # between two tries while another process changes the file, which takes milliseconds


class Users:
    """Shows and changes the users of listeners. ``clock``: monotonic, in s."""

    def __init__(
        self,
        supervisor: Supervisor,
        transactions: Transactions,
        rotation: Rotation,
        identities: Identities,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._supervisor: Final = supervisor
        self._transactions: Final = transactions
        self._rotation: Final = rotation
        self._identities: Final = identities
        self._clock: Final = clock
        self._key: Final = os.urandom(16)
        self._listed: Final[dict[str, tuple[KnownUsers, tuple[UserStatus, ...]]]] = {}  # by listener, of the users that were in force then

    async def list(self, listener: str) -> UsersStatus:
        """The users in force of a listener. Raises NotFoundError: no such listener. FailedPreconditionError: it has no file of users
        (NO_USERS_FILE).
        """
        self._path(listener)
        assert self._identities.identity is not None, "a listener with a file of users has SASL"
        users = self._identities.identity.users(listener)
        known, statuses = self._listed.get(listener, (None, ()))
        if known is not users:
            statuses = await asyncio.to_thread(lambda: tuple(self._status(*item) for item in users.entries.items()))  # 10,000 take 100 ms
            self._listed[listener] = users, statuses
        refusal = self._rotation.refusal(listener_owner(listener), _KIND)
        return UsersStatus(users=statuses, error="" if refusal is None else str(refusal))

    async def put(
        self,
        listener: str,
        name: str,
        credentials: "Mapping[str, ScramCredential]",
        etag: str = "",
        *,
        create: bool,
        replace: bool,
        validate_only: bool = False,
    ) -> Changed[UserStatus | None]:
        """Write a user into a listener's file of users, with all its credentials, and reload the file in all listeners that use it.

        Args:
            credentials: the stored form of the password, by mechanism, validated (``framegate.control.identity.passwords.credential_faults``).
            etag: that of the user that the caller has seen; empty: any.
            create, replace: whether an unknown user is added, and a known one changed.
            validate_only: only check whether it could be done; nothing is written.

        Raises:
            EtagError: the user has changed. AlreadyExistsError: the user exists, without ``replace``. NotFoundError: no such listener, or no such
            user without ``create``.
            InvalidArgumentError: the name is not valid.
            FailedPreconditionError: there is no file of users (NO_USERS_FILE), it cannot be written (USERS_FILE_UNWRITABLE), or the listener's
            files are not valid (IDENTITY_FILES_REFUSED). UnavailableError: another process is changing the file (USERS_FILE_BUSY).
        """
        from framegate.control.identity.users_file import UserExistsError

        def edit(file: "UsersFile") -> None:
            if not create and name not in file.users:
                raise NotFoundError(USER, name)
            try:
                file.add(name, credentials, replace=replace)
            except UserExistsError:
                raise AlreadyExistsError(USER, name, "user.name") from None
            except ValueError as error:
                raise InvalidArgumentError([Violation("user.name", str(error))]) from None

        return await self._change(listener, name, edit, etag, validate_only=validate_only)

    async def delete(self, listener: str, name: str, etag: str = "", *, validate_only: bool = False) -> Changed[UserStatus | None]:
        """Remove a user from a listener's file. Its connections end unless ``close_revoked`` is false. Arguments and errors as ``put``."""
        from framegate.control.identity.users_file import UserUnknownError

        def edit(file: "UsersFile") -> None:
            try:
                file.remove(name)
            except UserUnknownError:
                raise NotFoundError(USER, name) from None

        return await self._change(listener, name, edit, etag, validate_only=validate_only)

    def _path(self, listener: str) -> str:
        """The path of a listener's file. Raises NotFoundError, FailedPreconditionError."""
        find_listener(self._supervisor.desired.config, listener)
        path = None if self._identities.identity is None else self._identities.identity.users_file(listener)
        if path is None:
            text = f"the listener {listener} has no file of users: the configuration needs listeners[].sasl.users"
            raise FailedPreconditionError(text, reason="NO_USERS_FILE", listener=listener)
        return path

    def _status(self, name: str, entry: "Mapping[str, ScramCredential]") -> UserStatus:
        secrets = [(mechanism, item.salt.hex(), item.iterations, item.stored_key.hex()) for mechanism, item in entry.items()]
        return UserStatus(name=name, mechanisms={mechanism: item.iterations for mechanism, item in entry.items()}, etag=etag_of(secrets, self._key))

    async def _change(
        self, listener: str, name: str, edit: "Callable[[UsersFile], None]", etag: str, *, validate_only: bool
    ) -> Changed[UserStatus | None]:
        path = self._path(listener)
        found: list[UserStatus | None] = []

        def checked(file: "UsersFile") -> None:
            before = self._status(name, entry) if (entry := file.users.get(name)) else None
            if etag and before is not None and etag != before.etag:
                raise EtagError(USER, name)
            edit(file)
            found[:] = [before, self._status(name, entry) if (entry := file.users.get(name)) else None]

        async def work(transaction: Transaction) -> Changed[UserStatus | None]:
            # First load changes that others have written: they will be part of the new file, which would be refused if they are not valid.
            await self._take(listener, path, "nothing was written")
            transaction.decide()  # the thread that writes cannot be stopped
            await self._edit(path, checked, validate_only=validate_only)
            changed = Changed(*found)
            if not validate_only:
                try:
                    await self._take(listener, path, "the file is written")
                except ControlError as error:
                    error.changed = changed
                    raise
            return changed

        return await self._transactions.run(f"{USER} {name} of {listener}", work)

    async def _edit(self, path: str, edit: "Callable[[UsersFile], None]", *, validate_only: bool) -> None:
        ends = self._clock() + _PATIENCE_S
        while True:
            try:
                await asyncio.to_thread(_edit_file, path, edit, validate_only)
                return
            except BlockingIOError:
                if self._clock() >= ends:
                    text = f"{path} has been changed by somebody else for {_PATIENCE_S:g} s"
                    raise UnavailableError(text, reason="USERS_FILE_BUSY", file=path) from None
            await asyncio.sleep(_PAUSE_S)

    async def _take(self, listener: str, path: str, so_far: str) -> None:
        """Reload the file in all listeners that use it."""
        owner = listener_owner(listener)
        for item in await self._rotation.reload(path):
            if item.owner == owner and item.result == "refused":
                text = f"{so_far}; what lies in the files of {owner} is not taken: {item.file} {item.reason}"
                raise FailedPreconditionError(text, reason="IDENTITY_FILES_REFUSED", listener=listener, file=item.file)


def _edit_file(path: str, edit: "Callable[[UsersFile], None]", validate_only: bool) -> None:
    """Change a file, or check whether it could be changed. Runs in a thread. Raises BlockingIOError: another process is changing it."""
    from framegate.control.identity.users_file import UsersFileError, changing, read_users

    folder = os.path.dirname(os.path.realpath(path))
    try:
        if validate_only:
            edit(read_users(path))
        else:
            with changing(path, wait=False) as file:
                edit(file)
    except BlockingIOError:
        raise
    except UsersFileError as error:
        text = str(error) if validate_only else f"nothing was written: {error}"
        raise FailedPreconditionError(text, reason="IDENTITY_FILES_REFUSED", file=path) from None
    except OSError as error:
        raise _unwritable(path, error.strerror or str(error)) from None
    if validate_only and not os.access(folder, os.W_OK):
        raise _unwritable(path, f"framegate may not write into {folder}")


def _unwritable(path: str, reason: str) -> FailedPreconditionError:
    return FailedPreconditionError(f"{path} cannot be written: {reason}", reason="USERS_FILE_UNWRITABLE", file=path)
