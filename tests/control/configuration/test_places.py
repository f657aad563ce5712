"""What this machine gives: tried with real folders, files, sockets and addresses."""

import fcntl
import os
import pathlib
import socket
import stat
import tempfile
from collections.abc import Iterator

import pytest

from control.configuration.places import (
    bind_fault,
    bound_address,
    folder_fault,
    free_bytes,
    is_served,
    lock_fault,
    lock_holder,
    socket_fault,
    tap_bytes,
)
from control.tap.directory_lock import DirectoryLock
from proxy.config.address import parse_address
from proxy.tap.record import LOCK_NAME
from tests.fakes.privileges import unprivileged


@pytest.fixture
def shared() -> Iterator[pathlib.Path]:
    """A folder that every user can look into."""
    with tempfile.TemporaryDirectory() as text:
        os.chmod(text, 0o755)
        yield pathlib.Path(text)


def test_a_folder_that_can_be_made_is_good_and_is_not_made(tmp_path: pathlib.Path) -> None:
    before = tmp_path.stat().st_mtime_ns
    assert folder_fault(str(tmp_path / "a" / "b")) is None
    assert folder_fault(str(tmp_path)) is None
    assert (list(tmp_path.iterdir()), tmp_path.stat().st_mtime_ns) == ([], before)


def test_what_is_in_the_way_of_a_folder_is_named(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("file", "file/a/b", "link", "link/a"):
        assert folder_fault(str(tmp_path / name)) == f"{tmp_path / name.split('/')[0]} is not a directory"


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


def test_somebody_listens_or_not(tmp_path: pathlib.Path) -> None:
    path = str(tmp_path / "s")
    assert not is_served(path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        assert not is_served(path)
        server.listen(0)
        assert is_served(path)
    assert not is_served(path)


def test_who_listens_and_takes_nobody_in_is_there_all_the_same(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("control.configuration.places._PROBE_S", 0.02)
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


def test_an_address_of_this_machine_can_be_bound_and_no_other() -> None:
    assert bind_fault(parse_address("127.0.0.1:0", port_zero=True)) is None
    assert bind_fault(parse_address("192.0.2.1:0", port_zero=True)) == ("Cannot assign requested address", False)
    assert bind_fault(parse_address("[2001:db8::1]:0", port_zero=True)) == ("Cannot assign requested address", False)


def test_an_address_that_another_uses_is_told_apart() -> None:
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", 0))
        server.listen()
        address = parse_address(f"127.0.0.1:{server.getsockname()[1]}")
        assert bind_fault(address) == ("Address already in use", True)
    assert bind_fault(address) is None


def test_a_name_is_what_it_stands_for() -> None:
    assert bound_address(parse_address("localhost:9")).host in ("127.0.0.1", "::1")
    assert bound_address(parse_address("10.1.2.3:9")) == parse_address("10.1.2.3:9")
    with pytest.raises(OSError, match=r"."):
        bound_address(parse_address("nowhere.invalid:9"))


def test_room_is_asked_of_the_file_system_that_will_hold_the_folder(tmp_path: pathlib.Path) -> None:
    assert 0 < free_bytes(str(tmp_path / "a" / "b")) == pytest.approx(free_bytes(str(tmp_path)), rel=0.1)


def test_only_segments_are_counted(tmp_path: pathlib.Path) -> None:
    assert tap_bytes(str(tmp_path / "none")) == 0
    (tmp_path / "n.0.boot").mkdir()
    (tmp_path / "n.0.boot" / f"{0:020d}.seg").write_bytes(b"x" * 1000)
    (tmp_path / "n.0.boot" / "notes").write_bytes(b"x" * 1000)
    assert tap_bytes(str(tmp_path)) == 1000
