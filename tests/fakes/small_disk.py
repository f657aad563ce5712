"""A small disk of its own, mounted on a folder, that can be filled."""

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

MNT_DETACH: Final = 2


@contextlib.contextmanager
def tiny_disk(folder: Path, mebibytes: int = 1) -> Iterator[bool]:
    """Mount a small disk on the folder; False when that is not allowed here. By the system call: a bare machine has no ``mount``."""
    folder.mkdir(exist_ok=True)
    libc = ctypes.CDLL(None, use_errno=True)
    mounted = libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", ctypes.c_ulong(0), b"size=%dm" % mebibytes) == 0
    try:
        yield mounted
    finally:
        if mounted and libc.umount2(os.fsencode(folder), MNT_DETACH) != 0:
            raise OSError(ctypes.get_errno(), f"{folder} cannot be unmounted: {os.strerror(ctypes.get_errno())}")


def fill(path: Path) -> None:
    """Take all that is left of a disk."""
    with open(path, "ab", buffering=0) as file:
        for size in (1 << 20, 4096):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))
