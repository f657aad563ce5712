"""The file of audit rows, one JSON object a line, in the order of the changes.

The file is opened for each write, so another program may rename it at any time (logrotate): the next row goes to a new file. Room for the row of
each change in progress is allocated before the change is made, so that a full disk refuses the change and not its row. Rows that cannot be written
wait, and are tried again with the next row and every ``RETRY_S``.
"""

import asyncio
import errno
import os
import stat
from collections.abc import Callable
from typing import Final

ROOM: Final = 256 * 1024  # bytes that are allocated for a row: the longest has less (``framegate.control.service.quoting``)
MAX_WAITING: Final = 1_000  # rows that wait; further ones are lost for the file
RETRY_S: Final = 5.0
_KEEP_SIZE: Final = 1  # FALLOC_FL_KEEP_SIZE: readers of the file see nothing of the room
_UNSUPPORTED: Final = (errno.EOPNOTSUPP, errno.ENOSYS)


class AuditFile:
    """Event loop only; the disk is used in a thread.

    Args:
        path: made with mode 0600 if it does not exist.
        on_change: called with the error when rows can no longer be written, and with None when all are written again.
        on_unwritten: called for each row that could not be written at once.
    """

    def __init__(self, path: str, on_change: Callable[[OSError | None], None], on_unwritten: Callable[[], None]) -> None:
        self.path = path
        self._on_change = on_change
        self._on_unwritten = on_unwritten
        self._waiting: list[bytes] = []
        self._counted = 0  # of those that wait
        self._places = 0  # of rows to come, for which there is room
        self.error: OSError | None = None  # why rows could not be written the last time; None: they could
        self._lock = asyncio.Lock()
        self._writing: set[asyncio.Task[OSError | None]] = set()
        self._retry: asyncio.TimerHandle | None = None

    async def reserve(self) -> OSError | None:
        """Write what waits, and allocate room for one row more; the error if that fails. ``add`` or ``release`` gives the room up."""
        task = self._start(room=True)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(self._unwanted)
            raise

    def _unwanted(self, task: asyncio.Task[OSError | None]) -> None:
        if not task.cancelled() and task.exception() is None and task.result() is None:
            self.release()

    def release(self) -> None:
        """Give up the room for a row."""
        self._places -= 1

    def add(self, line: str, *, reserved: bool = False) -> None:
        """Queue a row, for which there is room or not; ``write`` writes it."""
        self._places -= reserved
        if len(self._waiting) < MAX_WAITING:
            self._waiting.append(f"{line}\n".encode("utf-8", "replace"))
        else:
            self._on_unwritten()

    async def write(self) -> None:
        """Write the rows that were added before this call, to the disk; those that cannot be written are counted and wait."""
        await asyncio.shield(self._start())

    def _start(self, *, room: bool = False) -> asyncio.Task[OSError | None]:
        """Write what waits, and perhaps allocate room. If its caller is cancelled, it goes on, as its thread does: only one may write."""
        task = asyncio.create_task(self._write_alone(room))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)
        return task

    async def _write_alone(self, room: bool) -> OSError | None:
        async with self._lock:
            lines = list(self._waiting)
            if not lines and not room:
                return self.error  # another call has written them
            written, error = await asyncio.to_thread(self._append, b"".join(lines), ROOM * (self._places + room))
            self._places += room and error is None
            if written:
                del self._waiting[: len(lines)]
                lines = []
            for _ in range(self._counted, len(lines)):
                self._on_unwritten()
            self._counted = len(lines)
            if error is not None or room:  # rows that just fit do not mean that there is room again
                if (error is None) != (self.error is None):
                    self._on_change(error)
                self.error = error
            if (lines or self.error is not None) and self._retry is None:
                self._retry = asyncio.get_running_loop().call_later(RETRY_S, self._again)
            return error

    def _again(self) -> None:
        self._retry = None
        self._start(room=True).add_done_callback(self._unwanted)

    def _append(self, data: bytes, room: int) -> tuple[bool, OSError | None]:
        """Append whole lines, or nothing; then allocate room. Returns whether the lines are on the disk, and the error."""
        try:
            fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        except OSError as error:
            return False, error
        written = False
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                return False, OSError(errno.EINVAL, "it is no ordinary file", self.path)
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(fd, view) :]
                if data:
                    os.fdatasync(fd)
            except OSError:
                os.ftruncate(fd, status.st_size)
                raise
            written = True
            if room:
                self._allocate(fd, status.st_size + len(data), room)
        except OSError as error:
            return written, error
        finally:
            os.close(fd)
        return written, None

    def _allocate(self, fd: int, start: int, size: int) -> None:
        """Take blocks of the disk. A file system that cannot do that has no room kept: a write may fail."""
        import ctypes  # only where there is such a file

        libc = ctypes.CDLL(None, use_errno=True)
        if libc.fallocate(fd, _KEEP_SIZE, ctypes.c_long(start), ctypes.c_long(size)) != 0:
            number = ctypes.get_errno()
            if number not in _UNSUPPORTED:
                raise OSError(number, os.strerror(number), self.path)

    async def close(self) -> None:
        """Try a last time to write what waits."""
        if self._retry is not None:
            self._retry.cancel()
        if self._waiting:
            await self.write()
