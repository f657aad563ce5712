"""Room that is kept free in the tap's directory, so that a full disk can still be told what it did not take. It is no part of the tap's budget, which
is of streams and may be as small as the reserve.
"""

import contextlib
import errno
import os
from typing import Final

__all__ = ["RESERVE_NAME", "Reserve", "is_full"]

RESERVE_NAME: Final = "_reserve"
RESERVE_BYTES: Final = 1 << 20
PIECE_BYTES: Final = 64 * 1024
"""Given up at once: the settlement of one stream and its lines in the ledger are a few KiB, and others, who write all the time, take what is free."""
SPARE: Final = 2
"""The reserve is taken when so many times its size is free."""


def is_full(error: OSError) -> bool:
    """Whether room would have helped."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Reserve:
    """One file, allocated and empty. Not thread safe; blocks on the file system.

    Attributes:
        size: bytes that it holds now.
    """

    def __init__(self, directory: str) -> None:
        """Nothing is touched before ``take``."""
        self._directory = directory
        self._path = os.path.join(directory, RESERVE_NAME)
        self.size = 0

    def take(self) -> None:
        """Hold all of it, or at least what was held before.

        Raises:
            OSError: it cannot be had now; ENOSPC when there is too little room.
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
        """Give up a piece.

        Args:
            all_of_it: else half of the reserve is kept, for the end.

        Returns:
            Whether there was one.

        Raises:
            OSError: it could not be given up.
        """
        left = self.size - PIECE_BYTES
        if left < (0 if all_of_it else RESERVE_BYTES // 2):
            return False
        os.truncate(self._path, left)
        self.size = left
        return True
