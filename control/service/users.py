"""UserService."""

from framegate.control.events import Row
from framegate.control.identity.passwords import credential_faults
from framegate.control.identity.users_file import name_fault
from framegate.control.service.interceptor import Context, note
from framegate.control.service.validate import Violations, check_required, page, reason, required
from framegate.control.status import UserStatus
from framegate.control.steering import users as steering
from framegate.control.v1 import user_service_pb2 as pb2
from framegate.control.v1.user_service_pb2_grpc import UserServiceServicer
from framegate.proxy.auth.auth_requests import ScramCredential
from framegate.proxy.auth.scram import HASHES

__all__ = ["Users"]


class Users(UserServiceServicer):
    """Shows and changes users with passwords. No answer, error or audit row has anything of a stored credential but its mechanism and iterations."""

    def __init__(self, users: steering.Users) -> None:
        self._users = users

    async def ListUsers(self, request: pb2.ListUsersRequest, context: Context) -> pb2.ListUsersResponse:
        check_required(request.listener, "listener")
        status = await self._users.list(request.listener)
        chosen, token = page([(user.name, user) for user in status.users], request.page_size, request.page_token)
        return pb2.ListUsersResponse(users=map(_user, chosen), next_page_token=token, error=status.error)

    async def CreateUser(self, request: pb2.CreateUserRequest, context: Context) -> pb2.CreateUserResponse:
        return pb2.CreateUserResponse(user=await self._put(request, create=True, replace=False))

    async def UpdateUser(self, request: pb2.UpdateUserRequest, context: Context) -> pb2.UpdateUserResponse:
        return pb2.UpdateUserResponse(user=await self._put(request, create=request.allow_missing, replace=True))

    async def _put(self, request: pb2.CreateUserRequest | pb2.UpdateUserRequest, *, create: bool, replace: bool) -> pb2.User:
        credentials, name, validate_only = _check(request), request.user.name, request.validate_only
        await self._note_before(request.listener, name)
        user = await self._users.put(request.listener, name, credentials, create=create, replace=replace, validate_only=validate_only)
        if not validate_only:
            note(after=_row(user))
        return _user(user)

    async def DeleteUser(self, request: pb2.DeleteUserRequest, context: Context) -> pb2.DeleteUserResponse:
        violations = Violations()
        required(request.listener, "listener", violations)
        required(request.name, "name", violations)
        reason(request.reason, violations)
        violations.check()
        await self._note_before(request.listener, request.name)
        await self._users.delete(request.listener, request.name, validate_only=request.validate_only)
        return pb2.DeleteUserResponse()

    async def _note_before(self, listener: str, name: str) -> None:
        """Note the user before the change, if it exists, for the audit row."""
        found = next((user for user in (await self._users.list(listener)).users if user.name == name), None)
        note(before=None if found is None else _row(found))


def _check(request: pb2.CreateUserRequest | pb2.UpdateUserRequest) -> dict[str, ScramCredential]:
    """The credentials of a request; raises InvalidArgumentError if anything in it is wrong."""
    violations = Violations()
    required(request.listener, "listener", violations)
    reason(request.reason, violations)
    fault = name_fault(request.user.name)
    if fault is not None:
        violations.add("user.name", f"cannot be: {fault}")
    found: dict[str, ScramCredential] = {}
    for place, item in enumerate(request.user.credentials):
        field = f"user.credentials[{place}]"
        if item.mechanism not in HASHES:
            violations.add(f"{field}.mechanism", f"must be one of {', '.join(HASHES)}")
            continue
        if item.mechanism in found:
            violations.add(f"{field}.mechanism", f"is {item.mechanism}, as that of another one is")
        found[item.mechanism] = ScramCredential(item.salt, item.iterations, item.stored_key, item.server_key)
        for name, what in credential_faults(item.mechanism, found[item.mechanism]):
            violations.add(f"{field}.{name}", what)
    if not request.user.credentials:
        violations.add("user.credentials", "is required")
    violations.check()
    return found


def _row(user: UserStatus) -> Row:
    return {"name": user.name, "mechanisms": dict(user.mechanisms)}


def _user(status: UserStatus) -> pb2.User:
    credentials = [pb2.Credential(mechanism=mechanism, iterations=iterations) for mechanism, iterations in status.mechanisms.items()]
    return pb2.User(name=status.name, credentials=credentials)
