"""Shares of the memory pool move to the processors that need them.

Every few seconds control samples the cells: a processor whose leases had to wait in the last two intervals is needy; one that uses little of
its share gives half of what it can spare. No share falls below the largest frame or twice what its processor uses, and the sum stays the size.
When nobody was needy for a while the shares become equal again.
"""

import dataclasses
from collections.abc import Mapping, Set
from typing import Final

__all__ = ["Need", "Sample", "moved_shares"]

STEP: Final = 64 * 1024
LEAST_MOVE: Final = 256 * 1024
CALM_SAMPLES: Final = 6


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """One processor's pool at one moment: ``usage`` in bytes, ``refused`` leases that had to wait, since ever."""

    usage: int
    refused: int


def moved_shares(shares: Mapping[int, int], usage: Mapping[int, int], needy: Set[int], floor: int) -> dict[int, int] | None:
    """New shares with the same sum, or None when there is nothing worth moving.

    Args:
        shares: bytes by slot.
        usage: bytes in use by slot.
        needy: slots whose leases wait.
        floor: the largest frame; no share may be smaller.
    """
    gifts = {slot: _spare(share, usage[slot], floor) for slot, share in shares.items() if slot not in needy}
    total = sum(gifts.values())
    takers = sorted(slot for slot in needy if slot in shares)
    if not takers or total < LEAST_MOVE:
        return None
    part, rest = divmod(total, len(takers))
    gains = {slot: part + (rest if slot == takers[0] else 0) for slot in takers}
    return {slot: share - gifts.get(slot, 0) + gains.get(slot, 0) for slot, share in shares.items()}


def _spare(share: int, usage: int, floor: int) -> int:
    return max(0, share - max(floor, 2 * usage)) // 2 // STEP * STEP


class Need:
    """Who is needy, from one sample to the next."""

    def __init__(self) -> None:
        self._before: dict[int, Sample] = {}
        self._once: set[int] = set()
        self._calm = 0

    def update(self, now: Mapping[int, Sample]) -> set[int]:
        """The slots whose leases waited in this interval and in the one before."""
        waited = {slot for slot, sample in now.items() if slot in self._before and sample.refused > self._before[slot].refused}
        needy = waited & self._once
        self._before, self._once = dict(now), waited
        self._calm = 0 if waited else self._calm + 1
        return needy

    @property
    def calm(self) -> bool:
        """Nobody waited for a while."""
        return self._calm >= CALM_SAMPLES
