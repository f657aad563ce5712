"""A small disk of its own, mounted on a folder, that can be filled; and files that are mounted elsewhere."""

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

MS_RDONLY: Final = 1
MS_REMOUNT: Final = 32
MS_BIND: Final = 4096
MNT_DETACH: Final = 2


@contextlib.contextmanager
def _mounted(source: bytes, target: Path, kind: bytes | None, *flags: int, options: bytes | None = None) -> Iterator[bool]:
    """Mount with each of these flags; False when that is not allowed here. By the system call: a bare machine has no ``mount``."""
    libc, at = ctypes.CDLL(None, use_errno=True), os.fsencode(target)
    mounted = all(libc.mount(source, at, kind, ctypes.c_ulong(each), options) == 0 for each in flags)
    try:
        yield mounted
    finally:
        if mounted and libc.umount2(at, MNT_DETACH) != 0:
            raise OSError(ctypes.get_errno(), f"{target} cannot be unmounted: {os.strerror(ctypes.get_errno())}")


def bound(source: Path, target: Path) -> contextlib.AbstractContextManager[bool]:
    """A file that is mounted over another one; False when that is not allowed here."""
    return _mounted(os.fsencode(source), target, None, MS_BIND)


def read_only(folder: Path) -> contextlib.AbstractContextManager[bool]:
    """A folder that cannot be written, as Kubernetes mounts a Secret; False when that is not allowed here."""
    return _mounted(os.fsencode(folder), folder, None, MS_BIND, MS_BIND | MS_REMOUNT | MS_RDONLY)


def tiny_disk(folder: Path, mebibytes: int = 1) -> contextlib.AbstractContextManager[bool]:
    """A small disk that is mounted on the folder; False when that is not allowed here."""
    folder.mkdir(exist_ok=True)
    return _mounted(b"tmpfs", folder, b"tmpfs", 0, options=b"size=%dm" % mebibytes)


def fill(path: Path) -> None:
    """Take all that is left of a disk."""
    with open(path, "ab", buffering=0) as file:
        for size in (1 << 20, 4096):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))
