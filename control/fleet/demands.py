"""What is asked of the rates in each processor, as it says itself."""

from collections.abc import Sequence
from typing import NamedTuple

from framegate.control.fleet.processor import Processor
from framegate.proxy.server.rows import DemandRow, RateCounter, RateLevel

__all__ = ["Demand", "Demands", "RateKey"]


class RateKey(NamedTuple):
    """One rate."""

    level: RateLevel
    name: str
    counter: RateCounter


class Demand(NamedTuple):
    """Of one rate in one processor; see ``framegate.proxy.server.rows.DemandRow``."""

    used: int
    waiting: int = 0
    wanting: int = 0


class Demands:
    """By rate and processor, of the rates that some processor has told of."""

    def __init__(self) -> None:
        self._of: dict[RateKey, dict[Processor, Demand]] = {}
        self._told: dict[RateKey, None] = {}

    def hear(self, processor: Processor, rows: Sequence[DemandRow]) -> None:
        """A processor says what is in demand; what it does not name is as it was."""
        for row in rows:
            key = RateKey(row["level"], row["name"], row["counter"])
            self._of.setdefault(key, {})[processor] = Demand(row["used"], row["waiting"], row["wanting"])
            self._told[key] = None

    def take(self) -> dict[RateKey, dict[Processor, Demand]]:
        """The rates that somebody told of since this was asked last, and what each processor said last."""
        found = {key: self._of[key] for key in self._told if key in self._of}
        self._told.clear()
        return found

    def drop(self, key: RateKey) -> None:
        """No connection waits for it any more."""
        del self._of[key]

    def clear(self) -> None:
        """There is one processor only."""
        self._of.clear()
        self._told.clear()

    def forget(self, processor: Processor) -> None:
        """It is gone; harmless when nothing was heard of it."""
        for key, demands in list(self._of.items()):
            demands.pop(processor, None)
            if not demands:
                self.drop(key)
