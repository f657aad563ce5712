"""What is asked of the rates in each processor, as it says itself."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from control.fleet.processor import Processor
from proxy.server.messages import DemandRow, RateCounter, RateLevel

__all__ = ["Demand", "Demands", "RateKey"]


class RateKey(NamedTuple):
    """One rate."""

    level: RateLevel
    name: str
    counter: RateCounter


class Demand(NamedTuple):
    """Tokens a second that passed; how many would share alike, in thousandths, 0: it held nobody up."""

    passed: int
    users: int


class Demands:
    """By processor. What is no longer asked of an address is forgotten."""

    def __init__(self) -> None:
        self._of: dict[Processor, dict[RateKey, Demand]] = {}

    def hear(self, processor: Processor, rows: Sequence[DemandRow]) -> None:
        """A processor says what is in demand; what it does not name is as it was."""
        known = self._of.setdefault(processor, {})
        for row in rows:
            key = RateKey(row["level"], row["name"], row["counter"])
            demand = Demand(row["passed"], row["users"])
            if any(demand):
                known[key] = demand
            else:
                known.pop(key, None)

    def of(self, processor: Processor) -> Mapping[RateKey, Demand]:
        """What is in demand there."""
        return self._of.get(processor, {})

    def forget(self, processor: Processor) -> None:
        """It is gone; harmless when nothing was heard of it."""
        self._of.pop(processor, None)
