"""UserService."""

from typing import Any, Final

from framegate.control.events import Row
from framegate.control.identity.passwords import credential_faults
from framegate.control.identity.users_file import name_fault
from framegate.control.service.interceptor import Context
from framegate.control.service.update import Resource, audited
from framegate.control.service.validate import Violations, check_required, page, required
from framegate.control.status import UserStatus
from framegate.control.steering import users as steering
from framegate.control.v1 import user_service_pb2 as pb2
from framegate.control.v1.user_service_pb2_grpc import UserServiceServicer
from framegate.proxy.auth.auth_requests import ScramCredential
from framegate.proxy.auth.scram import SCRAM_SHA_256, SCRAM_SHA_512

MECHANISMS: Final = {pb2.SCRAM_MECHANISM_SHA_256: SCRAM_SHA_256, pb2.SCRAM_MECHANISM_SHA_512: SCRAM_SHA_512}
USER: Final = Resource(
    pb2.User, UserStatus, "user", key="name", fixed=("etag",), readers={"credentials": ("credentials", lambda message, path, violations: None)}
)


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
        credentials, user, validate_only = _check(request, masked=replace), request.user, request.validate_only
        call = self._users.put(request.listener, user.name, credentials, user.etag, create=create, replace=replace, validate_only=validate_only)
        after = await audited(call, _row, validate_only=validate_only)
        assert after is not None, "there is a user who was written"
        return _user(after)

    async def DeleteUser(self, request: pb2.DeleteUserRequest, context: Context) -> pb2.DeleteUserResponse:
        violations = Violations()
        required(request.listener, "listener", violations)
        required(request.name, "name", violations)
        violations.check()
        call = self._users.delete(request.listener, request.name, request.etag, validate_only=request.validate_only)
        await audited(call, _row, validate_only=request.validate_only)
        return pb2.DeleteUserResponse()


def _check(request: Any, *, masked: bool) -> dict[str, ScramCredential]:
    """The credentials of a request; raises InvalidArgumentError if anything in it is wrong."""
    violations = Violations()
    required(request.listener, "listener", violations)
    if masked:
        USER.paths(request.user, request.update_mask, violations)
    fault = name_fault(request.user.name)
    if fault is not None:
        violations.add("user.name", f"cannot be: {fault}")
    found: dict[str, ScramCredential] = {}
    for place, item in enumerate(request.user.credentials):
        field = f"user.credentials[{place}]"
        mechanism = MECHANISMS.get(item.mechanism)
        if mechanism is None:
            violations.add(f"{field}.mechanism", f"must be one of {', '.join(map(pb2.ScramMechanism.Name, MECHANISMS))}")
            continue
        if mechanism in found:
            violations.add(f"{field}.mechanism", f"is {mechanism}, as that of another one is")
        found[mechanism] = ScramCredential(item.salt, item.iterations, item.stored_key, item.server_key)
        for name, what in credential_faults(mechanism, found[mechanism]):
            violations.add(f"{field}.{name}", what)
    if not request.user.credentials:
        violations.add("user.credentials", "is required")
    violations.check()
    return found


def _row(user: UserStatus | None) -> Row | None:
    return None if user is None else {"name": user.name, "mechanisms": dict(user.mechanisms)}


def _user(status: UserStatus) -> pb2.User:
    numbers = {word: number for number, word in MECHANISMS.items()}
    credentials = [pb2.Credential(mechanism=numbers[mechanism], iterations=iterations) for mechanism, iterations in status.mechanisms.items()]
    return pb2.User(name=status.name, credentials=credentials, etag=status.etag)
