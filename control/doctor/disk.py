"""The disk below the tap's directory: room, kind, and how fast it is, tried with a file without a name that is gone at once."""

import errno
import os
import tempfile
import time
from collections.abc import Iterator
from typing import Final

from control.configuration.places import free_bytes, nearest_folder
from control.configuration.units import format_size
from control.doctor.finding import Figure, Finding
from control.doctor.mounts import mount_of, mounts
from control.doctor.surroundings import Surroundings
from proxy.config.model import KIB, MIB

__all__ = ["PROBE_BYTES", "look"]

PROBE_BYTES: Final = 4 * MIB
"""At most; and at most an eighth of what is free, so that a tap that needs the rest has it."""
_BLOCK: Final = 64 * KIB
_LEAST: Final = 64 * MIB
_FEW_INODES: Final = 1_000
_SLOW_SYNC_S: Final = 1.0
_SLOW: Final = 20 * MIB
_REMOTE: Final = ("nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "glusterfs", "fuse.")
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


def look(around: Surroundings) -> Iterator[Finding]:
    """Where there is a tap."""
    if around.config is None or around.config.tap is None:
        words = "nothing was looked at, for there is no valid configuration" if around.config is None else "there is no tap"
        yield Finding("disk", "tap", "unknown" if around.config is None else "ok", words)
        return
    directory = around.config.tap.directory
    yield _kind(around, directory)
    yield from _room(directory, around.config.tap.budget)
    yield _speed(directory)


def _kind(around: Surroundings, directory: str) -> Finding:
    subject = f"file system of {directory}"
    found = mount_of(os.path.realpath(nearest_folder(directory)), mounts(around.text("proc/self/mountinfo") or ""))
    if found is None:
        return Finding("disk", subject, "unknown", "the mounts cannot be read")
    words, figures = f"is {found.kind}, mounted at {found.point}", {"kind": found.kind}
    if found.kind == "tmpfs":
        advice = "mount a disk there: what lies in memory counts against the container's memory limit, and is gone with the pod"
        return Finding("disk", subject, "warning", words, advice, figures)
    if found.kind == "overlay":
        advice = "mount a volume there: this is the container's own layer, and gone with the container"
        return Finding("disk", subject, "warning", words, advice, figures)
    if found.kind.startswith(_REMOTE):
        advice = "take a local disk: when a remote one hangs, the tap's writer hangs, and frames are dropped or wait (on_full)"
        return Finding("disk", subject, "warning", words, advice, figures)
    return Finding("disk", subject, "ok", words, figures=figures)


def _room(directory: str, budget: int) -> Iterator[Finding]:
    subject = f"room in {directory}"
    status, free = os.statvfs(nearest_folder(directory)), free_bytes(directory)
    figures: dict[str, Figure] = {"free_bytes": free, "budget_bytes": budget}
    words = f"{format_size(free // MIB * MIB)} are free; the budget is {format_size(budget)}"
    if free < _LEAST:
        yield Finding("disk", subject, "fault", words, "make room, or mount a larger disk: the tap loses frames, or has them wait (on_full)", figures)
    else:
        yield Finding("disk", subject, "ok", words, figures=figures)
    if status.f_files:  # some file systems, as btrfs, have no fixed number
        few = status.f_favail < _FEW_INODES
        advice = "remove small files from this disk: each segment of the tap is a file" if few else ""
        words = f"{status.f_favail:,} of {status.f_files:,} files more can be made"
        yield Finding("disk", f"inodes of {directory}", "fault" if few else "ok", words, advice, {"free_inodes": status.f_favail})


def _speed(directory: str) -> Finding:
    subject = f"writing in {directory}"
    size = max(_BLOCK, min(PROBE_BYTES, free_bytes(directory) // 8) // _BLOCK * _BLOCK)
    try:
        write_s, sync_s = _tried(nearest_folder(directory), size)
    except OSError as error:
        full = error.errno in _FULL
        advice = "make room there" if full else "give framegate's user the right to write there (Kubernetes: fsGroup; systemd: StateDirectory=)"
        return Finding("disk", subject, "fault", f"{format_size(size)} could not be written: {error.strerror or error}", advice)
    rate = size / max(write_s + sync_s, 1e-6)
    figures = {"written_bytes": size, "write_ms": round(write_s * 1000, 2), "fsync_ms": round(sync_s * 1000, 2)}
    words = f"{format_size(size)} in {write_s * 1000:.1f} ms, {sync_s * 1000:.1f} ms more until they are on the disk"
    if sync_s > _SLOW_SYNC_S or (size == PROBE_BYTES and rate < _SLOW):
        advice = "take a faster disk, or record less (framegate taps set): the tap cannot keep up with much"
        return Finding("disk", subject, "warning", words, advice, figures)
    return Finding("disk", subject, "ok", words, figures=figures)


def _tried(folder: str, size: int) -> tuple[float, float]:
    """Seconds to write, and to have it on the disk."""
    block = os.urandom(_BLOCK)  # a file system that compresses is to work as well
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        begun = time.perf_counter()
        for _ in range(size // _BLOCK):
            if file.write(block) != _BLOCK:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = time.perf_counter()
        os.fsync(file.fileno())
        return written - begun, time.perf_counter() - written
