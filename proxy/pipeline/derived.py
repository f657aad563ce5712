"""Makes, in Arrow, the rows of the other tables from the table ``frames`` and from gaps and totals (``transforms.gaps_and_totals``).

``OF_FRAMES`` and ``OF_GAPS_AND_TOTALS`` make them from one piece of a batch; the tables by minute hold partial sums, so pieces need not be combined.
Arrow rather than Spark, because a plan for each table costs a small batch more than its rows: 0.2 to 0.3 s each on two cores (Spark 4.3).
"""

from collections.abc import Callable, Mapping
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from framegate.proxy.pipeline import completeness
from framegate.proxy.pipeline.partial_sums import MICROSECONDS, add_up, count, minute
from framegate.proxy.pipeline.transforms import FRAME_COLUMNS, PLACE
from framegate.proxy.tap.fleet import FOREVER_NS

# Rows of frames, or of gaps and totals, to rows of a table.
Maker = Callable[[pa.Table], pa.Table]

_GAPS: Final = (*PLACE, "first_sequence", "lost_from", "lost_until", "lost_frames", "lost_bytes", "reason", "certainty")
# The columns of the table frames that these functions read.
COLUMNS: Final = tuple(name for name in FRAME_COLUMNS if name != "payload")
_TRAFFIC_SUMS: Final = dict.fromkeys(("frames", "bytes", "cut_bytes", "lost_frames", "lost_bytes"), "sum")


def gaps(rows: pa.Table) -> pa.Table:
    """The table ``gaps``: frames that passed, or may have passed, and are not in the log; ``certainty`` says how exact the counts are."""
    return rows.filter(pc.equal(rows["kind"], "gap")).select(_GAPS)


def nodes(rows: pa.Table) -> pa.Table:
    """The table ``nodes``: when nodes in an object store were heard; each is complete until the time in its last row."""
    heard = rows.filter(pc.equal(rows["kind"], "heard"))
    until = heard["lost_until"].cast(MICROSECONDS)
    ended = pc.equal(until.cast(pa.int64()), FOREVER_NS // 1000)
    return pa.table(
        {"node": heard["node"], "heard_time": heard["capture_time"], "complete_until": pc.if_else(ended, pa.scalar(None, MICROSECONDS), until)}
    )


def traffic(frames: pa.Table) -> pa.Table:
    """Rows of the table ``traffic_by_minute`` from frames: partial sums, so several rows of the table may share a minute; add them up. ``frames`` and
    ``bytes`` (headers included) were captured; ``cut_bytes`` were left out by rules.
    """
    size = frames["size"].cast(pa.int64())
    whole = pc.if_else(pc.equal(frames["capture"], "hash"), 0, frames["kept_size"])
    sums = {"frames": count(pc.is_valid(size)), "bytes": pc.add(size, 4), "cut_bytes": pc.subtract(size, whole)}
    return _traffic(frames, minute(frames["capture_time"]), sums)


def traffic_lost(gaps_and_totals: pa.Table) -> pa.Table:
    """Rows of the table ``traffic_by_minute`` from gaps. ``lost_frames`` and ``lost_bytes`` passed and are not in the log, by the minute in which
    they were lost; a gap over several minutes counts in the first, and one whose certainty is not ``exact`` with its bound. The table
    ``completeness`` says whether a minute is complete.
    """
    rows = gaps_and_totals.filter(pc.equal(gaps_and_totals["kind"], "gap"))
    lost = {name: rows[name] for name in ("lost_frames", "lost_bytes")}
    return _traffic(rows, minute(pc.coalesce(rows["lost_from"], rows["capture_time"])), lost)


def merge_traffic(rows: pa.Table) -> pa.Table:
    """Add rows of the table ``traffic_by_minute`` up."""
    return add_up(rows, _TRAFFIC_SUMS)


def _traffic(rows: pa.Table, minutes: pa.ChunkedArray, sums: Mapping[str, pa.ChunkedArray]) -> pa.Table:
    place = {name: rows[name] for name in ("node", "listener", "principal", "direction")}
    return merge_traffic(pa.table({"minute": minutes, **place, **sums}))


OF_FRAMES: Final[dict[str, Maker]] = {"traffic_by_minute": traffic, "completeness": completeness.of_frames}
OF_GAPS_AND_TOTALS: Final[dict[str, Maker]] = {
    "nodes": nodes,
    "gaps": gaps,
    "traffic_by_minute": traffic_lost,
    "completeness": completeness.of_gaps_and_totals,
}
