"""A second framegate on what the first one holds: refused with the reason, and the first is not harmed."""

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.framegate import Framegate, Witness


@pytest.mark.slow
def test_a_second_instance_is_refused_and_the_first_goes_on(tmp_path: Path, plain: dict[str, Any]) -> None:
    """Number 173: a listener that cannot be bound fails the start as a whole."""
    tap = {"directory": str(tmp_path / "tap"), "rules": [{"name": "all"}]}
    admin = {"address": f"unix:{tmp_path}/admin.sock"}
    with Framegate(tmp_path / "first", {**plain, "admin": admin, "tap": tap}) as first, Witness(first, "plain") as witness:
        taken = {**plain["listeners"][0], "address": first.serving["listeners"]["plain"]}
        for name, config, word in (
            ("admin", {"admin": admin}, "another framegate serves the admin socket"),
            ("tap", {"tap": tap}, f"another framegate (process {first.process.pid}) uses the tap directory"),
            ("port", {"listeners": [taken]}, "listener plain cannot bind"),
        ):
            second = Framegate(tmp_path / name, {**plain, **config}, wait=False)
            assert second.wait() == 1
            assert word in second.errors
            assert [row["event"] for row in second.rows][-1] == "start_failed"
            witness.check()
        assert first.cli("channels", "list", "--output", "json").returncode == 0


@pytest.mark.slow
def test_sockets_that_a_killed_instance_left_behind_are_replaced(tmp_path: Path, plain: dict[str, Any]) -> None:
    for name in ("admin.sock", "data.sock"):
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(tmp_path / name))
    listeners = [*plain["listeners"], {**plain["listeners"][0], "name": "data", "address": "unix:data.sock"}]
    with Framegate(tmp_path, {**plain, "listeners": listeners}) as proxy, Witness(proxy, "plain") as witness:
        witness.check()
        assert oct(os.stat(tmp_path / "admin.sock").st_mode & 0o777) == "0o600"
    assert not (tmp_path / "admin.sock").exists()
    assert not (tmp_path / "data.sock").exists()
