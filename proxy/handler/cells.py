"""What a handler process tells of itself four times a second: 64-bit cells in memory that it shares with control.

One memfd for each process, made by control; the process is its only writer. Control finds there what holds now, however long it did not look. An
aligned 8-byte store is never seen half; the heartbeat is stored last.
"""

import mmap
import os
from typing import Final, NamedTuple

__all__ = ["HeartbeatCells", "HeartbeatSample", "create_cells"]

_CELL: Final = 8


class HeartbeatSample(NamedTuple):
    """How a handler process stands. It tells from a thread of its own, so that a handler that never returns is seen.

    Attributes:
        handled, failed: frames since the start, and those of them at which a handler raised.
        busy_ns: for how long at least one frame was being handled, since the start.
        in_handler: frames that are being handled now; the one that is longest for ``oldest_ns``, 0 when there is none.
        queued: frames that wait for their turn.
    """

    handled: int
    failed: int
    busy_ns: int
    in_handler: int
    oldest_ns: int
    queued: int


_SIZE: Final = (1 + len(HeartbeatSample._fields)) * _CELL


def create_cells(name: str) -> int:
    """Make the memory of one process and return its descriptor (close on exec; hand it on with ``pass_fds``). Raises OSError."""
    descriptor = os.memfd_create(name)
    try:
        os.ftruncate(descriptor, _SIZE)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


class HeartbeatCells:
    """One end of the cells. The descriptor may be closed afterwards. Raises OSError."""

    def __init__(self, descriptor: int) -> None:
        self._mapping: Final = mmap.mmap(descriptor, _SIZE)
        self._cells: Final = memoryview(self._mapping).cast("q")

    @property
    def heartbeat_ns(self) -> int:
        """When the process told last how it stands, CLOCK_MONOTONIC; 0: it has not."""
        return int(self._cells[0])

    def read(self) -> HeartbeatSample:
        """What it told."""
        return HeartbeatSample(*self._cells[1:])

    def write(self, beat: HeartbeatSample, now_ns: int) -> None:
        """Tell how things stand."""
        for index, value in enumerate(beat, 1):
            self._cells[index] = value
        self._cells[0] = now_ns

    def close(self) -> None:
        """Give the memory of this end back."""
        self._cells.release()
        self._mapping.close()
