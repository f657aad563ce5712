"""The lock of a tap directory, which the kernel releases when its holder ends in any way.

A control process that was killed leaves processors behind. They end by themselves, but not while they are stopped (SIGSTOP, a frozen cgroup), and
write when they continue. So they inherit a descriptor of a second file with a shared lock on it. That lock belongs to the open file, not to a
process, and the kernel releases it when the last of them has ended. The holder of the directory asks whether another such lock exists.
"""

import contextlib
import fcntl
import os
import pathlib
import struct
import time
from typing import Final

from framegate.control.errors import StartError
from framegate.proxy.tap.record import FOLDER_MODE, LOCK_NAME, WRITERS_NAME

ATTEMPTS: Final = 5
ATTEMPT_S: Final = 0.02
FLOCK: Final = struct.Struct("hhqqi4x")  # ``struct flock``: type, whence, start, length (0: to the end), pid (0: the lock is of the open file)


class DirectoryLock:
    """Holds a directory of the tap until ``release``. Creates the directory for its owner and the readers of its group; the lock's file stays.

    Attributes:
        writers: the descriptor for this holder's processors to inherit.

    Raises StartError: another instance holds it, or it cannot be used.
    """

    def __init__(self, directory: str, what: str) -> None:
        path = pathlib.Path(directory)
        try:
            with contextlib.ExitStack() as undo:
                path.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
                self._descriptor = _open(path / LOCK_NAME)
                undo.callback(os.close, self._descriptor)
                self._take()
                self.writers = _open(path / WRITERS_NAME)
                undo.pop_all()
        except BlockingIOError as error:
            holder = (path / LOCK_NAME).read_bytes()[:64].decode("ascii", "replace").partition("\n")[0].strip()
            text = f"another framegate (process {holder or 'unknown'}) uses the {what} {path}"
            raise StartError(text, reason="DIRECTORY_IN_USE", directory=directory, pid=holder) from error
        except OSError as error:
            text = f"the {what} {path} cannot be used: {error.strerror or error}"
            raise StartError(text, reason="DIRECTORY_UNUSABLE", directory=directory) from error
        self.unguarded = self._guard()  # why the file system does not tell whether an earlier holder's processors live, in words; empty when it does
        self.last_ns = os.fstat(self._descriptor).st_mtime_ns  # the last heartbeat before this holder, wall clock
        lines = os.pread(self._descriptor, 64, 0).split()
        # the number noted last (``heartbeat``), by this holder or one before; 0: none
        self.noted = int(lines[1]) if len(lines) == 2 and lines[1].isdigit() else 0
        self._write()

    def _take(self) -> None:
        """Lock it. A reader that checks the lock (``completeness``) holds it for a moment, so this tries again. Raises BlockingIOError."""
        for _ in range(ATTEMPTS - 1):
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            time.sleep(ATTEMPT_S)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _guard(self) -> str:
        """Lock ``writers``, shared; processes that inherit it hold this lock, too."""
        try:
            fcntl.fcntl(self.writers, fcntl.F_OFD_SETLK, FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0))
        except OSError as error:  # a file system, or a kernel, that has no locks of open files
            return error.strerror or str(error)
        return ""

    def others_write(self) -> bool:
        """Whether a processor of an earlier holder lives; it may still write. False where that is not known (``unguarded``). Raises OSError: the file
        system does not answer.
        """
        if self.unguarded:
            return False
        answer = fcntl.fcntl(self.writers, fcntl.F_OFD_GETLK, FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        return int(FLOCK.unpack(answer)[0]) != fcntl.F_UNLCK

    def heartbeat(self, number: int = 0) -> None:
        """Renew the heartbeat, and note a number when it is larger than the one noted; the next holder reads both."""
        os.utime(self._descriptor)
        if number > self.noted:
            self.noted = number
            self._write()

    def _write(self) -> None:
        """Write process id and number, in place, so that a full disk has room."""
        os.pwrite(self._descriptor, f"{os.getpid():<10}\n{self.noted:<20}\n".encode(), 0)
        os.ftruncate(self._descriptor, 32)

    def release(self) -> None:
        """Release the directory; processors that live keep their lock."""
        os.close(self.writers)
        os.close(self._descriptor)


def _open(path: pathlib.Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
