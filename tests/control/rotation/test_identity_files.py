"""Files of users that are new are taken by who answers authenticators; what that is, ``framegate.control.fleet.identity`` tests."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace

from framegate.control.errors import AbortedError
from framegate.control.events import Bus
from framegate.control.files import Contents
from framegate.control.identity.auth_responder import IdentityFileError
from framegate.control.identity.users import Users
from framegate.control.identity.users_file import UsersFile
from framegate.control.meters import Meters
from framegate.control.rotation.identity_files import IdentityFiles
from framegate.control.rotation.rotation import Rotation
from framegate.control.rotation.source import Refusal
from framegate.control.task_monitor import TaskMonitor
from framegate.proxy.auth.scram import SCRAM_SHA_256
from framegate.proxy.config.model import ListenerConfig, ProxyConfig, RotationConfig
from framegate.proxy.server.messages import Change, RevokedRow
from tests.fakes.fleet import MemoryLog
from tests.fakes.handling import in_loop
from tests.fakes.sasl_frames import stored


class Identity:
    """Takes everything but what says that it is bad."""

    def __init__(self, folder: Path) -> None:
        self.listeners = ("a", "h")
        self.path, self.keys = str(folder / "users"), str(folder / "jwks")
        self.taken: list[tuple[str, Contents]] = []

    def files(self, listener: str) -> dict[str, str]:
        return {"sasl": self.path, "jwks": self.keys} if listener == "a" else {"sasl": self.path}

    def users_file(self, listener: str) -> str | None:
        return None

    def take(self, listener: str, contents: Contents) -> None:
        for path, content in contents.items():
            if content == b"bad":
                raise IdentityFileError(path, "is no file of users: line 1: bad")
        self.taken.append((listener, contents))


class Asked:
    """A supervisor that remembers changes, and may have a processor that refuses them."""

    def __init__(self, *, closes: bool = True) -> None:
        listeners = tuple(ListenerConfig(name=name, address="x", close_revoked=closes) for name in "ah")
        self.desired = SimpleNamespace(config=ProxyConfig(node="n", listeners=listeners, upstreams=()))
        self.changes: list[Change] = []
        self.refuses = False

    async def change(self, build: Callable[[int], Change], commit: object) -> None:
        if self.refuses:
            raise AbortedError("no processor has the change", reason="CHANGE_REFUSED")
        self.changes.append(build(0))


class People(Identity):
    """Has users, whose file has the name and password of each in a line."""

    def __init__(self) -> None:
        super().__init__(Path("/nowhere"))
        self.in_force = {name: self._read(b"alice one\nbob one\ncarol one") for name in self.listeners}

    def _read(self, text: bytes) -> Users:
        file = UsersFile()
        for line in text.decode().splitlines():
            name, _, password = line.partition(" ")
            credentials = {each: stored(each, password) for each in (SCRAM_SHA_256,)}
            file.add(name, credentials)
        return Users(file)

    def users_file(self, listener: str) -> str | None:
        return self.path

    def users(self, listener: str) -> Users:
        return self.in_force[listener]

    def take(self, listener: str, contents: Mapping[str, bytes]) -> None:
        self.in_force[listener] = self._read(contents[self.path])


def files_of(people: "People", asked: Asked) -> IdentityFiles:
    """Files whose contents are in force; nobody watches them."""
    made = IdentityFiles(people, asked)  # type: ignore[arg-type]
    made.follow({name: {people.path: b"", people.keys: b""} for name in people.listeners}, SimpleNamespace(watch=lambda source: None))  # type: ignore[arg-type]
    return made


def revoked(*names: str) -> Change:
    return Change(revoked={"a": RevokedRow(users=list(names), serials=[])})


@in_loop
async def test_who_is_gone_or_has_another_password_is_told_and_who_is_new_is_not() -> None:
    asked, people = Asked(), People()
    files = files_of(people, asked)

    async def take(text: str) -> dict[str, Refusal]:
        return await files.take({"listener/a": {people.path: text.encode()}})

    assert await take("alice one\nbob two\ndave one") == {}
    assert asked.changes == [revoked("bob", "carol")]
    assert await take("alice one\nbob two\ndave one\nerin one") == {}
    assert len(asked.changes) == 1
    asked.refuses = True
    assert await take("bob two\ndave one") == {"listener/a": Refusal("", "no processor has the change")}
    asked.refuses = False
    assert await take("bob two\nalice one") == {}
    assert asked.changes[1:] == [revoked("dave", "erin")], "alice is there again, as she was"
    assert await take("alice two") == {}
    assert asked.changes[2:] == [revoked("bob", "alice")]


@in_loop
async def test_where_connections_are_to_go_on_nobody_is_told() -> None:
    asked, people = Asked(closes=False), People()
    assert await files_of(people, asked).take({"listener/a": {people.path: b""}}) == {}
    assert asked.changes == []


@in_loop
async def test_what_is_new_is_taken_for_each_listener_and_a_broken_file_keeps_no_other_back(tmp_path: Path) -> None:
    identity, log, meters = Identity(tmp_path), MemoryLog(), Meters()
    for name in ("users", "jwks"):
        (tmp_path / name).write_bytes(b"first")
    contents = {name: dict.fromkeys(identity.files(name).values(), b"first") for name in "ah"}
    rotation = Rotation(RotationConfig(), Bus((log,), on_failure=lambda error: None), meters, TaskMonitor(log, meters))
    IdentityFiles(identity, Asked()).follow(contents, rotation)  # type: ignore[arg-type]
    assert [(*key, item.source.paths) for key, item in rotation._watched.items()] == [
        ("listener/a", "sasl", (identity.path,)),
        ("listener/a", "jwks", (identity.keys,)),
        ("listener/h", "sasl", (identity.path,)),
    ]

    async def reloaded() -> list[tuple[str, str, str]]:
        return [(item.owner, item.kind, item.result) for item in await rotation.reload()]

    def each(keys: str, users: str) -> list[tuple[str, str, str]]:
        return [("listener/a", "jwks", keys), ("listener/a", "sasl", users), ("listener/h", "sasl", users)]

    assert await reloaded() == each("unchanged", "unchanged")
    (tmp_path / "users").write_bytes(b"second")
    assert await reloaded() == each("unchanged", "replaced")
    assert identity.taken == [("a", {identity.path: b"second"}), ("h", {identity.path: b"second"})]
    (tmp_path / "users").write_bytes(b"bad")
    (tmp_path / "jwks").write_bytes(b"second")
    assert await reloaded() == each("replaced", "refused")
    assert identity.taken[2:] == [("a", {identity.keys: b"second"})]
    refusal = rotation.refusal("listener/a", "sasl")
    assert refusal is not None
    assert (refusal.file, refusal.reason) == (identity.path, "is no file of users: line 1: bad")
    assert rotation.refusal("listener/a", "jwks") is None
    assert meters.value("reload.count", "sasl", "refused") == 2
