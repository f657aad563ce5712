"""Faults: internal errors that were caught, so that each ends only one connection, timer or command. Errors of peers are not faults.

Faults are counted by place for the metrics. The text of the first one of each place since the last ``take`` is kept for the log; the exception is not
kept, because its traceback refers to many objects.
"""

from typing import Final, NamedTuple

from librt.vecs import vec
from mypy_extensions import i64

from framegate.proxy.cells import FAULT_PLACES


class Fault(NamedTuple):
    """The faults of one place since the last ``take``."""

    place: str  # one of ``FAULT_PLACES``
    times: int  # how many
    error: str  # type and text of the first one
    at: str  # file and line where it was raised; empty if not known


class Faults:
    """The faults of one thread."""

    def __init__(self) -> None:
        self.counts: vec[i64] = vec[i64]([0] * len(FAULT_PLACES))  # all faults, in the order of ``FAULT_PLACES``
        self.untold: bool = False  # ``take`` would return something
        self._kept: Final[dict[str, Fault]] = {}

    @property
    def total(self) -> int:
        return sum(self.counts)

    def note(self, place: str, error: BaseException) -> None:
        """Count an exception that was caught. Raises ValueError: there is no such place."""
        self.note_text(place, _text(error), _where(error))

    def note_text(self, place: str, text: str, at: str = "") -> None:
        """As ``note``, for an error that is known as text only."""
        self.counts[FAULT_PLACES.index(place)] += 1
        kept = self._kept.get(place)
        self._kept[place] = Fault(place, 1, text, at) if kept is None else kept._replace(times=kept.times + 1)
        self.untold = True

    def take(self) -> list[Fault]:
        """Return the faults since the last call, one item for each place."""
        taken = list(self._kept.values())
        self._kept.clear()
        self.untold = False
        return taken


def _text(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # its __str__ failed
        return type(error).__name__


def _where(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f"{trace.tb_frame.f_code.co_filename.rpartition('/')[2]}:{trace.tb_lineno}"
