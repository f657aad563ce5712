"""What this machine gives: tried with real folders, files, sockets and addresses."""

import fcntl
import os
import pathlib
import socket
import stat
import tempfile
from collections.abc import Iterator

import pytest

from framegate.control.configuration.places import (
    bind_fault,
    folder_fault,
    is_served,
    lock_fault,
    lock_holder,
    socket_fault,
    tap_bytes,
)
from framegate.control.tap.directory_lock import DirectoryLock
from framegate.proxy.config.address import parse_address
from framegate.proxy.tap.record import LOCK_NAME
from tests.fakes.privileges import unprivileged


@pytest.fixture
def shared() -> Iterator[pathlib.Path]:
    """A folder that every user can look into."""
    with tempfile.TemporaryDirectory() as text:
        os.chmod(text, 0o755)
        yield pathlib.Path(text)


def test_a_folder_that_this_user_cannot_write_is_named_with_the_reason(shared: pathlib.Path) -> None:
    shared.chmod(0o555)
    with unprivileged():
        reason = folder_fault(str(shared / "a" / "b"))
        assert socket_fault(str(shared / "a" / "b.sock")) == reason
        groups = ", ".join(map(str, sorted({os.getegid(), *os.getgroups()})))
        owner = shared.stat()
        assert reason == (
            f"{shared} is not writable: Permission denied; it is of user {owner.st_uid} and group {owner.st_gid}, mode 0555, and framegate is user "
            f"{os.geteuid()} of the groups {groups}: give it to one of them (of a pod's volume: securityContext.fsGroup)"
        )
    shared.chmod(0)
    with unprivileged():
        assert str(folder_fault(str(shared / "a" / "b"))).startswith(f"{shared} is not writable: Permission denied; ")
    shared.chmod(0o755)


def test_not_even_root_can_write_everywhere() -> None:
    assert str(folder_fault("/proc/none")).startswith("/proc is not writable: ")


def test_a_path_is_free_for_a_socket_unless_a_file_lies_there(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("")
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "left.sock"))
    assert socket_fault(str(tmp_path / "new.sock")) is None
    assert socket_fault(str(tmp_path / "left.sock")) is None
    assert socket_fault(str(tmp_path / "file")) == "a file that is no socket is in the way"
    assert socket_fault(str(tmp_path)) == "a file that is no socket is in the way"
    assert socket_fault(str(tmp_path / "file" / "s")) == f"{tmp_path}/file is not a directory"
    assert str(socket_fault(str(tmp_path / ("x" * 300)))).startswith("File name too long")
    assert stat.S_ISSOCK((tmp_path / "left.sock").stat().st_mode)


def test_who_listens_and_takes_nobody_in_is_there_all_the_same(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("framegate.control.configuration.places._PROBE_S", 0.02)
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as waiting:
        server.bind(str(tmp_path / "s"))
        server.listen(0)
        waiting.connect(str(tmp_path / "s"))
        assert is_served(str(tmp_path / "s"))


def test_a_lock_file_that_cannot_be_opened_is_named(tmp_path: pathlib.Path, shared: pathlib.Path) -> None:
    assert lock_fault(str(tmp_path / "none")) is None
    (tmp_path / "folder").mkdir()
    assert lock_fault(str(tmp_path / "folder")) == f"its lock file {tmp_path}/folder cannot be opened: Is a directory"
    (tmp_path / "link").symlink_to(tmp_path / "none")
    assert "cannot be opened: Too many levels of symbolic links" in str(lock_fault(str(tmp_path / "link")))
    (shared / "lock").write_text("")
    (shared / "lock").chmod(0o400)
    with unprivileged():
        assert lock_fault(str(shared / "lock")) == f"its lock file {shared}/lock cannot be opened: Permission denied"


def test_the_holder_of_a_lock_is_told_and_nobody_is_kept_from_it(tmp_path: pathlib.Path) -> None:
    lock = tmp_path / LOCK_NAME
    assert lock_holder(str(lock)) is None
    held = DirectoryLock(str(tmp_path), "tap directory")
    assert lock_holder(str(lock)) == str(os.getpid())
    held.release()
    assert lock_holder(str(lock)) is None
    with open(lock, "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file.write("1\n")
        file.truncate()
        file.flush()
        assert lock_holder(str(lock)) is None  # the number in the file is not that of who holds it


def test_an_address_that_another_uses_is_told_apart() -> None:
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", 0))
        server.listen()
        address = parse_address(f"127.0.0.1:{server.getsockname()[1]}")
        assert bind_fault(address) == ("Address already in use", True)
    assert bind_fault(address) is None


def test_only_segments_are_counted(tmp_path: pathlib.Path) -> None:
    assert tap_bytes(str(tmp_path / "none")) == 0
    (tmp_path / "n.0.boot").mkdir()
    (tmp_path / "n.0.boot" / f"{0:020d}.seg").write_bytes(b"x" * 1000)
    (tmp_path / "n.0.boot" / "notes").write_bytes(b"x" * 1000)
    assert tap_bytes(str(tmp_path)) == 1000
