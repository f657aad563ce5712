"""Faults: errors of our own, caught where they cost no more than one connection, timer or command. What peers do wrong is none.

Counted by place for the metrics; the first of each place since the last look is kept as text, for the log. The error itself is not kept: its
traceback holds everything that was at work.
"""

from typing import Final, NamedTuple

from librt.vecs import vec
from mypy_extensions import i64

from framegate.proxy.cells import FAULT_PLACES

__all__ = ["Fault", "Faults"]


class Fault(NamedTuple):
    """What one place has to tell.

    Attributes:
        place: one of ``FAULT_PLACES``.
        times: how often since the last ``take``.
        error: the first of them, type and text.
        at: file and line where it was raised; empty when that is not known.
    """

    place: str
    times: int
    error: str
    at: str


class Faults:
    """The faults of one thread.

    Attributes:
        counts: ever, in the order of ``FAULT_PLACES``.
        untold: there is something to ``take``.
    """

    def __init__(self) -> None:
        self.counts: vec[i64] = vec[i64]([0] * len(FAULT_PLACES))
        self.untold: bool = False
        self._kept: Final[dict[str, Fault]] = {}

    @property
    def total(self) -> int:
        """Faults of all places."""
        return sum(self.counts)

    def note(self, place: str, error: BaseException) -> None:
        """Count an error that was caught.

        Raises:
            ValueError: no such place.
        """
        self.note_text(place, _text(error), _where(error))

    def note_text(self, place: str, text: str, at: str = "") -> None:
        """As ``note``, for an error that another thread has put into words."""
        self.counts[FAULT_PLACES.index(place)] += 1
        kept = self._kept.get(place)
        self._kept[place] = Fault(place, 1, text, at) if kept is None else kept._replace(times=kept.times + 1)
        self.untold = True

    def take(self) -> list[Fault]:
        """What was noted since the last call, one for each place."""
        taken = list(self._kept.values())
        self._kept.clear()
        self.untold = False
        return taken


def _text(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # an error that cannot be printed is still one
        return type(error).__name__


def _where(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f"{trace.tb_frame.f_code.co_filename.rpartition('/')[2]}:{trace.tb_lineno}"
