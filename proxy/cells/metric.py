"""What a metric is, and the upper bounds of histograms' buckets. All that is declared here is public."""

from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["counter", "gauge", "histogram"]
Source = Literal["processor", "control", "pipeline"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One instrument."""

    name: str  # dotted, without the unit
    kind: Kind  # a ``gauge`` goes up and down (an UpDownCounter if processors are added up)
    unit: str  # UCUM; a cell of a metric in ``s`` holds nanoseconds
    description: str  # one sentence
    # keys with their closed lists of values; an empty list means the configured names, a value ``""`` that the attribute is absent
    attributes: tuple[tuple[str, tuple[str, ...]], ...] = ()
    bounds: tuple[float, ...] = ()  # of a histogram, ascending upper bounds in ``unit``
    source: Source = "processor"  # the process that counts it
    exported: bool = True  # False: only control uses it, and snapshots leave it out

    @property
    def scale(self) -> float:
        """The factor from a cell's value to ``unit``."""
        return 1e-9 if self.unit == "s" else 1.0

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of the attributes, in the order of the values of ``CellLayout.index``."""
        return tuple(key for key, _ in self.attributes)


def _fine(first: int, last: int) -> tuple[float, ...]:
    """Seconds: 2^(first/4) to 2^(last/4), in whole nanoseconds. Each is 1.19 times the one before it, so any quantile is right within 19 %."""
    return tuple(round(2 ** (power / 4) * 1e9) / 1e9 for power in range(first, last + 1))


# Inclusive upper bounds, in the metric's unit; one more bucket is above them. Each bucket is a series of each set of labels, so there are few, and
# fine ones only where quantiles are what a metric is for.

SIZE_BOUNDS: Final = tuple(float(256 << 2 * step) for step in range(11))  # Bytes, 256 to 256 MiB: powers of two, so that log2 classes fold into them
CONNECTION_BOUNDS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
HANDSHAKE_BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
HANDLER_BOUNDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
APPEND_BOUNDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
WAIT_BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
FORWARD_BOUNDS: Final = _fine(-63, 16)  # 18 µs to 16 s
ANSWER_BOUNDS: Final = _fine(-47, 20)  # 0.29 ms to 32 s: of answers that others give
FIRST_POWERS: Final = {FORWARD_BOUNDS: -63, ANSWER_BOUNDS: -47}
"""Fine bounds, with the power of 2^(1/4) s with which they begin. It is the lowest one in its octave of ns, so buckets are found without a search.
The buckets are those of exponential histograms of scale 2.
"""
BATCH_BOUNDS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
LAG_BOUNDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 10.0)
RPC_BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
