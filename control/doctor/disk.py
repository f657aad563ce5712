"""The disk of the tap's directory: room, kind, and speed, measured with a file without a name; and the mounts of ``/proc/self/mountinfo``
(proc_pid_mountinfo(5)).
"""

import errno
import functools
import os
import re
import tempfile
import time
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from framegate.control.configuration.machine import free_bytes, nearest_folder
from framegate.control.configuration.units import format_about, format_size
from framegate.control.doctor.finding import Finding, judged, unknown
from framegate.control.doctor.surroundings import Surroundings
from framegate.proxy.config.model import KIB, MIB

PROBE_BYTES: Final = 4 * MIB  # Written at most; and at most an eighth of the free bytes, which a tap may need
_BLOCK: Final = 64 * KIB
_LEAST: Final = 64 * MIB
_FEW_INODES: Final = 1_000
_SLOW_SYNC_S: Final = 1.0
_SLOW: Final = 20 * MIB
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_UNFIT: Final = {
    "tmpfs": "mount a disk there: what lies in memory counts against the container's memory limit, and is gone with the pod",
    "overlay": "mount a volume there: this is the container's own layer, and gone with the container",
    **dict.fromkeys(
        ("nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "glusterfs", "fuse."),
        "take a local disk: when a remote one hangs, the tap's writer hangs, and frames are dropped or wait (on_full)",
    ),
}  # Advice about kinds of file systems, by the beginning of their names
_ESCAPE: Final = re.compile(r"\\([0-7]{3})")
_FIXED: Final = 6  # Fields of a mount before the optional ones, which end with a hyphen
_judged = functools.partial(judged, "disk")


class Mount(NamedTuple):
    """One mount. ``root``: the folder, or file, of its file system that is mounted; ``point``: where."""

    root: str
    point: str
    options: str
    kind: str


def mounts(text: str) -> list[Mount]:
    """All mounts in the kernel's order; lines of another form are ignored."""
    found = []
    for line in text.splitlines():
        fields = line.split(" ")
        kind = fields.index("-", _FIXED) + 1 if "-" in fields[_FIXED:] else len(fields)
        if kind < len(fields):
            root, point = (_ESCAPE.sub(lambda match: chr(int(match[1], 8)), field) for field in fields[3:5])
            found.append(Mount(root, point, fields[5], fields[kind]))
    return found


def mount_of(path: str, all_of_them: Iterable[Mount]) -> Mount | None:
    """The mount of an absolute path without links: the longest, and of several at one point the last, which covers the others."""
    inside = [item for item in all_of_them if item.point in (path, "/") or path.startswith(item.point + "/")]
    return max(reversed(inside), key=lambda item: len(item.point), default=None)


def look(around: Surroundings) -> Iterator[Finding]:
    """Look at the disk if there is a tap."""
    if around.config is None:
        yield unknown("disk", "tap", "nothing was looked at, for there is no valid configuration")
    elif around.config.tap is None:
        yield _judged("tap", "there is no tap")
    else:
        directory = around.config.tap.directory
        yield _kind(around, directory)
        yield from _room(directory, around.config.tap.budget)
        yield _speed(directory)


def _kind(around: Surroundings, directory: str) -> Finding:
    subject = f"file system of {directory}"
    found = mount_of(os.path.realpath(nearest_folder(directory)), mounts(around.text("proc/self/mountinfo") or ""))
    if found is None:
        return unknown("disk", subject, "the mounts cannot be read")
    advice = next((advice for kind, advice in _UNFIT.items() if found.kind.startswith(kind)), None)
    return _judged(subject, f"is {found.kind}, mounted at {found.point}", {"kind": found.kind}, warning=advice)


def _room(directory: str, budget: int) -> Iterator[Finding]:
    status, free = os.statvfs(nearest_folder(directory)), free_bytes(directory)
    advice = "make room, or mount a larger disk: the tap loses frames, or has them wait (on_full)" if free < _LEAST else None
    words = f"{format_about(free)} are free; the budget is {format_size(budget)}"
    yield _judged(f"room in {directory}", words, {"free_bytes": free, "budget_bytes": budget}, fault=advice)
    if status.f_files:  # some file systems, as btrfs, have no fixed number
        advice = "remove small files from this disk: each segment of the tap is a file" if status.f_favail < _FEW_INODES else None
        words = f"{status.f_favail:,} of {status.f_files:,} files more can be made"
        yield _judged(f"inodes of {directory}", words, {"free_inodes": status.f_favail}, fault=advice)


def _speed(directory: str) -> Finding:
    subject = f"writing in {directory}"
    size = max(_BLOCK, min(PROBE_BYTES, free_bytes(directory) // 8) // _BLOCK * _BLOCK)
    try:
        write_s, sync_s = _tried(nearest_folder(directory), size)
    except OSError as error:
        full = error.errno in _FULL
        advice = "make room there" if full else "give framegate's user the right to write there (Kubernetes: fsGroup; systemd: StateDirectory=)"
        return _judged(subject, f"{format_size(size)} could not be written: {error.strerror or error}", fault=advice)
    slow = sync_s > _SLOW_SYNC_S or (size == PROBE_BYTES and size / max(write_s + sync_s, 1e-6) < _SLOW)
    advice = "take a faster disk, or record less (framegate taps set): the tap cannot keep up with much"
    figures = {"written_bytes": size, "write_ms": round(write_s * 1000, 2), "fsync_ms": round(sync_s * 1000, 2)}
    words = f"{format_size(size)} in {write_s * 1000:.1f} ms, {sync_s * 1000:.1f} ms more until they are on the disk"
    return _judged(subject, words, figures, warning=advice if slow else None)


def _tried(folder: str, size: int) -> tuple[float, float]:
    """Seconds to write, and to flush to the disk."""
    block = os.urandom(_BLOCK)  # random, so that compression saves nothing
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        begun = time.perf_counter()
        for _ in range(size // _BLOCK):
            if file.write(block) != _BLOCK:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = time.perf_counter()
        os.fsync(file.fileno())
        return written - begun, time.perf_counter() - written
