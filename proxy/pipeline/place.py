"""Where the tables of an output are: a folder of this host, or a URL in an object store (``proxy.tap.store``).

What is sent to a store is compared with its size there, and sent once more if that differs: a store or a proxy before it may take a body that was
cut off.

The tasks of a batch and its driver write through it, each with the credentials of its own environment. delta-rs takes the same from there.
"""

import contextlib
import os
import re
import secrets
import tempfile
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Final

from framegate.proxy.tap.store import AbsentError, ConflictError, Store, StoreError, file_chunks, store_at

UNFINISHED: Final = ".new"  # the name of a file in a folder ends so while it is written
_ATTEMPTS: Final = 2
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m|↳")
_QUERY: Final = re.compile(r"\?[^\s\"')]*")


def local_path(place: Path | str) -> Path | None:
    """The absolute path, if the place is on this host; None for one with another scheme than ``file``."""
    text = str(place)
    if isinstance(place, str):
        parts = urllib.parse.urlsplit(text)
        if parts.scheme == "file" and not parts.netloc:
            text = urllib.parse.unquote(parts.path)
        elif "://" in text:
            return None
    return Path(text).resolve()


def absolute(place: Path | str) -> str:
    """The place for any process of this host."""
    path = local_path(place)
    return str(place).rstrip("/") if path is None else str(path)


class Folder:
    """A folder of this host. What is written is on the disk when the call returns."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def address(self, table: str) -> str:
        """Of a table, for delta-rs."""
        return str(self.root / table)

    @contextlib.contextmanager
    def new_file(self, name: str) -> Iterator[IO[bytes]]:
        """A file that is there when the block has ended; its folders are made."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())

    def names(self, folder: str) -> list[str]:
        return sorted(path.name for path in (self.root / folder).glob("*"))

    def read(self, name: str) -> bytes:
        return (self.root / name).read_bytes()

    def create(self, name: str, data: bytes) -> None:
        """Write a file whole. Raises ConflictError: it exists."""
        path = self.root / name
        new = path.with_name(f"{secrets.token_hex(8)}{UNFINISHED}")
        try:
            with self.new_file(str(new.relative_to(self.root))) as file:
                file.write(data)
            path.hardlink_to(new)
        except FileExistsError as error:
            raise ConflictError(f"{path} exists") from error
        finally:
            new.unlink(missing_ok=True)
        sync([path.parent, self.root])

    def remove(self, name: str) -> None:
        (self.root / name).unlink(missing_ok=True)

    def sync_folders(self, names: Iterable[str]) -> None:
        """Write the folders of files to the disk, up to the output's own."""
        folders = {parent for name in names for parent in (self.root / name).parents if parent.is_relative_to(self.root)}
        sync(sorted(folders, reverse=True))

    def sync_files(self, table: str, names: Iterable[str]) -> None:
        """Write files of a table that delta-rs made, and their folders, to the disk."""
        files = [self.root / table / name for name in names]
        sync([*files, *{file.parent for file in files}])


class Bucket:
    """What is below a URL. All methods raise ``StoreError``; what a call has written is there when it returns."""

    def __init__(self, url: str) -> None:
        self.root = url.rstrip("/")

    @property
    def _store(self) -> Store:
        return store_at(self.root)

    def address(self, table: str) -> str:
        return f"{self.root}/{table}"

    @contextlib.contextmanager
    def new_file(self, name: str) -> Iterator[IO[bytes]]:
        """As of a folder; the file is sent when the block ends."""
        with tempfile.TemporaryFile() as file:
            yield file
            file.flush()
            self._send(name, lambda: file_chunks(f"/proc/self/fd/{file.fileno()}"), file.tell(), None)

    def names(self, folder: str) -> list[str]:
        return [item.name for item in self._store.items(folder)]

    def read(self, name: str) -> bytes:
        return self._store.read(name)[0]

    def create(self, name: str, data: bytes) -> None:
        """As of a folder. One with the same content may exist: the answer of an earlier request may have been lost."""
        try:
            self._store.replace(name, [data], None)
        except ConflictError:
            if self._store.read(name)[0] != data:
                raise
        size, version = self._store.size(name)
        if size != len(data):
            self._send(name, lambda: [data], len(data), version)

    def _send(self, name: str, chunks: Callable[[], Iterable[bytes | memoryview]], size: int, version: Mapping[str, Any] | None) -> None:
        """Replace this version, until the store has all of it."""
        for _ in range(_ATTEMPTS):
            with contextlib.suppress(ConflictError):  # the answer to an earlier request was lost
                self._store.replace(name, chunks(), version)
            found, version = self._store.size(name)
            if found == size:
                return
        raise StoreError(f"{self.root}/{name} is not what was sent: it should have {size} bytes")

    def remove(self, name: str) -> None:
        with contextlib.suppress(AbsentError):
            self._store.remove(name)

    def sync_folders(self, names: Iterable[str]) -> None:
        """Nothing: a store has no folders."""

    def sync_files(self, table: str, names: Iterable[str]) -> None:
        """Nothing: what a store has taken is kept."""


Place = Folder | Bucket


def place_of(output: Path | str) -> Place:
    """The place of an output. ``output``: a path, or a URL."""
    path = local_path(output)
    return Bucket(str(output)) if path is None else Folder(path)


def sync(paths: Iterable[Path]) -> None:
    """Write files and folders to the disk."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def one_line(error: Exception) -> str:
    """An error's text in one line, without colours, without query strings, which may be signed, and without the page that a store answered."""
    return " ".join(_QUERY.sub("?…", _COLOURS.sub("", str(error).partition("<?xml")[0])).split()).rstrip(": ")
