"""What holds in a pod only: how volumes are mounted, and what cannot be seen from inside."""

import os
import re
from collections.abc import Iterator
from typing import Final

from control.configuration.tls_files import tls_files
from control.configuration.units import counted
from control.doctor.finding import Finding
from control.doctor.mounts import Mount, mount_of, mounts
from control.doctor.permissions import secret_files
from control.doctor.surroundings import Surroundings

__all__ = ["BESIDE_DRAIN_S", "look"]

_ATOMIC: Final = re.compile(r"/\.\.\d{4}_\d\d_\d\d_")
"""The folder that a kubelet turns the link ``..data`` to: who is mounted out of one of them stays there."""
BESIDE_DRAIN_S: Final = 12
"""What `framegate inject` asks for beside the drain: preStop, and the tap's last blocks."""


def look(around: Surroundings) -> Iterator[Finding]:
    """The pod's grace period, and of each file that is to be replaced while framegate runs whether it can be."""
    if not around.in_kubernetes:
        yield Finding("kubernetes", "pod", "ok", "this is none")
    elif around.config is not None:
        seconds = -(-around.config.drain.timeout_ms // 1000)
        words = f"cannot be read from inside; it must be longer than preStop and drain.timeout, {seconds} s, together"
        yield Finding(
            "kubernetes", "terminationGracePeriodSeconds", "unknown", words, f"set it to {seconds + BESIDE_DRAIN_S} or more",
            {"drain_s": seconds, "least_s": seconds + BESIDE_DRAIN_S},
        )  # fmt: skip
    if around.config is None:
        return
    text = around.text("proc/self/mountinfo")
    paths = sorted({item.path for item in tls_files(around.config)} | {path for _, path in secret_files(around.config)})
    if text is None:
        yield Finding("kubernetes", "mounts", "unknown", "/proc/self/mountinfo cannot be read")
        return
    found = mounts(text)
    fixed = [finding for path in paths if (finding := _fixed(path, mount_of(os.path.abspath(path), found))) is not None]
    yield from fixed
    if paths and not fixed:
        yield Finding(
            "kubernetes", "mounts", "ok", f"{counted(len(paths), 'file')}, which can be replaced while framegate runs", figures={"files": len(paths)}
        )


def _fixed(path: str, mount: Mount | None) -> Finding | None:
    if mount is None:
        return None
    if _ATOMIC.search(mount.root) or "/volume-subpaths/" in mount.root:
        words = f"is mounted by subPath (at {mount.point}): what takes its place in the Secret or ConfigMap never comes here"
        return Finding("kubernetes", path, "warning", words, "mount the volume as a folder, without subPath, and name the file in it")
    if mount.point == os.path.abspath(path):
        words = "is mounted as a single file: another one that takes its place outside is not seen here"
        return Finding("kubernetes", path, "warning", words, "mount the folder that it lies in")
    return None
