"""UserService over a real socket: what is judged, what is shown, and what is in no answer and no row."""

import base64
import json

import grpc
import pytest
from google.protobuf.field_mask_pb2 import FieldMask

from framegate.control.errors import FailedPreconditionError
from framegate.control.identity.passwords import new_credentials
from framegate.control.v1 import user_service_pb2 as pb2
from tests.control.service.served import code_of, failure_of, refused, served
from tests.fakes.serving import Serving

KEYS = {"SCRAM-SHA-256": 32, "SCRAM-SHA-512": 64}
NUMBERS = {"SCRAM-SHA-256": pb2.SCRAM_MECHANISM_SHA_256, "SCRAM-SHA-512": pb2.SCRAM_MECHANISM_SHA_512}


def credential(mechanism: str = "SCRAM-SHA-256", **changes: object) -> pb2.Credential:
    size = KEYS.get(mechanism, 32)
    number = NUMBERS.get(mechanism, 9)
    fields = {"mechanism": number, "iterations": 4096, "salt": b"s" * 16, "stored_key": b"K" * size, "server_key": b"V" * size, **changes}
    return pb2.Credential(**fields)


def user(name: str = "alice", *credentials: pb2.Credential) -> pb2.User:
    return pb2.User(name=name, credentials=credentials or (credential(), credential("SCRAM-SHA-512")))


def with_users(at: Serving, *names: str) -> None:
    at.plane.users = {"kafka": {name: new_credentials("canary", iterations=4096) for name in names}}


@served()
async def test_users_are_listed_by_pages_with_mechanisms_and_without_keys(at: Serving) -> None:
    with_users(at, "alice", "bob", "carol")
    at.plane.users_error = "/users is no file of users"
    first = await at.api.ListUsers(pb2.ListUsersRequest(listener="kafka", page_size=2))
    rest = await at.api.ListUsers(pb2.ListUsersRequest(listener="kafka", page_token=first.next_page_token))
    assert [[item.name for item in page.users] for page in (first, rest)] == [["alice", "bob"], ["carol"]]
    assert (rest.next_page_token, first.error) == ("", "/users is no file of users")
    expected = [pb2.Credential(mechanism=NUMBERS[name], iterations=4096) for name in KEYS]
    assert list(first.users[0].credentials) == expected, "neither salt nor keys"


@served()
async def test_users_are_created_updated_and_deleted(at: Serving) -> None:
    with_users(at)
    answer = await at.api.CreateUser(pb2.CreateUserRequest(listener="kafka", user=user()))
    assert answer.user == pb2.User(
        name="alice", etag=answer.user.etag, credentials=[pb2.Credential(mechanism=NUMBERS[name], iterations=4096) for name in KEYS]
    )
    assert at.plane.users["kafka"]["alice"]["SCRAM-SHA-512"].stored_key == b"K" * 64
    stale = pb2.User(name="alice", credentials=[credential()], etag="beef")
    assert await code_of(at.api.UpdateUser(pb2.UpdateUserRequest(listener="kafka", user=stale))) is grpc.StatusCode.ABORTED
    assert await code_of(at.api.DeleteUser(pb2.DeleteUserRequest(listener="kafka", name="alice", etag="beef"))) is grpc.StatusCode.ABORTED
    masked = pb2.UpdateUserRequest(listener="kafka", user=user(), update_mask=FieldMask(paths=["name"]))
    assert (await refused(at.api.UpdateUser(masked)))[2] == ["update_mask"]
    changed = pb2.User(name="alice", credentials=[credential(iterations=16384)], etag=answer.user.etag)
    await at.api.UpdateUser(pb2.UpdateUserRequest(listener="kafka", user=changed))
    assert {name: item.iterations for name, item in at.plane.users["kafka"]["alice"].items()} == {"SCRAM-SHA-256": 16384}
    await at.api.UpdateUser(pb2.UpdateUserRequest(listener="kafka", user=user("bob"), allow_missing=True))
    await at.api.DeleteUser(pb2.DeleteUserRequest(listener="kafka", name="alice"))
    assert list(at.plane.users["kafka"]) == ["bob"]


@served()
async def test_a_request_with_validate_only_changes_nothing(at: Serving) -> None:
    with_users(at, "bob")
    answer = await at.api.CreateUser(pb2.CreateUserRequest(listener="kafka", user=user(), validate_only=True))
    assert answer.user.name == "alice"
    await at.api.UpdateUser(pb2.UpdateUserRequest(listener="kafka", user=user("bob", credential()), validate_only=True))
    await at.api.DeleteUser(pb2.DeleteUserRequest(listener="kafka", name="bob", validate_only=True))
    assert list(at.plane.users["kafka"]) == ["bob"]
    assert len(at.plane.users["kafka"]["bob"]) == 2
    assert [row["after"] for row in at.plane.audits] == [None, None, None]


@served()
async def test_the_audit_names_users_and_mechanisms_and_has_nothing_of_the_keys(at: Serving) -> None:
    with_users(at)
    await at.api.CreateUser(pb2.CreateUserRequest(listener="kafka", user=user(), reason="new colleague"))
    await at.api.UpdateUser(pb2.UpdateUserRequest(listener="kafka", user=user("alice", credential())))
    await at.api.DeleteUser(pb2.DeleteUserRequest(listener="kafka", name="alice"))
    both, one = ({"name": "alice", "mechanisms": dict.fromkeys(names, 4096)} for names in (KEYS, ["SCRAM-SHA-256"]))
    assert [(row["before"], row["after"]) for row in at.plane.audits] == [(None, both), (both, one), (one, None)]
    assert at.plane.audits[0]["request"] == {
        "listener": "kafka",
        "user": {"name": "alice", "credentials": [{"mechanism": pb2.ScramMechanism.Name(NUMBERS[name]), "iterations": 4096} for name in KEYS]},
        "reason": "new colleague",
    }
    written = json.dumps(at.plane.audits)
    for secret in (b"s" * 16, b"K" * 32, b"V" * 32):
        assert base64.b64encode(secret).decode()[:-4] not in written
        assert secret.decode() not in written


FAULTS = [
    (pb2.CreateUserRequest(user=user()), ["listener"]),
    (pb2.CreateUserRequest(listener="kafka"), ["user.name", "user.credentials"]),
    (pb2.CreateUserRequest(listener="kafka", user=user("a\nb")), ["user.name"]),
    (pb2.CreateUserRequest(listener="kafka", user=user("x" * 256)), ["user.name"]),
    (pb2.CreateUserRequest(listener="kafka", user=user("a", credential("PLAIN"))), ["user.credentials[0].mechanism"]),
    (pb2.CreateUserRequest(listener="kafka", user=user("a", credential(), credential())), ["user.credentials[1].mechanism"]),
    (pb2.CreateUserRequest(listener="kafka", user=user("a", credential(salt=b"1234567"))), ["user.credentials[0].salt"]),
    (pb2.CreateUserRequest(listener="kafka", user=user("a", credential(salt=bytes(1025)))), ["user.credentials[0].salt"]),
    (pb2.CreateUserRequest(listener="kafka", user=user("a", credential(stored_key=b"K" * 31))), ["user.credentials[0].stored_key"]),
    (pb2.CreateUserRequest(listener="kafka", user=user("a", credential(server_key=b"K" * 33))), ["user.credentials[0].server_key"]),
]


@pytest.mark.parametrize(("request_", "fields"), FAULTS, ids=[" ".join(fields) for _, fields in FAULTS])
@served()
async def test_every_wrong_field_of_a_user_is_named(at: Serving, request_: pb2.CreateUserRequest, fields: list[str]) -> None:
    with_users(at)
    for call in (at.api.CreateUser(request_), at.api.UpdateUser(pb2.UpdateUserRequest(listener=request_.listener, user=request_.user))):
        assert await refused(call) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT", fields)
    assert at.plane.users == {"kafka": {}}
    assert "KKKK" not in str(await failure_of(at.api.CreateUser(request_)))


@served()
async def test_errors_of_users_have_their_own_codes_and_reasons(at: Serving) -> None:
    with_users(at, "alice")
    create, delete = pb2.CreateUserRequest(listener="kafka", user=user()), pb2.DeleteUserRequest(listener="kafka", name="bob")
    unwritable = FailedPreconditionError("/users cannot be written: Read-only file system", reason="USERS_FILE_UNWRITABLE", file="/users")
    for call, code, reason in (
        (at.api.CreateUser(create), grpc.StatusCode.ALREADY_EXISTS, "USER_EXISTS"),
        (at.api.UpdateUser(pb2.UpdateUserRequest(listener="kafka", user=user("bob"))), grpc.StatusCode.NOT_FOUND, "USER_NOT_FOUND"),
        (at.api.DeleteUser(delete), grpc.StatusCode.NOT_FOUND, "USER_NOT_FOUND"),
        (at.api.ListUsers(pb2.ListUsersRequest(listener="none")), grpc.StatusCode.NOT_FOUND, "LISTENER_NOT_FOUND"),
        (at.api.DeleteUser(pb2.DeleteUserRequest(listener="none", name="a")), grpc.StatusCode.NOT_FOUND, "LISTENER_NOT_FOUND"),
    ):
        assert await refused(call) == (code, reason, [])
    at.plane.users = {}
    assert await refused(at.api.CreateUser(create)) == (grpc.StatusCode.FAILED_PRECONDITION, "NO_USERS_FILE", [])
    at.plane.users, at.plane.failure = {"kafka": {"bob": {}}}, unwritable
    assert await refused(at.api.DeleteUser(delete)) == (grpc.StatusCode.FAILED_PRECONDITION, "USERS_FILE_UNWRITABLE", [])
    assert [row["error"] for row in at.plane.audits][-2:] == ["NO_USERS_FILE", "USERS_FILE_UNWRITABLE"]
