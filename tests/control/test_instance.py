import os
import pathlib
import stat

import pytest

from control.errors import StartError
from control.instance import LOCK_NAME, DirectoryLock


def test_a_directory_belongs_to_one_until_it_is_released(tmp_path: pathlib.Path) -> None:
    directory = str(tmp_path / "a" / "b")
    first = DirectoryLock(directory, "tap directory")
    with pytest.raises(StartError, match=f"another framegate \\(process {os.getpid()}\\) uses the tap directory") as caught:
        DirectoryLock(directory, "tap directory")
    assert caught.value.reason == "DIRECTORY_IN_USE"
    first.release()
    DirectoryLock(directory, "tap directory").release()


def test_a_lock_file_that_was_left_behind_does_not_matter(tmp_path: pathlib.Path) -> None:
    (tmp_path / LOCK_NAME).write_text("99999\n")
    DirectoryLock(str(tmp_path), "tap directory").release()


def test_a_directory_that_cannot_be_made_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartError, match="cannot be used"):
        DirectoryLock(str(tmp_path / "file" / "tap"), "tap directory")


def test_the_directory_is_for_owner_and_group_and_the_lock_for_its_owner(tmp_path: pathlib.Path, no_umask: None) -> None:
    DirectoryLock(str(tmp_path / "tap"), "tap directory").release()
    assert stat.S_IMODE((tmp_path / "tap").stat().st_mode) == 0o750
    assert stat.S_IMODE((tmp_path / "tap" / LOCK_NAME).stat().st_mode) == 0o600


def test_who_comes_next_sees_when_the_last_holder_was_alive(tmp_path: pathlib.Path) -> None:
    first = DirectoryLock(str(tmp_path), "tap directory")
    os.utime(tmp_path / LOCK_NAME, ns=(5, 5))
    first.release()
    second = DirectoryLock(str(tmp_path), "tap directory")
    assert second.last_ns == 5
    assert (tmp_path / LOCK_NAME).stat().st_mtime_ns > 5, "it is alive itself"
    os.utime(tmp_path / LOCK_NAME, ns=(6, 6))
    second.beat()
    assert (tmp_path / LOCK_NAME).stat().st_mtime_ns > 6
    second.release()
