"""What only one instance may have: a lock that the kernel gives back when its process ends, however it ends."""

import contextlib
import fcntl
import os
import pathlib
import time
from typing import Final

from control.errors import StartError
from proxy.tap.record import FOLDER_MODE, LOCK_NAME

__all__ = ["DirectoryLock"]

ATTEMPTS: Final = 5
ATTEMPT_S: Final = 0.02


class DirectoryLock:
    """Holds a directory of the tap, made for its owner and the readers of its group when there is none, until ``release``. The lock's file stays.

    Attributes:
        last_ns: when its last holder, or this one, gave a sign of life (``beat``) before, wall clock.

    Raises:
        StartError: another instance holds it, or it cannot be used.
    """

    def __init__(self, directory: str, what: str) -> None:
        path = pathlib.Path(directory)
        try:
            path.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
            self._descriptor = os.open(path / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            text = f"the {what} {path} cannot be used: {error.strerror or error}"
            raise StartError(text, reason="DIRECTORY_UNUSABLE", directory=directory) from error
        try:
            self._take()
        except BlockingIOError as error:
            holder = os.pread(self._descriptor, 64, 0).decode("ascii", "replace").strip()
            os.close(self._descriptor)
            text = f"another framegate (process {holder or 'unknown'}) uses the {what} {path}"
            raise StartError(text, reason="DIRECTORY_IN_USE", directory=directory, pid=holder) from error
        self.last_ns = os.fstat(self._descriptor).st_mtime_ns
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def _take(self) -> None:
        """Lock it; a reader that looks whether somebody has it (``completeness``) does so for a moment only.

        Raises:
            BlockingIOError: another instance has it.
        """
        for _ in range(ATTEMPTS - 1):
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            time.sleep(ATTEMPT_S)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def beat(self) -> None:
        """Give a sign of life: whoever comes next sees when the last one was."""
        os.utime(self._descriptor)

    def release(self) -> None:
        """Let others have it."""
        os.close(self._descriptor)
