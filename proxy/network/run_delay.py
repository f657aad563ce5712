"""How long this thread was ready to run and did not, because others ran or the container had used up its CPU time. From Linux' schedstat."""

import contextlib
import os
from typing import Final

PATH: Final = "/proc/thread-self/schedstat"  # ns on a CPU, ns ready, slices
SIZE: Final = 64
MISSING: Final = -1
UNOPENED: Final = -2


class RunDelay:
    """The delay of the thread that asks first."""

    def __init__(self, path: str = PATH) -> None:
        self._path: Final = path
        self._fd: int = UNOPENED
        self._last: int = 0

    def since_last_ns(self) -> int:
        """The delay since the last call; 0: the first call, or the kernel does not say."""
        first = self._fd == UNOPENED
        if first:
            self._fd = MISSING
            with contextlib.suppress(OSError):
                self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        if self._fd < 0:
            return 0
        try:
            before, self._last = self._last, int(os.pread(self._fd, SIZE, 0).split()[1])
        except (OSError, IndexError, ValueError):
            self.close()
            return 0
        return 0 if first else self._last - before

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = MISSING
