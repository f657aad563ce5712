"""The position of a query in a log: the offsets that Spark keeps in its checkpoint, as JSON.

``{"streams": {name: logical offset}, "version": 1}``; where the tap has a ledger, or something was lost, version 2 with these members, too:

- ``ledger``: the query has seen every stream that was born up to this line of the ledger,
- ``born``: of these streams, those that have no data yet,
- ``lost``: the losses of the batch that ends here, ``[offset, end, from_ns, until_ns]`` by stream; so a replay has the same,
- ``damage``: the ledger's fault that was already reported.

Spark compares offsets as text: keys are sorted, and empty members are left out.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

__all__ = ["OFFSET_VERSIONS", "Lost", "Position", "PositionError"]

OFFSET_VERSIONS: Final = (1, 2)
Lost = tuple[int, int, int, int]
"""Where a loss begins and ends (``UNKNOWN_END``), and the capture times between which it lies (0: unknown)."""


class PositionError(ValueError):
    """A checkpoint that this version cannot read."""


@dataclasses.dataclass(frozen=True, slots=True)
class Position:
    """The offsets, decoded; the module's docstring describes each. ``ledger`` is None for a tap without a ledger, and for a checkpoint of version 1;
    ``born`` is sorted; ``lost`` has under ``_ledger`` that the ledger no longer tells which streams came and went.
    """

    streams: Mapping[str, int]
    ledger: int | None = None
    born: tuple[str, ...] = ()
    lost: Mapping[str, Lost] = dataclasses.field(default_factory=dict)
    damage: str = ""

    def encode(self) -> dict[str, Any]:
        """As Spark keeps it."""
        lost = {stream: list(self.lost[stream]) for stream in sorted(self.lost)}
        more: dict[str, Any] = {"born": list(self.born), "damage": self.damage, "lost": lost}
        members = {name: value for name, value in more.items() if value} | ({} if self.ledger is None else {"ledger": self.ledger})
        streams = {name: self.streams[name] for name in sorted(self.streams)}
        whole = {**members, "streams": streams, "version": OFFSET_VERSIONS[1 if members else 0]}
        return {name: whole[name] for name in sorted(whole)}

    @classmethod
    def decode(cls, offset: Mapping[str, Any]) -> "Position":
        """Decode what Spark kept. Raises PositionError: a later version wrote it."""
        if offset.get("version") not in OFFSET_VERSIONS or not isinstance(offset.get("streams"), dict):
            raise PositionError(f"checkpoint with offsets of version {offset.get('version')}, this source knows up to {OFFSET_VERSIONS[-1]}")
        lost = {stream: (int(first), int(end), int(since), int(until)) for stream, (first, end, since, until) in offset.get("lost", {}).items()}
        return cls(offset["streams"], offset.get("ledger"), tuple(offset.get("born", ())), lost, offset.get("damage", ""))
