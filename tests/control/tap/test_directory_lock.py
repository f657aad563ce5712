import errno
import fcntl
import os
import pathlib
import stat
import subprocess
from typing import Any

import pytest

from framegate.control.errors import StartError
from framegate.control.tap.directory_lock import DirectoryLock
from framegate.proxy.tap.record import LOCK_NAME, WRITERS_NAME


def test_a_directory_belongs_to_one_until_it_is_released(tmp_path: pathlib.Path, no_umask: None) -> None:
    directory = str(tmp_path / "a" / "b")
    first = DirectoryLock(directory, "tap directory")
    assert [stat.S_IMODE(os.stat(path).st_mode) for path in (directory, os.path.join(directory, LOCK_NAME))] == [0o750, 0o600]
    with pytest.raises(StartError, match=f"another framegate \\(process {os.getpid()}\\) uses the tap directory") as caught:
        DirectoryLock(directory, "tap directory")
    assert caught.value.reason == "DIRECTORY_IN_USE"
    first.release()
    DirectoryLock(directory, "tap directory").release()


def test_who_comes_next_sees_when_the_last_holder_was_alive(tmp_path: pathlib.Path) -> None:
    first = DirectoryLock(str(tmp_path), "tap directory")
    os.utime(tmp_path / LOCK_NAME, ns=(5, 5))
    first.release()
    second = DirectoryLock(str(tmp_path), "tap directory")
    assert second.last_ns == 5
    assert (tmp_path / LOCK_NAME).stat().st_mtime_ns > 5, "it is alive itself"
    os.utime(tmp_path / LOCK_NAME, ns=(6, 6))
    second.heartbeat()
    assert (tmp_path / LOCK_NAME).stat().st_mtime_ns > 6
    second.release()


def test_the_largest_number_that_was_noted_is_kept_and_older_files_have_none(tmp_path: pathlib.Path) -> None:
    (tmp_path / LOCK_NAME).write_text("99999\n")
    for noted, before in ((7, 0), (5, 7), (8, 7), (0, 8), (0, 8)):
        lock = DirectoryLock(str(tmp_path), "tap directory")
        assert lock.noted == before
        lock.heartbeat(noted)
        with pytest.raises(StartError, match=f"process {os.getpid()}\\)"):
            DirectoryLock(str(tmp_path), "tap directory")
        lock.release()


def test_a_process_that_outlives_its_control_is_seen_by_whoever_comes_next_until_it_is_gone(tmp_path: pathlib.Path) -> None:
    """Two generations of them."""
    left: list[subprocess.Popen[bytes]] = []
    try:
        for expected in (False, True, True):
            lock = DirectoryLock(str(tmp_path), "tap directory")
            assert lock.unguarded == ""
            assert lock.others_write() is expected
            left.append(subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=(lock.writers,)))
            assert lock.others_write() is expected, "one's own are no others"
            lock.release()
        lock = DirectoryLock(str(tmp_path), "tap directory")
        for process in left:
            assert lock.others_write()
            process.kill()
            process.wait()
        assert not lock.others_write()
        lock.release()
    finally:
        for process in left:
            process.kill()
            process.communicate()
    assert stat.S_IMODE((tmp_path / WRITERS_NAME).stat().st_mode) == 0o600


def test_a_file_system_without_locks_of_open_files_is_told_and_asked_nothing(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "fcntl", refused)
    lock = DirectoryLock(str(tmp_path), "tap directory")
    assert lock.unguarded == "No locks available"
    assert not lock.others_write()
    lock.release()


@pytest.mark.parametrize("what", ["directory", "lock", "writers"])
def test_a_lock_that_cannot_be_had_is_no_start_and_holds_nothing(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    def refused(*arguments: Any) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    before = len(os.listdir("/proc/self/fd"))
    directory = str(tmp_path)
    with monkeypatch.context() as patch:
        if what == "lock":
            patch.setattr(fcntl, "flock", refused)
        elif what == "writers":
            (tmp_path / WRITERS_NAME).mkdir()
        else:
            (tmp_path / "file").touch()
            directory = str(tmp_path / "file" / "tap")
        with pytest.raises(StartError, match=r"cannot be used: (Operation not supported|Is a directory|Not a directory)") as caught:
            DirectoryLock(directory, "tap directory")
    assert caught.value.reason == "DIRECTORY_UNUSABLE"
    assert len(os.listdir("/proc/self/fd")) <= before  # some that an earlier test left may be collected meanwhile
    if what == "writers":
        (tmp_path / WRITERS_NAME).rmdir()
    DirectoryLock(str(tmp_path), "tap directory").release()
