"""Files that may be replaced at any moment, read so that what was read is of one moment.

However a file is replaced (Kubernetes turns the link ``..data`` to another folder, a tool renames another file over it, or writes into it), its
stamp is another afterwards: device, inode, size, times. What was read between two equal stamps was not replaced meanwhile, all files together. A
write that comes within the clock's grain of the look before leaves the stamp as it was: so what changed a moment ago is read again (``is_fresh``).
"""

import hashlib
import os
import stat
from collections.abc import Iterable, Mapping
from typing import Final

__all__ = ["MAX_BYTES", "Contents", "FileError", "Stamp", "digest", "is_fresh", "read", "read_file", "stamp"]

Contents = Mapping[str, bytes]
"""What is in files, by path."""
Stamp = tuple[tuple[int, ...], ...]
"""Of files, in order; of one that cannot be looked at, the number of the error."""

MAX_BYTES: Final = 16 * 1024 * 1024
"""Of all files of one source together, unless it says otherwise."""
_FRESH_NS: Final = 3_000_000_000
"""More than the coarsest clock of a file system in use, which is 2 s."""
_MODIFIED, _CHANGED = 3, 4


class FileError(Exception):
    """A file that cannot be read. Attributes: ``path``, ``reason`` in words."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} {reason}")
        self.path = path
        self.reason = reason

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FileError) and (self.path, self.reason) == (other.path, other.reason)

    __hash__ = Exception.__hash__


def stamp(paths: Iterable[str]) -> Stamp:
    """What changes when a file does. About 2 µs a file."""
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
    """What tells contents from others, and keeps nothing of them."""
    found = hashlib.blake2b(digest_size=32)
    for path, content in sorted(contents.items()):
        found.update(f"{len(path)} {path} {len(content)} ".encode(errors="surrogateescape"))
        found.update(content)
    return found.digest()


def read(paths: Iterable[str], max_bytes: int = MAX_BYTES) -> dict[str, bytes] | FileError | None:
    """What is in files, all of one moment; why one cannot be read; None when they were replaced meanwhile. ``max_bytes``: of all together."""
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
    """What is in one file, of at most so many bytes.

    Raises:
        FileError: it cannot be read, is no ordinary file, or too large.
    """
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # a pipe without a writer would be waited for
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise FileError(path, "cannot be read: it is no ordinary file")
            data = file.read(most + 1)
    except OSError as error:
        raise FileError(path, f"cannot be read: {error.strerror or error}") from error
    if len(data) > most:
        raise FileError(path, f"is too large: more than {most} bytes")
    return data
