import os
from pathlib import Path

import pytest

from framegate.control.doctor.disk import PROBE_BYTES, Mount, look, mount_of, mounts
from framegate.control.doctor.surroundings import Surroundings
from framegate.proxy.config.model import MIB, TapConfig
from tests.fakes.privileges import everybodys_folder, unprivileged
from tests.fakes.small_disk import fill, tiny_disk
from tests.fakes.surroundings import around, config_of, one


def tapping(directory: Path, **fields: object) -> Surroundings:
    return Surroundings(config=config_of(tap=TapConfig(directory=str(directory), budget=MIB)), **fields)  # type: ignore[arg-type]


def test_a_disk_is_tried_and_nothing_is_left_behind(tmp_path: Path) -> None:
    found = list(look(tapping(tmp_path)))
    assert [item.subject.split(" ")[0] for item in found] == ["file", "room", "inodes", "writing"]
    written = one(found, "writing")
    assert written.figures["write_ms"] != 0
    assert os.listdir(tmp_path) == []


def test_a_full_disk_is_a_fault(tmp_path: Path) -> None:
    with tiny_disk(tmp_path / "small", 8) as mounted:
        if not mounted:
            pytest.skip("no disk can be mounted here")
        good = list(look(tapping(tmp_path / "small")))
        assert (one(good, "writing").level, one(good, "file system").level) == ("ok", "warning")
        assert one(good, "file system").figures == {"kind": "tmpfs"}
        fill(tmp_path / "small" / "all")
        found = list(look(tapping(tmp_path / "small")))
        assert (one(found, "room").level, one(found, "writing").level) == ("fault", "fault")
        assert "No space left" in one(found, "writing").found
        assert os.listdir(tmp_path / "small") == ["all"]


def test_no_more_is_written_than_an_eighth_of_what_is_free_and_it_is_given_back(tmp_path: Path) -> None:
    """In blocks of 64 KiB, and never more than ``PROBE_BYTES``, 64 of them."""
    for mebibytes, written in ((1, 2), (8, 16), (31, 62), (40, 64)):
        with tiny_disk(tmp_path / "small", mebibytes) as mounted:
            if not mounted:
                pytest.skip("no disk can be mounted here")
            assert one(look(tapping(tmp_path / "small")), "writing").figures["written_bytes"] == written * 65_536 <= PROBE_BYTES
            status = os.statvfs(tmp_path / "small")
            assert status.f_bavail == status.f_blocks


def test_a_directory_of_others_is_a_fault() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can be somebody else")
    with everybodys_folder() as folder, unprivileged():
        found = one(look(tapping(folder)), "writing")
    assert (found.level, "Permission denied" in found.found, "fsGroup" in found.advice) == ("fault", True, True)


def test_the_kind_of_file_system_decides(tmp_path: Path) -> None:
    expected = {"ext4": "ok", "xfs": "ok", "overlay": "warning", "tmpfs": "warning", "nfs4": "warning", "fuse.sshfs": "warning"}
    config, found = config_of(tap=TapConfig(directory=str(tmp_path), budget=MIB)), {}
    for kind in expected:
        files = {"proc/self/mountinfo": f"1 0 8:1 / / rw - {kind} x rw\n"}
        found[kind] = one(look(around(tmp_path / "root", files, config=config)), "file system").level
    assert found == expected
    assert one(look(around(tmp_path / "none", config=config)), "file system").level == "unknown"


TEXT = r"""22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
31 22 0:28 / /var/lib/tap rw,relatime shared:3 master:1 - xfs /dev/sdb rw
32 22 0:29 / /mnt/with\040space\134 ro - tmpfs tmpfs ro
33 31 0:30 /sub /var/lib/tap rw - nfs4 server:/x rw
broken
34 22 0:30 / /x rw shared:1
"""


def test_each_line_is_a_mount_with_any_number_of_optional_fields() -> None:
    assert mounts(TEXT) == [
        Mount("/", "/", "rw,relatime", "ext4"),
        Mount("/", "/var/lib/tap", "rw,relatime", "xfs"),
        Mount("/", "/mnt/with space\\", "ro", "tmpfs"),
        Mount("/sub", "/var/lib/tap", "rw", "nfs4"),
    ]
    expected = {
        "/": "ext4",
        "/var/lib": "ext4",
        "/var/lib/tap": "nfs4",
        "/var/lib/tap/a/b": "nfs4",
        "/var/lib/tapes": "ext4",
        "/mnt/with space\\/x": "tmpfs",
    }
    found = {path: mount_of(path, mounts(TEXT)) for path in expected}
    assert {path: mount and mount.kind for path, mount in found.items()} == expected, "the longest, and of the same the last"
