"""What a metric is."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["Kind", "Metric", "Source"]

Kind = Literal["counter", "gauge", "histogram"]
Source = Literal["processor", "control", "pipeline"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One instrument.

    Attributes:
        name: dotted, without the unit.
        kind: ``gauge`` values go up and down (an UpDownCounter where they sum over processors).
        unit: UCUM; a cell of a metric in ``s`` holds nanoseconds.
        description: one sentence.
        attributes: keys with their closed lists of values; an empty list stands for the configured names. A value ``""`` means that
            the attribute is absent.
        bounds: of a histogram, ascending upper bounds in ``unit``; one more bucket is unbounded.
        source: who counts it.
        exported: others than control see it; snapshots leave out what nobody else does.
    """

    name: str
    kind: Kind
    unit: str
    description: str
    attributes: tuple[tuple[str, tuple[str, ...]], ...] = ()
    bounds: tuple[float, ...] = ()
    source: Source = "processor"
    exported: bool = True

    @property
    def scale(self) -> float:
        """What a cell's value is multiplied with to be in ``unit``."""
        return 1e-9 if self.unit == "s" else 1.0

    @property
    def keys(self) -> tuple[str, ...]:
        """The attributes' keys, in the order in which ``CellLayout.index`` takes the values."""
        return tuple(key for key, _ in self.attributes)
