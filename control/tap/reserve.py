"""Room kept free in the tap's directory, so that losses can be recorded on a full disk. It does not count for the tap's budget, which is of
streams and may be as small as the reserve.
"""

import contextlib
import errno
import os
from typing import Final

from framegate.proxy.tap.record import REASON_DISK_FULL
from framegate.proxy.tap.segment import reason_of

RESERVE_NAME: Final = "_reserve"
RESERVE_BYTES: Final = 1 << 20
PIECE_BYTES: Final = 64 * 1024  # Released at once: a settlement and its lines in the ledger are a few KiB, and other writers take free room quickly
SPARE: Final = 2  # the reserve is taken when this multiple of its size is free


def is_full(error: OSError) -> bool:
    """Whether more room would have helped."""
    return reason_of(error) == REASON_DISK_FULL


class Reserve:
    """One file, allocated and empty. Not thread safe; blocks on the file system."""

    def __init__(self, directory: str) -> None:
        """Nothing is touched before ``take``."""
        self._directory = directory
        self._path = os.path.join(directory, RESERVE_NAME)
        self.size = 0  # bytes that it holds now

    def take(self) -> None:
        """Allocate all of it; on failure keep what was held before. Raises OSError: it cannot be allocated now; ENOSPC when there is too
        little room.
        """
        if self.size == RESERVE_BYTES:
            return
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            self.size = min(RESERVE_BYTES, os.fstat(fd).st_blocks * 512)
            if self.size < RESERVE_BYTES:
                room = os.fstatvfs(fd)
                if room.f_bavail * room.f_frsize < SPARE * RESERVE_BYTES:
                    raise OSError(errno.ENOSPC, "too little room", self._path)
                os.posix_fallocate(fd, 0, RESERVE_BYTES)
                self.size = RESERVE_BYTES
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(fd, self.size)
            raise
        finally:
            os.close(fd)

    def give(self, *, all_of_it: bool) -> bool:
        """Release a piece. ``all_of_it``: otherwise half of the reserve is kept, for the end. Returns whether there was one. Raises OSError: it
        could not be released.
        """
        left = self.size - PIECE_BYTES
        if left < (0 if all_of_it else RESERVE_BYTES // 2):
            return False
        os.truncate(self._path, left)
        self.size = left
        return True
