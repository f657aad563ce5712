"""Peers that were refused and wait for the answer: so many at most, for each has a descriptor and its memory.

In the order in which they were refused. One more, and the oldest, which has waited the longest, is answered at once: under a flood everybody waits
as long as there is room for, and nobody not at all.
"""

import abc
from typing import Final

from mypy_extensions import i64, mypyc_attr

__all__ = ["MAX_WAITING", "Refusals", "Refused"]

MAX_WAITING: Final = 1000


@mypyc_attr(allow_interpreted_subclasses=True)
class Refused(abc.ABC):
    """One of them."""

    @abc.abstractmethod
    def answer_now(self) -> None:
        """Wait no longer. Called while another is refused: no I/O and no close from here."""


class Refusals:
    """Those of one selector.

    Args:
        most: may wait.
    """

    def __init__(self, most: i64 = MAX_WAITING) -> None:
        self._most: Final[i64] = most
        self._waiting: Final[dict[Refused, None]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, refused: Refused) -> None:
        """It waits from now on."""
        if len(self._waiting) >= self._most:
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            oldest.answer_now()
        self._waiting[refused] = None

    def remove(self, refused: Refused) -> None:
        """It is answered, or gone; harmless when it does not wait."""
        self._waiting.pop(refused, None)
