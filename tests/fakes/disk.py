"""A disk that fills up, breaks, and comes back, under the tap's log."""

import errno
import os

from framegate.proxy.network.run import Buffer
from framegate.proxy.tap.segment import SegmentFiles


class FakeDisk(SegmentFiles):
    """Real files, with room for so many bytes and errors on demand."""

    def __init__(self, room: int | None = None) -> None:
        # bytes by which files may still grow; a write that does not fit goes half way and then fails, as a real one does. None: no bound.
        self.room = room
        self.broken = 0  # the errno that every write fails with; 0: none
        self.failing: set[str] = set()  # calls by name that fail with EIO; ``close`` closes all the same, as Linux does
        self.piecemeal = 0  # bytes that one call takes at most; 0: all
        self.calls: list[str] = []  # names of the calls made, in order

    def create(self, path: str) -> int:
        self._call("create")
        return super().create(path)

    def write(self, fd: int, parts: list[Buffer], position: int) -> int:
        self._call("write")
        if self.broken:
            raise OSError(self.broken, os.strerror(self.broken))
        whole = b"".join(parts)
        take = len(whole) if not self.piecemeal else min(self.piecemeal, len(whole))
        if self.room is not None:
            within = max(0, min(take, os.fstat(fd).st_size - position))
            take = min(take, within + self.room)
            if take == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.room -= take - within
        return super().write(fd, [whole[:take]], position)

    def truncate(self, fd: int, length: int) -> None:
        self._call("truncate")
        if self.room is not None:
            self.room += os.fstat(fd).st_size - length
        super().truncate(fd, length)

    def close(self, fd: int) -> None:
        super().close(fd)
        self._call("close")

    def rename(self, source: str, target: str) -> None:
        self._call("rename")
        super().rename(source, target)

    def remove(self, path: str) -> None:
        self._call("remove")
        super().remove(path)

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name in self.failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
