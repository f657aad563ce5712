"""Which files are the tables: one small file that is appended to, and replaced when it has grown.

``<output>/_manifest`` holds lines of ``<8 hex digits of the CRC32 of the JSON> <JSON>``. The first is a snapshot, each other one a change: a batch
that was published, files that compaction replaced, files that expired. A change is in force in one piece, when its line is there whole: whoever
reads sees all of a batch in all tables or nothing of it, and never a file beside the one that took its place. A last line that is torn is one
that never was. When the changes outweigh the snapshot, a new file with a new snapshot takes the old one's name; who has the old one open reads on.

One process writes (the job holds the output's lock); everybody reads, with nothing but the standard library.
"""

import contextlib
import dataclasses
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
# Changes are kept until they are as long as the snapshot, and at least this long, in bytes.
KEPT_CHANGES: Final = 1 << 20


class ManifestError(ValueError):
    """The manifest of an output is damaged, of a newer version, or contradicts the files. The message is one line."""


@dataclasses.dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file of a table.

    Attributes:
        path: ``<table>/date=YYYY-MM-DD/hour=HH/<name>.parquet``, UTC.
        rows: how many.
        size: in bytes.
        first_us, last_us: least and greatest time of its rows (``capture_time``, or the minute in tables by minute), microseconds of the epoch.
        batch: the last micro-batch of which it has rows.
        level: 0: as a batch wrote it; else how often its rows were compacted.
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
    """What is in the tables at one moment.

    Attributes:
        query: id of the streaming query whose batches they are; "" before the first, or when nobody said.
        batch: the last batch that was published; -1 before the first.
        rows: rows of that batch by table.
        total: rows of all batches by table, whatever has expired since.
        files: by path.
        removed: files that are in no table any more but still on the disk for readers of an earlier manifest; when that happened, ns.
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

    def changed(self, change: Mapping[str, Any]) -> "Manifest":
        """What it is after a change, as ``ManifestLog.commit`` takes it."""
        return _apply(dataclasses.replace(self, files=dict(self.files), removed=dict(self.removed)), change)

    def as_change(self) -> dict[str, Any]:
        """The change that makes an empty manifest this one."""
        members = {name: getattr(self, name) for name in ("query", "batch", "rows", "total", "removed")}
        return {"format": FORMAT, **members, "add": [dataclasses.astuple(file) for file in self.files.values()]}


def read_manifest(output: str | Path) -> Manifest:
    """What the tables of ``output`` are now; empty when there are none yet.

    Raises:
        ManifestError: damaged, or of a newer version.
        OSError: it is there and cannot be read.
    """
    path = Path(output, MANIFEST)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return Manifest()
    manifest = Manifest()
    changes = list(_changes(path, data))
    if not changes or changes[0].get("format", FORMAT + 1) > FORMAT:
        raise ManifestError(f"{path}: {'is of a newer version' if changes else 'has no whole line'}")
    for change in changes:
        manifest = _apply(manifest, change)
    return manifest


def reason_for_refusal(output: Path) -> str:
    """Why tables cannot be written to a folder of an earlier layout; "" when they can."""
    old = next(output.glob("*/batch_id=*"), None)
    return f"{output} has tables in the layout before this one ({old.relative_to(output)}); name a new folder" if old is not None else ""


def has_batches(output: Path) -> bool:
    """Whether a folder has tables, of this layout or the one before."""
    return Path(output, MANIFEST).exists() or bool(reason_for_refusal(output))


def _apply(manifest: Manifest, change: Mapping[str, Any]) -> Manifest:
    """The manifest with a change; takes over the dictionaries of the one before."""
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
    """The lines, but for a torn last one."""
    lines = data.split(b"\n")
    for number, line in enumerate(lines, 1):
        crc, _, text = line.partition(b" ")
        if number == len(lines):
            return  # what is behind the last newline: nothing, or torn
        try:
            sound = int(crc, 16) == zlib.crc32(text)
        except ValueError:
            sound = False
        if sound:
            change: dict[str, Any] = json.loads(text)
            yield change
        elif any(lines[number:]):
            raise ManifestError(f"{path}: line {number} is damaged")


def _line(change: Mapping[str, Any]) -> bytes:
    text = json.dumps(change, separators=(",", ":")).encode()
    return b"%08x %b\n" % (zlib.crc32(text), text)


class ManifestLog:
    """The writer's side: one object in one process; its methods may be called from any thread."""

    def __init__(self, output: Path) -> None:
        """Take over what is there; a torn line goes.

        Raises:
            ManifestError: as ``read_manifest``.
            OSError: the output cannot be written to.
        """
        self._output = output
        self._lock = threading.Lock()
        self._state = read_manifest(output)
        self._fd = -1
        self._base = self._size = 0
        self._replace(self._state)

    @property
    def state(self) -> Manifest:
        """What is in force; an object that does not change."""
        return self._state

    def commit(self, **change: Any) -> Manifest:
        """Put a change in force: on return it is on the disk; when this raises it is not in force, and was not for good.

        Args:
            change: ``query``, ``batch``, ``rows``, ``total``: as the attributes of ``Manifest``; ``add``: files; ``remove``: paths that are in no
                table from now on, and then ``at``, the time in ns; ``gone``: removed paths that are no longer on the disk.

        Raises:
            OSError: it could not be written.
        """
        if "add" in change:
            change["add"] = [dataclasses.astuple(file) for file in change["add"]]
        with self._lock:
            state = self._state.changed(change)
            if self._fd < 0 or self._size - self._base > max(KEPT_CHANGES, self._base):
                self._replace(state)
            else:
                self._append(_line(change))
            self._state = state
            return state

    def close(self) -> None:
        """Let go of the file; nothing is left to write."""
        with self._lock:
            self._forget()

    def _append(self, line: bytes) -> None:
        try:
            written = os.write(self._fd, line)
            if written != len(line):
                raise OSError(f"{written} of {len(line)} bytes of the manifest's change were written")
            os.fdatasync(self._fd)
        except BaseException:
            self._forget()  # what is behind the last whole line is unknown: the next change begins a new file
            raise
        self._size += len(line)

    def _replace(self, state: Manifest) -> None:
        """Write a snapshot under the manifest's name."""
        line = _line(state.as_change())
        fresh = self._output / f"{MANIFEST}.new"
        with contextlib.suppress(FileNotFoundError):
            fresh.unlink()
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, FILE_MODE)
        try:
            with open(fd, "wb", buffering=0, closefd=False) as file:
                _write_all(file, line)
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


def _write_all(file: Any, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def sync_folders(folders: Iterable[Path]) -> None:
    """Make the names in these folders survive a power cut."""
    for folder in folders:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
