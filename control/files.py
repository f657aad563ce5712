"""Consistent reads of files that may be replaced at any moment.

Whenever a file is replaced (Kubernetes points the link ``..data`` to another folder, a tool renames another file over it, or writes into it), its
stamp changes: device, inode, size, times. Files read between two equal stamps were not replaced meanwhile. A write within the resolution of the clock
does not change the stamp, so files that changed a moment ago must be read again (``is_fresh``).
"""

import os
import stat
from _blake2 import blake2b  # that of hashlib, which loads OpenSSL as well: 3 MiB
from collections.abc import Iterable, Mapping
from typing import Final

Contents = Mapping[str, bytes]  # Contents of files, by path
Stamp = tuple[tuple[int, ...], ...]  # Stamps of files, in order; of a file without stat, the number of the error

MAX_BYTES: Final = 16 * 1024 * 1024  # the default limit of all files of one source together
_FRESH_NS: Final = 3_000_000_000  # more than the coarsest resolution of a file system's clock, which is 2 s
_MODIFIED, _CHANGED = 3, 4


class FileError(Exception):
    """A file that cannot be read. Attributes: ``path``; ``reason``, for people."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} {reason}")
        self.path = path
        self.reason = reason

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FileError) and (self.path, self.reason) == (other.path, other.reason)

    __hash__ = Exception.__hash__


def stamp(paths: Iterable[str]) -> Stamp:
    """The stamps of files, which change when the files do. About 2 µs a file."""
    return tuple(map(_stamp, paths))


def _stamp(path: str) -> tuple[int, ...]:
    try:
        found = os.stat(path)
    except OSError as error:
        return (error.errno or 0,)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def is_fresh(found: Stamp, now_ns: int) -> bool:
    """Whether a file changed so short a time before ``now_ns`` (since 1970) that its next change may not show in its stamp."""
    return any(len(item) > 1 and now_ns - max(item[_MODIFIED], item[_CHANGED]) < _FRESH_NS for item in found)


def digest(contents: Contents) -> bytes:
    """A hash of contents."""
    found = blake2b(digest_size=32)
    for path, content in sorted(contents.items()):
        found.update(f"{len(path)} {path} {len(content)} ".encode(errors="surrogateescape"))
        found.update(content)
    return found.digest()


def read(paths: Iterable[str], max_bytes: int = MAX_BYTES) -> dict[str, bytes] | FileError | None:
    """The contents of files at one moment, or why one cannot be read; None if they were replaced meanwhile. ``max_bytes``: of all together."""
    names = list(paths)
    before = stamp(names)
    contents: dict[str, bytes] = {}
    left = max_bytes
    try:
        for path in names:
            contents[path] = read_file(path, left)
            left -= len(contents[path])
    except FileError as error:
        return error if stamp(names) == before else None
    return contents if stamp(names) == before else None


def read_file(path: str, most: int) -> bytes:
    """The contents of one file of at most ``most`` bytes. Raises FileError: it cannot be read, is not a regular file, or is too large."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # opening a pipe without a writer would block
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise FileError(path, "cannot be read: it is no ordinary file")
            data = file.read(most + 1)
    except OSError as error:
        raise FileError(path, f"cannot be read: {error.strerror or error}") from error
    if len(data) > most:
        raise FileError(path, f"is too large: more than {most} bytes")
    return data
