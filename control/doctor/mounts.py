"""What is mounted where: ``/proc/self/mountinfo`` (proc_pid_mountinfo(5))."""

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

__all__ = ["Mount", "mount_of", "mounts"]

_ESCAPE: Final = re.compile(r"\\([0-7]{3})")
_FIXED: Final = 6
"""Fields before the optional ones, which end with a hyphen."""


class Mount(NamedTuple):
    """One of them. ``root``: the folder, or file, of its file system that is mounted; ``point``: where."""

    root: str
    point: str
    options: str
    kind: str


def mounts(text: str) -> list[Mount]:
    """All of them, in the kernel's order; lines of another form are passed over."""
    found = []
    for line in text.splitlines():
        fields = line.split(" ")
        if "-" not in fields[_FIXED:]:
            continue
        kind = fields.index("-", _FIXED) + 1
        if kind < len(fields):
            found.append(Mount(_plain(fields[3]), _plain(fields[4]), fields[5], fields[kind]))
    return found


def mount_of(path: str, all_of_them: Iterable[Mount]) -> Mount | None:
    """The one that an absolute path without links lies in: the longest, and of the same the last, which lies over the others."""
    inside = [item for item in all_of_them if item.point in (path, "/") or path.startswith(item.point + "/")]
    return max(reversed(inside), key=lambda item: len(item.point), default=None)


def _plain(text: str) -> str:
    return _ESCAPE.sub(lambda found: chr(int(found[1], 8)), text)
