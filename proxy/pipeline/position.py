"""The position of a query in a log: the offsets that Spark keeps in its checkpoint, as JSON.

``{"streams": {name: logical offset}, "version": 1}``; where the tap has a ledger, or something was lost, version 2 with these members, too:

- ``ledger``: the query has seen every stream that was born up to this line of the ledger,
- ``born``: of these streams, those that have no data yet,
- ``lost``: the losses of the batch that ends here, ``[offset, end, from_ns, until_ns]`` by stream; so a replay has the same,
- ``damage``: the ledger's fault that was already reported.

Of a store, version 3: ``{"nodes": {name: {…}}, "version": 3}``, a node with

- ``streams``: as above, of those that are not finished, or were finished by the batch that ends here,
- ``known``: how many of the streams in the stored ledger, in its order, the query knows, and the CRC of their names. Those without an offset are
  finished. So a position is as long as there are streams that go on,
- ``heard``: when the node was heard, and before which time all of it is in the batches up to here,
- ``lost``, ``damage``: as above.

Spark compares offsets as text: keys are sorted, and empty members are left out.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

OFFSET_VERSIONS: Final = (1, 2)
FLEET_VERSION: Final = 3
Lost = tuple[int, int, int, int]  # where a loss begins and ends (``UNKNOWN_END``), and the capture times between which it lies (0: unknown)


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
        """Decode what Spark kept. Raises PositionError: a later version wrote it, or it is of a store."""
        if offset.get("version") == FLEET_VERSION:
            raise PositionError("the checkpoint is of a log in an object store, not of a directory")
        if offset.get("version") not in OFFSET_VERSIONS or not isinstance(offset.get("streams"), dict):
            raise PositionError(f"checkpoint with offsets of version {offset.get('version')}, this source knows up to {OFFSET_VERSIONS[-1]}")
        return cls(offset["streams"], offset.get("ledger"), tuple(offset.get("born", ())), _lost(offset), offset.get("damage", ""))


def _lost(members: Mapping[str, Any]) -> dict[str, Lost]:
    return {stream: (int(first), int(end), int(since), int(until)) for stream, (first, end, since, until) in members.get("lost", {}).items()}


@dataclasses.dataclass(frozen=True, slots=True)
class NodePosition:
    """The position in a node's log; the module's docstring describes each. ``known`` and ``heard`` are pairs; (0, 0): nothing is known."""

    streams: Mapping[str, int] = dataclasses.field(default_factory=dict)
    known: tuple[int, int] = (0, 0)
    heard: tuple[int, int] = (0, 0)
    lost: Mapping[str, Lost] = dataclasses.field(default_factory=dict)
    damage: str = ""

    def encode(self) -> dict[str, Any]:
        """As Spark keeps it."""
        lost = {stream: list(self.lost[stream]) for stream in sorted(self.lost)}
        streams = {name: self.streams[name] for name in sorted(self.streams)}
        members = {"damage": self.damage, "heard": list(self.heard), "known": list(self.known), "lost": lost, "streams": streams}
        return {name: value for name, value in members.items() if value}

    @classmethod
    def decode(cls, members: Mapping[str, Any]) -> "NodePosition":
        known, heard = (tuple(members.get(name, (0, 0))) for name in ("known", "heard"))
        return cls(members.get("streams", {}), (known[0], known[1]), (heard[0], heard[1]), _lost(members), members.get("damage", ""))


@dataclasses.dataclass(frozen=True, slots=True)
class FleetPosition:
    """The offsets of a query over a store, by node."""

    nodes: Mapping[str, NodePosition] = dataclasses.field(default_factory=dict)

    def encode(self) -> dict[str, Any]:
        """As Spark keeps it."""
        return {"nodes": {name: self.nodes[name].encode() for name in sorted(self.nodes)}, "version": FLEET_VERSION}

    @classmethod
    def decode(cls, offset: Mapping[str, Any]) -> "FleetPosition":
        """Decode what Spark kept. Raises PositionError: a later version wrote it, or it is of a directory."""
        if offset.get("version") != FLEET_VERSION:
            what = "of a directory" if offset.get("version") in OFFSET_VERSIONS else f"with offsets of version {offset.get('version')}"
            raise PositionError(f"the checkpoint is {what}, not of a log in an object store")
        return cls({name: NodePosition.decode(members) for name, members in offset["nodes"].items()})
