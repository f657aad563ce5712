"""The users of a running framegate, changed by itself: a real file, a real rotation, and who answers authenticators."""

import asyncio
import fcntl
import json
import os
import tempfile
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from framegate.control.errors import (
    AlreadyExistsError,
    ControlError,
    EtagError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
)
from framegate.control.events import Bus
from framegate.control.fleet.identity import Identity
from framegate.control.fleet.supervisor import Supervisor
from framegate.control.identity import users_file
from framegate.control.identity.passwords import new_credentials
from framegate.control.identity.users_file import changing, read_users
from framegate.control.meters import Meters
from framegate.control.rotation.identity_files import IdentityFiles
from framegate.control.rotation.rotation import Rotation
from framegate.control.status import UserStatus
from framegate.control.steering.identities import Identities
from framegate.control.steering.transactions import Transactions
from framegate.control.steering.users import Users
from framegate.control.task_monitor import TaskMonitor
from framegate.proxy.auth.auth_requests import Accepted, CheckPassword, ScramCredential
from framegate.proxy.config.model import ListenerConfig, ProxyConfig, RotationConfig
from framegate.proxy.config.sasl import ListenerSasl, TokenConfig
from framegate.proxy.server.messages import Change
from tests.fakes.fleet import MemoryLog
from tests.fakes.scenario import run_by
from tests.fakes.small_disk import read_only

FIRST, SECOND = (new_credentials(password, iterations=4096) for password in ("first", "second"))
MECHANISMS = {"SCRAM-SHA-256": 4096, "SCRAM-SHA-512": 4096}


class Rig:
    """Two listeners with the same file of users, ``jwks`` with tokens too, and one with tokens only; the clock of what waits is moved by hand."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "kept" / "users"
        self.path.parent.mkdir()
        self.jwks = folder / "jwks.json"
        self.jwks.write_text(JWKS)
        with changing(self.path) as file:
            file.add("bob", FIRST)
        tokens = TokenConfig(jwks=str(self.jwks), issuer="i", audience="a")
        sections = {
            "a": ListenerSasl(mechanisms=("PLAIN",), users=str(self.path)),
            "b": ListenerSasl(mechanisms=("PLAIN", "OAUTHBEARER"), users=str(self.path), tokens=tokens),
            "t": ListenerSasl(mechanisms=("OAUTHBEARER",), tokens=tokens),
        }
        listeners = [ListenerConfig(name=name, address="x", handler="m:h", protocol="kafka", sasl=sasl) for name, sasl in sections.items()]
        self.config = ProxyConfig(node="n", listeners=(*listeners, ListenerConfig(name="open", address="x", handler="m:h")), upstreams=())
        self.log, self.meters = MemoryLog(), Meters()
        task_monitor = TaskMonitor(self.log, self.meters)
        self.identity = Identity(dict, dict, self.meters, self.log, task_monitor)
        events = Bus((self.log,), on_failure=lambda error: None)
        self.rotation = Rotation(RotationConfig(), events, self.meters, task_monitor)
        self.now_s = 0.0
        self.changes: list[Change] = []
        self.supervisor = cast(Supervisor, SimpleNamespace(desired=SimpleNamespace(config=self.config), change=self._change))
        self.users = Users(
            self.supervisor,
            Transactions(Bus((self.log,), on_failure=lambda error: None), self.meters),
            self.rotation,
            cast(Identities, SimpleNamespace(identity=self.identity)),
            clock=lambda: self.now_s,
        )

    async def _change(self, build: Callable[[int], Change], commit: object) -> None:
        self.changes.append(build(0))

    async def put(self, name: str, credentials: dict[str, ScramCredential] = FIRST, listener: str = "a", **how: bool) -> UserStatus | None:
        given: dict[str, bool] = {"create": True, "replace": False, "validate_only": False, **how}
        return (await self.users.put(listener, name, credentials, **given)).after

    async def delete(self, name: str, *, validate_only: bool = False) -> None:
        await self.users.delete("a", name, validate_only=validate_only)

    def is_password(self, name: str, password: str, listener: str = "a") -> bool:
        return self.identity.users(listener).check(CheckPassword(name, password)) == Accepted(name)

    @property
    def written(self) -> list[str]:
        return list(read_users(self.path).users)


JWKS = json.dumps({"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": "k", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]})


def run(scenario: Callable[["Rig"], Awaitable[None]]) -> None:
    async def main(folder: Path) -> None:
        rig = Rig(folder)
        try:
            async with asyncio.timeout(20):
                staged = await rig.identity.stage(rig.config)
                rig.identity.follow(staged)
                IdentityFiles(rig.identity, rig.supervisor).follow(staged.contents, rig.rotation)
                await scenario(rig)
        finally:
            await rig.identity.stop()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder)))


async def refused(call: Awaitable[Any], kind: type[ControlError]) -> ControlError:
    with pytest.raises(kind) as caught:
        await call
    return caught.value


@run_by(run)
async def test_what_is_changed_is_written_and_in_force_at_every_listener_with_that_file(rig: Rig) -> None:
    made = await rig.put("alice")
    assert made is not None
    assert (made.name, made.mechanisms) == ("alice", MECHANISMS)
    assert made in (await rig.users.list("a")).users, "with its etag"
    assert (rig.is_password("alice", "first"), rig.is_password("alice", "first", "b"), rig.written) == (True, True, ["bob", "alice"])
    with pytest.raises(EtagError):
        await rig.users.put("a", "alice", SECOND, "beef", create=False, replace=True)
    before, after = await rig.users.put("a", "alice", SECOND, made.etag, create=False, replace=True)
    assert (before, after is not None and after.etag != made.etag) == (made, True)
    assert (rig.is_password("alice", "first"), rig.is_password("alice", "second")) == (False, True)
    await rig.put("carol", replace=True)
    status = await rig.users.list("b")
    assert ([user.name for user in status.users], status.users[0].mechanisms, status.error) == (["bob", "alice", "carol"], MECHANISMS, "")
    await rig.delete("alice")
    assert (rig.is_password("alice", "second"), rig.written) == (False, ["bob", "carol"])
    taken = [row["owner"] for row in rig.log.events("files_replaced")]
    assert taken == ["listener/a", "listener/b"] * 4
    gone = [{name: {"users": ["alice"], "serials": []}} for name in "ab"]
    assert [change["revoked"] for change in rig.changes] == gone * 2, "another password, then gone; nobody who came"
    assert (os.stat(rig.path).st_mode & 0o777, os.listdir(rig.path.parent)) == (0o600, ["users"])


@run_by(run)
async def test_invalid_changes_are_refused_and_change_nothing(rig: Rig) -> None:
    before = rig.path.read_bytes()
    await refused(rig.put("bob"), AlreadyExistsError)
    await refused(rig.put("alice", create=False, replace=True), NotFoundError)
    await refused(rig.delete("alice"), NotFoundError)
    await refused(rig.put("a\nb"), InvalidArgumentError)
    assert (await refused(rig.put("alice", listener="none"), NotFoundError)).metadata["kind"] == "listener"
    for name in ("t", "open"):
        assert (await refused(rig.put("alice", listener=name), FailedPreconditionError)).reason == "NO_USERS_FILE"
    assert (rig.path.read_bytes(), rig.log.rows) == (before, [])


@run_by(run)
async def test_validate_only_checks_and_does_not_write(rig: Rig) -> None:
    before = rig.path.read_bytes()
    assert (await rig.put("alice", validate_only=True)).name == "alice"
    await rig.put("bob", SECOND, create=False, replace=True, validate_only=True)
    await rig.delete("bob", validate_only=True)
    await refused(rig.put("bob", validate_only=True), AlreadyExistsError)
    await refused(rig.delete("alice", validate_only=True), NotFoundError)
    assert rig.path.read_bytes() == before


@run_by(run)
async def test_changes_at_the_same_time_lose_nothing_also_with_another_process(rig: Rig) -> None:
    def beside() -> None:
        for number in range(20):
            with changing(rig.path) as file:
                file.add(f"theirs-{number}", SECOND)

    thread = threading.Thread(target=beside)
    thread.start()
    await asyncio.gather(*(rig.put(f"ours-{number}") for number in range(20)))
    await asyncio.to_thread(thread.join)
    assert sorted(rig.written) == sorted(["bob", *(f"{who}-{number}" for who in ("ours", "theirs") for number in range(20))])
    assert all(rig.is_password(f"ours-{number}", "first") for number in (0, 19))


@run_by(run)
async def test_changes_that_others_wrote_before_are_kept(rig: Rig) -> None:
    with changing(rig.path) as file:
        file.add("theirs", SECOND)
    await rig.put("alice")
    assert rig.is_password("theirs", "second")


@run_by(run)
async def test_the_wait_for_a_file_that_another_process_changes_is_bounded(rig: Rig) -> None:
    folder = os.open(rig.path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        waiting = asyncio.ensure_future(rig.put("alice"))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        rig.now_s = 4.999
        await asyncio.sleep(0.1)
        assert not waiting.done()
        rig.now_s = 5.0
        error = await refused(waiting, UnavailableError)
        assert (error.reason, rig.written) == ("USERS_FILE_BUSY", ["bob"])
        waiting = asyncio.ensure_future(rig.put("alice"))
        await asyncio.sleep(0.1)
        fcntl.flock(folder, fcntl.LOCK_UN)
        assert (await waiting).name == "alice"
    finally:
        os.close(folder)


@run_by(run)
async def test_a_broken_file_is_an_error_and_is_not_changed(rig: Rig) -> None:
    broken = rig.path.read_text() + "alice canary-7f3a9c\n"
    rig.path.write_text(broken)
    error = await refused(rig.put("alice"), FailedPreconditionError)
    assert (error.reason, error.message) == (
        "IDENTITY_FILES_REFUSED",
        f"nothing was written; what lies in the files of listener/a is not taken: {rig.path} is no file of users: line 4: "
        "a line is NAME MECHANISM CREDENTIAL, with one space between them",
    )
    assert (rig.path.read_text(), rig.is_password("bob", "first")) == (broken, True)
    assert "line 4" in (await rig.users.list("a")).error
    assert [user.name for user in (await rig.users.list("a")).users] == ["bob"]


@run_by(run)
async def test_a_file_that_breaks_after_it_was_written_is_an_error_that_says_so(rig: Rig, *, monkeypatch: pytest.MonkeyPatch) -> None:
    replace = users_file._replace

    def and_break(*arguments: Any) -> None:
        replace(*arguments)
        rig.path.write_text("{")

    monkeypatch.setattr(users_file, "_replace", and_break)
    error = await refused(rig.put("alice", listener="b"), FailedPreconditionError)
    assert error.message.startswith("the file is written; what lies in the files of listener/b is not taken: ")
    assert not rig.is_password("alice", "first", "b")


@pytest.mark.parametrize("validate_only", [False, True])
@run_by(run)
async def test_a_file_system_that_cannot_be_written_is_named(rig: Rig, *, validate_only: bool) -> None:
    with read_only(rig.path.parent) as mounted:
        if not mounted:
            pytest.skip("mounting is not allowed here")
        error = await refused(rig.put("alice", validate_only=validate_only), FailedPreconditionError)
        assert error.reason == "USERS_FILE_UNWRITABLE"
        assert error.message.startswith(f"{rig.path} cannot be written: ")
        assert validate_only or "Read-only file system" in error.message
    assert rig.written == ["bob"]


@run_by(run)
async def test_a_call_that_is_cancelled_before_the_file_is_touched_changes_nothing(rig: Rig) -> None:
    async with rig.rotation._lock:  # it waits for a look that goes on
        call = asyncio.ensure_future(rig.put("alice"))
        await asyncio.sleep(0.05)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    await asyncio.sleep(0.1)
    assert rig.written == ["bob"]
    assert [row["result"] for row in rig.log.events("change_settled")] == ["taken back"]


@run_by(run)
async def test_a_change_that_is_cancelled_while_the_file_is_written_is_completed(rig: Rig, *, monkeypatch: pytest.MonkeyPatch) -> None:
    replace, reached, go_on = users_file._replace, threading.Event(), threading.Event()

    def slowly(*arguments: Any) -> None:
        reached.set()
        assert go_on.wait(10)
        replace(*arguments)

    monkeypatch.setattr(users_file, "_replace", slowly)
    call = asyncio.ensure_future(rig.put("alice"))
    await asyncio.to_thread(reached.wait, 10)
    call.cancel()
    assert rig.written == ["bob"]
    go_on.set()
    assert await call == (await rig.users.list("a")).users[1], "it has its result nevertheless"
    assert (rig.written, rig.is_password("alice", "first")) == (["bob", "alice"], True)
    assert [row["result"] for row in rig.log.events("change_settled")] == ["made"]


@run_by(run)
async def test_a_file_that_would_be_too_large_is_not_written(rig: Rig, *, monkeypatch: pytest.MonkeyPatch) -> None:
    await rig.put("alice")
    monkeypatch.setattr(users_file, "_MAX_FILE", rig.path.stat().st_size)
    error = await refused(rig.put("carol"), FailedPreconditionError)
    assert "would have more than" in error.message
    await rig.put("alice", SECOND, create=False, replace=True)
    assert (rig.written, rig.is_password("alice", "second")) == (["bob", "alice"], True)
