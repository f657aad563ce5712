"""Files of users that are new are taken by who answers authenticators; what that is, ``control.fleet.identity`` tests."""

import asyncio
from pathlib import Path

from control.events import Bus
from control.files import Contents
from control.guard import Guard
from control.identity.files import IdentityFileError
from control.meters import Meters
from control.rotation.identity_files import identity_sources
from control.rotation.rotation import Rotation
from proxy.config.model import RotationConfig
from tests.fakes.fleet import MemoryLog


class Identity:
    """Takes everything but what says that it is bad."""

    def __init__(self, folder: Path) -> None:
        self.listeners = ("a", "h")
        self.path, self.keys = str(folder / "users"), str(folder / "jwks")
        self.taken: list[tuple[str, Contents]] = []

    def files(self, listener: str) -> dict[str, str]:
        return {"sasl": self.path, "jwks": self.keys} if listener == "a" else {"sasl": self.path}

    def take(self, listener: str, contents: Contents) -> None:
        for path, content in contents.items():
            if content == b"bad":
                raise IdentityFileError(path, "is no file of users: line 1: bad")
        self.taken.append((listener, contents))


def test_what_is_new_is_taken_for_each_listener_and_a_broken_file_keeps_no_other_back(tmp_path: Path) -> None:
    async def main() -> None:
        identity, log, meters = Identity(tmp_path), MemoryLog(), Meters()
        for name in ("users", "jwks"):
            (tmp_path / name).write_bytes(b"first")
        contents = {name: dict.fromkeys(identity.files(name).values(), b"first") for name in "ah"}
        sources = identity_sources(identity, contents)  # type: ignore[arg-type]
        assert [(source.owner, source.kind, source.paths) for source in sources] == [
            ("listener/a", "sasl", (identity.path,)),
            ("listener/a", "jwks", (identity.keys,)),
            ("listener/h", "sasl", (identity.path,)),
        ]
        rotation = Rotation(RotationConfig(), Bus((log,), on_failure=lambda error: None), meters, Guard(log, meters))
        for source in sources:
            rotation.watch(source)

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

    asyncio.run(main())
