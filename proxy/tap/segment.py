"""The files of one stream: append a block, cut a torn tail, roll and seal.

One ``SegmentLog`` is the only writer of its stream, and only its thread uses the disk. A file is created for the first block, so an idle processor
leaves no files. A block is one gathering write at a known position. When it fails half way, the file is cut back to the last valid block. When that
fails too, the file is sealed (readers stop at the torn tail) and the next segment takes the same logical offset. A file without a valid block is
removed at once; sealed, it would hide its successor, which has the same name.

Sealing and renaming, or removing, a finished file is repeated until it succeeds. Readers read a file that stays ``.open``, but retention must not
delete it, nor anything behind it. The seal overwrites zeros in the file's header, so a full disk has room for it.

When another program deleted the open file, that is noticed after the next block, which then goes into a new segment. Readers see that earlier blocks
are missing.
"""

import contextlib
import errno
import importlib
import os
import time
from collections import deque
from typing import Any, Final

from mypy_extensions import i64, mypyc_attr

from framegate.proxy.network.run import Buffer
from framegate.proxy.tap.block import Block, Layout
from framegate.proxy.tap.headers import Seal, encode_block_header, encode_seal, encode_segment_header
from framegate.proxy.tap.record import (
    FILE_MODE,
    FOLDER_MODE,
    REASON_DISK_ERROR,
    REASON_DISK_FULL,
    SEAL_AT,
    SEAL_CUT,
    SEAL_FINAL,
    SEGMENT_HEADER_BYTES,
    segment_file,
)

# Linux takes at most 1024 pieces in one gathering write.
MAX_PIECES: Final = 1024


@mypyc_attr(allow_interpreted_subclasses=True)
class SegmentFiles:
    """The system calls of a ``SegmentLog``. All raise OSError; all may block."""

    def create(self, path: str) -> int:
        """Create ``path``, and its folder when it does not exist; the file must not exist. Returns a descriptor for writing."""
        os.makedirs(os.path.dirname(path), FOLDER_MODE, exist_ok=True)
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)

    def write(self, fd: int, parts: list[Buffer], position: int) -> int:
        """Write at most ``MAX_PIECES`` parts at ``position``, and keep none. Returns the number of bytes written, at least one."""
        return os.pwritev(fd, parts, position)

    def is_there(self, path: str, fd: int) -> bool:
        """Whether the open file still has this name."""
        opened = os.fstat(fd)
        try:
            named = os.stat(path)
        except FileNotFoundError:
            return False
        return (named.st_ino, named.st_dev) == (opened.st_ino, opened.st_dev)

    def truncate(self, fd: int, length: int) -> None:
        os.ftruncate(fd, length)

    def close(self, fd: int) -> None:
        os.close(fd)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def remove(self, path: str) -> None:
        os.unlink(path)


class _Left:
    """A finished file that is still to be sealed and renamed; without a name, to be removed."""

    def __init__(self, path: str, name: str, fd: int, seal: bytes) -> None:
        self.path = path
        self.name = name
        self.fd = fd
        self.seal = seal


class SegmentLog:
    """Appends blocks to one stream."""

    def __init__(
        self,
        folder: str,
        header: dict[str, str | int],
        segment_size: int,
        segment_age_ns: int,
        files: SegmentFiles | None = None,
    ) -> None:
        """Nothing is created before the first block.

        Args:
            folder: ``<directory>/<stream>``.
            header: node, slot, stream and boot_id, for each segment's header.
            segment_size: a segment is sealed before a block would make it larger; a single block may be larger.
        """
        self.folder = folder  # the stream's folder
        self.offset: i64 = 0  # the logical offset of the next block
        # blocks, bytes_written: totals; bytes are of whole blocks, without segment headers
        self.blocks: i64 = 0
        self.bytes_written: i64 = 0
        self.error: str = ""  # why a finished file could not be renamed or removed, in words; empty when none waits for that
        self.deleted: i64 = 0  # segments that another program deleted before they were sealed
        self.deleted_path: str = ""  # of the last of them
        self._header = header
        self._segment_size: i64 = segment_size
        self._segment_age_ns: i64 = segment_age_ns
        self._files: SegmentFiles = files if files is not None else SegmentFiles()
        self._fd: i64 = -1
        self._base: i64 = 0
        self._opened_ns: i64 = 0
        self._position: i64 = 0
        self._first_block: i64 = 0
        self._request_frames: i64 = 0
        self._response_frames: i64 = 0
        self._lost_frames: i64 = 0
        self._unfinished: deque[_Left] = deque()
        # A twelfth of the time of zlib's. Here, so that only a process with a tap loads it; so, because the compiler's environment does not have it.
        self._crc32: Any = importlib.import_module("isal.isal_zlib").crc32

    def append(self, block: Block, now_ns: i64) -> None:
        """Write one block. Readers on this host see it when this returns. ``block``: not changed; may be appended again after a failure. ``now_ns``:
        monotonic. Raises OSError: the first failure. Nothing of the block remains in the stream; a cleanup that failed too is repeated later.
        """
        if not self._append(block, now_ns):
            self._forget(self._path(sealed=False))
            fd = int(self._fd)
            self._fd = -1
            self._files.close(fd)
            self._append(block, now_ns)

    def _append(self, block: Block, now_ns: i64) -> bool:
        """Write one block; False: its file was deleted, and the block is not in the stream."""
        layout = Layout(block)
        length = layout.block_len
        if self._fd >= 0 and (self.due_ns() <= now_ns or self._position + length > SEGMENT_HEADER_BYTES + self._segment_size):
            self._leave(sealed=True)
        if self._fd < 0:
            self._open(now_ns)
        crc = 0
        for part in layout.parts:
            crc = self._crc32(part, crc)
        header = encode_block_header(layout.header(self.offset, self.blocks, crc))
        try:
            self._write_all(int(self._fd), [header, *layout.parts], self._position)
        except Exception:
            with contextlib.suppress(OSError):
                self._cut()
            raise
        if not self._files.is_there(self._path(sealed=False), int(self._fd)):
            return False
        self._position += length
        self._request_frames += block.request_frames
        self._response_frames += block.response_frames
        self._lost_frames += block.lost_frames
        self.offset += length
        self.blocks += 1
        self.bytes_written += length
        return True

    def _forget(self, path: str) -> None:
        """Count a segment that another program deleted."""
        self.deleted += 1
        self.deleted_path = path

    def due_ns(self) -> i64:
        """When the open segment will be old enough to be sealed, monotonic; -1 while none is open."""
        return self._opened_ns + self._segment_age_ns if self._fd >= 0 else -1

    def seal(self, *, final: bool = False) -> None:
        """Close the open segment, if there is one, seal and rename it. ``final``: the stream ends here, and all frames are accounted for. Raises
        OSError: that failed; the file keeps its name, which readers accept, and sealing is repeated later.
        """
        if self._fd >= 0:
            self._leave(sealed=True, flags=SEAL_FINAL if final else 0)
        self._tidy()

    def _path(self, *, sealed: bool) -> str:
        return os.path.join(self.folder, segment_file(int(self._base), sealed=sealed))

    def _open(self, now_ns: i64) -> None:
        try:
            self._tidy()
        except OSError:
            if not all(left.name for left in self._unfinished):
                raise  # the file to be removed has the name of the new one
        self._base = self.offset
        header = encode_segment_header({**self._header, "base": int(self._base), "created_ns": time.time_ns()})
        self._fd = self._files.create(self._path(sealed=False))
        self._position = SEGMENT_HEADER_BYTES
        self._opened_ns = now_ns
        self._first_block = self.blocks
        self._request_frames = self._response_frames = self._lost_frames = 0
        try:
            self._write_all(int(self._fd), [header], 0)
        except Exception:
            with contextlib.suppress(OSError):  # the first failure is raised; the cleanup is repeated later
                self._leave(sealed=False)
            raise

    def _leave(self, *, sealed: bool, flags: int = 0) -> None:
        """Finish the open file: it will be sealed, or is removed at once. Raises OSError: it could not be removed; no file is open all the same."""
        seal = encode_seal(self._seal(flags)) if sealed else b""
        left = _Left(self._path(sealed=False), self._path(sealed=True) if sealed else "", int(self._fd), seal)
        self._fd = -1
        self._unfinished.append(left)
        if not sealed:
            self._tidy()

    def _seal(self, flags: int) -> Seal:
        return Seal(
            int(self.offset),
            int(self.blocks - self._first_block),
            int(self._request_frames),
            int(self._response_frames),
            int(self._lost_frames),
            time.time_ns(),
            flags,
        )

    def _tidy(self) -> None:
        """Seal and rename, or remove, finished files. Raises OSError: some failed; they are tried again next time."""
        failure: OSError | None = None
        for _ in range(len(self._unfinished)):
            left = self._unfinished.popleft()
            try:
                self._finish(left)
            except FileNotFoundError:
                if left.name:
                    self._forget(left.path)
            except OSError as error:
                self._unfinished.append(left)
                failure = error
        self.error = "" if failure is None else str(failure)
        if failure is not None:
            raise failure

    def _finish(self, left: _Left) -> None:
        if left.fd >= 0:
            if left.seal:
                self._write_all(left.fd, [left.seal], SEAL_AT)
            fd = left.fd
            left.fd = -1
            self._files.close(fd)
        if left.name:
            self._files.rename(left.path, left.name)
        else:
            self._files.remove(left.path)

    def _write_all(self, fd: int, parts: list[Buffer], position: i64) -> None:
        while parts:
            wrote: i64 = self._files.write(fd, parts[:MAX_PIECES], int(position))
            position += wrote
            parts = remainder(parts, wrote)

    def _cut(self) -> None:
        """Cut a failed write off the file; when that fails too, or no block is left, continue in a new file."""
        if self._position == SEGMENT_HEADER_BYTES:
            self._leave(sealed=False)
            return
        try:
            self._files.truncate(int(self._fd), int(self._position))
        except OSError:
            self._leave(sealed=True, flags=SEAL_CUT)


def remainder(parts: list[Buffer], wrote: i64) -> list[Buffer]:
    """The parts that a gathering write of ``wrote`` bytes left over."""
    index = 0
    while index < len(parts) and wrote >= len(parts[index]):
        wrote -= len(parts[index])
        index += 1
    if index == len(parts):
        return []
    return [parts[index][wrote:], *parts[index + 1 :]] if wrote > 0 else parts[index:]


def reason_of(error: OSError) -> int:
    """The reason code for frames of a failed write."""
    return REASON_DISK_FULL if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else REASON_DISK_ERROR
