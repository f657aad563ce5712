"""Files of users that are new are taken by who answers authenticators; what that is, ``control.fleet.identity`` tests."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

from control.events import Bus
from control.guard import Guard
from control.identity.files import IdentityFileError
from control.meters import Meters
from control.rotation.identity_files import identity_sources
from control.rotation.rotation import Rotation
from proxy.config.model import RotationConfig
from tests.fakes.fleet import MemoryLog


class Identity:
    """Takes everything but what says that it is bad."""

    def __init__(self, path: Path) -> None:
        self.listeners = ("a", "h")
        self.path = str(path)
        self.taken: list[tuple[str, bytes]] = []

    def files(self, listener: str) -> tuple[str, ...]:
        return (self.path,)

    def take(self, listener: str, contents: Mapping[str, bytes]) -> None:
        if contents[self.path] == b"bad":
            raise IdentityFileError(self.path, "is no file of users: line 1: bad")
        self.taken.append((listener, contents[self.path]))


def test_what_is_new_is_taken_for_each_listener_and_what_is_none_changes_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        identity, log, meters = Identity(tmp_path / "users"), MemoryLog(), Meters()
        (tmp_path / "users").write_bytes(b"first")
        sources = identity_sources(identity, {name: {identity.path: b"first"} for name in "ah"})  # type: ignore[arg-type]
        assert [(source.owner, source.kind, source.paths) for source in sources] == [
            ("listener/a", "sasl", (identity.path,)),
            ("listener/h", "sasl", (identity.path,)),
        ]
        rotation = Rotation(RotationConfig(), Bus((log,), on_failure=lambda error: None), meters, Guard(log, meters))
        for source in sources:
            rotation.watch(source)
        assert [item.result for item in await rotation.reload()] == ["unchanged", "unchanged"]
        (tmp_path / "users").write_bytes(b"second")
        assert [item.result for item in await rotation.reload()] == ["replaced", "replaced"]
        assert identity.taken == [("a", b"second"), ("h", b"second")]
        (tmp_path / "users").write_bytes(b"bad")
        refused = [(item.result, item.file, item.reason) for item in await rotation.reload()]
        assert refused == [("refused", identity.path, "is no file of users: line 1: bad")] * 2
        assert len(identity.taken) == 2
        assert meters.value("reload.count", "sasl", "refused") == 2

    asyncio.run(main())
