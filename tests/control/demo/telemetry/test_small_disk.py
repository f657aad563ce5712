"""A disk that can be filled."""

import errno
import os
from pathlib import Path

import pytest

from control.demo.telemetry.small_disk import fill, tiny_disk


def test_a_disk_is_filled_to_the_last_byte_and_gone_afterwards(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    with tiny_disk(folder, 1) as mounted:
        if not mounted:
            pytest.skip("a disk cannot be mounted here")
        fill(folder / "filler")
        assert os.statvfs(folder).f_bavail == 0
        with pytest.raises(OSError) as full:  # noqa: PT011
            (folder / "one").write_bytes(bytes(4096))
        assert full.value.errno == errno.ENOSPC
    assert list(folder.iterdir()) == []


def test_a_folder_that_is_there_is_taken(tmp_path: Path) -> None:
    for _ in range(2):
        with tiny_disk(tmp_path / "disk"):
            pass
    assert (tmp_path / "disk").is_dir()
