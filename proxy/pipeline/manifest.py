"""The list of the tables' files: one small file that is appended to, and replaced when it has grown.

``<output>/_manifest`` has lines of ``<8 hex digits of the CRC32 of the JSON> <JSON>``. The first is a snapshot, each other one a change: a batch that
was published, files that compaction replaced, files that expired. A change is in force as a whole, when its line is whole: a reader sees all of a
batch in all tables or nothing of it, and never a file beside its replacement. A torn last line does not count. When the changes are longer than the
snapshot, a new file with a new snapshot replaces the old one; a reader that has the old one open reads on.

One process writes (the job holds the output's lock); readers need the standard library only.
"""

import contextlib
import dataclasses
import functools
import json
import os
import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from framegate.proxy.tap.record import FILE_MODE

__all__ = ["MANIFEST", "DataFile", "Manifest", "ManifestError", "ManifestLog", "has_batches", "read_manifest", "reason_for_refusal"]

MANIFEST: Final = "_manifest"
FORMAT: Final = 1
# Changes are kept until they have this many bytes, and are as long as the snapshot.
KEPT_CHANGES: Final = 1 << 20


class ManifestError(ValueError):
    """The manifest of an output is damaged, of a newer version, or contradicts the files. The message is one line."""


@dataclasses.dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file of a table.

    Attributes:
        path: ``<table>/date=YYYY-MM-DD/hour=HH/<name>.parquet``, UTC.
        size: in bytes.
        first_us, last_us: least and greatest time of its rows (``capture_time``, or the minute in tables by minute), microseconds of the epoch.
        batch: the last micro-batch of which it has rows.
        level: how often its rows were compacted; 0: as a batch wrote it.
    """

    path: str
    rows: int
    size: int
    first_us: int
    last_us: int
    batch: int
    level: int = 0

    @property
    def table(self) -> str:
        return self.path.partition("/")[0]

    @property
    def folder(self) -> str:
        """Table, date and hour."""
        return self.path.rpartition("/")[0]


@dataclasses.dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of the tables at one moment.

    Attributes:
        query: id of the streaming query that wrote the batches; "" before the first, or when it is not known.
        batch: the last batch that was published; -1 before the first.
        rows: rows of that batch by table.
        total: rows of all batches by table, whatever has expired since.
        files: by path.
        removed: files that are in no table any more but still on the disk for readers of an earlier manifest; the time of removal, ns.
    """

    query: str = ""
    batch: int = -1
    rows: dict[str, int] = dataclasses.field(default_factory=dict)
    total: dict[str, int] = dataclasses.field(default_factory=dict)
    files: dict[str, DataFile] = dataclasses.field(default_factory=dict)
    removed: dict[str, int] = dataclasses.field(default_factory=dict)

    def of(self, table: str, since_us: int | None = None, until_us: int | None = None) -> list[DataFile]:
        """The files of a table that may have rows in ``[since_us, until_us)``, the oldest first."""
        found = (
            file
            for file in self.files.values()
            if file.table == table and (since_us is None or file.last_us >= since_us) and (until_us is None or file.first_us < until_us)
        )
        return sorted(found, key=lambda file: (file.first_us, file.path))


def read_manifest(output: str | Path) -> Manifest:
    """The present manifest of ``output``; empty when there is none yet.

    Raises:
        ManifestError: it is damaged, or of a newer version.
        OSError: it cannot be read.
    """
    path = Path(output, MANIFEST)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return Manifest()
    changes = list(_changes(path, data))
    if not changes or changes[0].get("format", FORMAT + 1) > FORMAT:
        raise ManifestError(f"{path}: {'is of a newer version' if changes else 'has no whole line'}")
    return functools.reduce(_apply, changes, Manifest())


def reason_for_refusal(output: Path) -> str:
    """Why tables cannot be written to a folder of an earlier layout; "" when they can."""
    old = next(output.glob("*/batch_id=*"), None)
    return f"{output} has tables in the layout before this one ({old.relative_to(output)}); name a new folder" if old is not None else ""


def has_batches(output: Path) -> bool:
    """Whether a folder has tables, of this layout or the previous one."""
    return Path(output, MANIFEST).exists() or bool(reason_for_refusal(output))


def _apply(manifest: Manifest, change: Mapping[str, Any]) -> Manifest:
    """The manifest with a change, which is in the form of ``ManifestLog.commit``; it has the given one's dictionaries."""
    files, removed = manifest.files, manifest.removed
    for path in change.get("remove", ()):
        del files[path]
        removed[path] = change["at"]
    for path in change.get("gone", ()):
        del removed[path]
    removed.update(change.get("removed", {}))
    for fields in change.get("add", ()):
        file = DataFile(*fields)
        files[file.path] = file
    return dataclasses.replace(manifest, **{name: change[name] for name in ("query", "batch", "rows", "total") if name in change})


def _changes(path: Path, data: bytes) -> Iterator[dict[str, Any]]:
    """The lines, without a torn last one."""
    *lines, _ = data.split(b"\n")  # behind the last newline is nothing, or a torn line
    for number, line in enumerate(lines, 1):
        crc, _, text = line.partition(b" ")
        try:
            sound = int(crc, 16) == zlib.crc32(text)
        except ValueError:
            sound = False
        if sound:
            change: dict[str, Any] = json.loads(text)
            yield change
        elif any(lines[number:]) or not data.endswith(b"\n"):
            raise ManifestError(f"{path}: line {number} is damaged")


def _line(change: Mapping[str, Any]) -> bytes:
    text = json.dumps(change, separators=(",", ":")).encode()
    return b"%08x %b\n" % (zlib.crc32(text), text)


class ManifestLog:
    """The writer of the manifest: one object in one process; its methods may be called from any thread."""

    def __init__(self, output: Path) -> None:
        """Read the manifest and drop a torn line. Raises ManifestError as ``read_manifest``, OSError when the output cannot be written to."""
        self._output = output
        self._lock = threading.Lock()
        self._state = read_manifest(output)
        self._fd = -1
        self._base = self._size = 0
        self._replace(self._state)

    @property
    def state(self) -> Manifest:
        """The manifest in force; an object that does not change."""
        return self._state

    def commit(self, **change: Any) -> Manifest:
        """Put a change in force: on return it is on the disk; when this raises an error it is not in force.

        Args:
            change: ``query``, ``batch``, ``rows``, ``total``: as the attributes of ``Manifest``; ``add``: files; ``remove``: paths that leave their
                table, with ``at``, the time in ns; ``gone``: removed paths that are no longer on the disk.

        Raises:
            OSError: it could not be written.
        """
        if "add" in change:
            change["add"] = [dataclasses.astuple(file) for file in change["add"]]
        with self._lock:
            copy = dataclasses.replace(self._state, files=dict(self._state.files), removed=dict(self._state.removed))
            state = _apply(copy, change)
            if self._fd < 0 or self._size - self._base > max(KEPT_CHANGES, self._base):
                self._replace(state)
            else:
                self._append(_line(change))
            self._state = state
            return state

    def close(self) -> None:
        """Close the file; nothing is left to write."""
        with self._lock:
            self._forget()

    def _append(self, line: bytes) -> None:
        try:
            written = os.write(self._fd, line)
            if written != len(line):
                raise OSError(f"{written} of {len(line)} bytes of the manifest's change were written")
            os.fdatasync(self._fd)
        except BaseException:
            self._forget()  # the end of the file is unknown: the next change begins a new one
            raise
        self._size += len(line)

    def _replace(self, state: Manifest) -> None:
        """Write a snapshot, which is the change from an empty manifest, under the manifest's name."""
        members = {name: getattr(state, name) for name in ("query", "batch", "rows", "total", "removed")}
        line = _line({"format": FORMAT, **members, "add": [dataclasses.astuple(file) for file in state.files.values()]})
        fresh = self._output / f"{MANIFEST}.new"
        with contextlib.suppress(FileNotFoundError):
            fresh.unlink()
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, FILE_MODE)
        try:
            with open(fd, "wb", closefd=False) as file:
                file.write(line)
            os.fsync(fd)
            os.rename(fresh, self._output / MANIFEST)
            sync_folders([self._output])
        except BaseException:
            os.close(fd)
            self._forget()
            raise
        self._forget()
        self._fd, self._base, self._size = fd, len(line), len(line)

    def _forget(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def sync_folders(folders: Iterable[Path]) -> None:
    """Write the names in these folders to the disk."""
    for folder in folders:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
