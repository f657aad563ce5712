"""Returns freed memory to the system when it has not been needed for a while.

The allocator is configured to keep freed memory (``control.fleet.processor``), because returning and faulting in pages for each large frame costs
time. So a processor would stay large after a burst: 94 MiB above idle after a full pool of 64 MiB. Four times a second the loop passes the largest
amount held since the last call and the number of connections. When one of them has fallen and stays low for another call, glibc's ``malloc_trim``
returns all free pages, also those within the heap: 2 ms for 64 MiB. Under a steady load nothing falls, and nothing is trimmed. Other C libraries have
no ``malloc_trim``; there nothing is done.
"""

from collections.abc import Callable
from typing import Final

LEAST_BYTES: Final = 1 << 20
LEAST_CHANNELS: Final = 64  # over TLS about as much
PART: Final = 8  # a fall by less than an eighth is not worth a pass over the heap


class HighWater:
    """Finds out when a value has fallen by ``least`` and by an eighth of its maximum, for more than one call."""

    def __init__(self, least: int) -> None:
        self._least: Final = least
        self._high = 0
        self._last = 0

    def has_fallen(self, value: int) -> bool:
        """Takes the highest value since the call before; True once for each fall."""
        recent = max(value, self._last)
        self._last = value
        fallen = self._high - recent >= max(self._least, self._high // PART)
        if fallen or recent > self._high:
            self._high = recent
        return fallen


class Heap:
    """Trims the heap when much memory was freed. ``find``: returns the function that trims, or None if there is none; called before the first
    trim.
    """

    def __init__(self, find: Callable[[], Callable[[], object] | None] | None = None) -> None:
        self.trims = 0  # how often the heap was trimmed, or would have been
        self._find: Final = find or find_trim
        self._trim: Callable[[], object] | None = None
        self._held: Final = HighWater(LEAST_BYTES)
        self._channels: Final = HighWater(LEAST_CHANNELS)

    def look(self, held: int, channels: int) -> None:
        """Trim if it is worth it. ``held``: the most bytes that were booked in the memory pool since the last call."""
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
    """Glibc's ``malloc_trim``, or None without it. ctypes is imported here, because it takes a third of a MiB."""
    try:
        import ctypes

        trim = ctypes.CDLL(None).malloc_trim
    except (ImportError, OSError, AttributeError):
        return None
    trim.argtypes = [ctypes.c_size_t]
    return lambda: trim(0)
