from pathlib import Path

import pytest

from control.doctor.mounts import Mount, mount_of, mounts

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


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "ext4"),
        ("/var/lib", "ext4"),
        ("/var/lib/tap", "nfs4"),
        ("/var/lib/tap/a/b", "nfs4"),
        ("/var/lib/tapes", "ext4"),
        ("/mnt/with space\\/x", "tmpfs"),
    ],
)
def test_a_path_lies_in_the_longest_and_of_the_same_the_last(path: str, kind: str) -> None:
    found = mount_of(path, mounts(TEXT))
    assert found is not None
    assert found.kind == kind


def test_without_mounts_nothing_is_known() -> None:
    assert mount_of("/x", []) is None


def test_this_machines_own_can_be_read() -> None:
    found = mounts(Path("/proc/self/mountinfo").read_text())  # of a changed root "/" is not among them
    assert any((item.point, item.kind) == ("/proc", "proc") for item in found)
