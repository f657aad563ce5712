"""The heap: what was freed goes back to the system, once it is not needed for a while.

The allocator is set to keep what is freed (``control.fleet.processor``): giving it back and faulting it in again with each large frame costs time. So
after a burst a processor would stay as large as it ever was: 94 MiB above idle after a pool of 64 MiB had been full, 7 MiB after eight frames of
1 MB at a time. Four times a second the loop says what was held at most since the last look, and how many connections there are; when that has
fallen, and has stayed so for another look, glibc is asked to give back what it has free (``malloc_trim``), pages within the heap included.
Under a load that goes on nothing falls, and nothing is asked. It takes 2 ms for 64 MiB, which is as much as glibc keeps at the heap's end.

Another C library than glibc has no ``malloc_trim``, and is left alone.
"""

from collections.abc import Callable
from typing import Final

__all__ = ["LEAST_BYTES", "LEAST_CHANNELS", "Heap", "HighWater", "find_trim"]

LEAST_BYTES: Final = 1 << 20
LEAST_CHANNELS: Final = 64  # over TLS about as much
PART: Final = 8  # less than one part in so many is not worth a look through the heap


class HighWater:
    """Tells when something has fallen: by ``least`` and by an eighth of what it was at most, and not only for one look."""

    def __init__(self, least: int) -> None:
        self._least: Final = least
        self._high = 0
        self._last = 0

    def has_fallen(self, value: int) -> bool:
        """Look at the highest value since the look before; True once for each fall."""
        recent = max(value, self._last)
        self._last = value
        fallen = self._high - recent >= max(self._least, self._high // PART)
        if fallen or recent > self._high:
            self._high = recent
        return fallen


class Heap:
    """Asks for the heap to be trimmed when much of what it held is gone.

    Args:
        find: gives what trims it, or None where there is nothing that does; called when it is needed first.

    Attributes:
        trims: how often it was asked for.
    """

    def __init__(self, find: Callable[[], Callable[[], object] | None] | None = None) -> None:
        self.trims = 0
        self._find: Final = find or find_trim
        self._trim: Callable[[], object] | None = None
        self._held: Final = HighWater(LEAST_BYTES)
        self._channels: Final = HighWater(LEAST_CHANNELS)

    def look(self, held: int, channels: int) -> None:
        """Trim when it is worth it.

        Args:
            held: bytes booked at the memory pool, at most since the last look.
            channels: how many there are.
        """
        held_fell = self._held.has_fallen(held)
        channels_fell = self._channels.has_fallen(channels)
        if not (held_fell or channels_fell):
            return
        if self.trims == 0:
            self._trim = self._find()
        self.trims += 1
        if self._trim is not None:
            self._trim()


def find_trim() -> Callable[[], object] | None:
    """Glibc's ``malloc_trim``, or None without it. Not at import: ctypes is a third of a MiB, which a processor that held little does without."""
    try:
        import ctypes

        trim = ctypes.CDLL(None).malloc_trim
    except (ImportError, OSError, AttributeError):
        return None
    trim.argtypes = [ctypes.c_size_t]
    return lambda: trim(0)
