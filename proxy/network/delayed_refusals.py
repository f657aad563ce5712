"""Refused peers that wait for their answer. Their number is bounded, because each has a descriptor and memory.

When the bound is reached the oldest, which has waited longest, is answered at once: under a flood all wait as long as the bound allows.
"""

import abc
from typing import Final

from mypy_extensions import i64, mypyc_attr

__all__ = ["MAX_WAITING", "DelayedRefusal", "DelayedRefusals"]

MAX_WAITING: Final = 1000


@mypyc_attr(allow_interpreted_subclasses=True)
class DelayedRefusal(abc.ABC):
    """One of them."""

    @abc.abstractmethod
    def answer_now(self) -> None:
        """Wait no longer. Called while another is refused: no I/O and no close from here."""


class DelayedRefusals:
    """Those of one selector.

    Args:
        most: may wait.
    """

    def __init__(self, most: i64 = MAX_WAITING) -> None:
        self._most: Final[i64] = most
        self._waiting: Final[dict[DelayedRefusal, None]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, refused: DelayedRefusal) -> None:
        """It waits from now on."""
        if len(self._waiting) >= self._most:
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            oldest.answer_now()
        self._waiting[refused] = None

    def remove(self, refused: DelayedRefusal) -> None:
        """It is answered, or gone; harmless when it does not wait."""
        self._waiting.pop(refused, None)
