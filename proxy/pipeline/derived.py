"""Makes, in Arrow, the rows of the other tables from the table ``frames`` and from gaps, totals and ends of connections
(``chunk_rows``).

``OF_FRAMES`` and ``OF_GAPS_AND_TOTALS`` make them from one piece of a batch; the tables by minute hold partial sums, so pieces need not be combined.
Arrow rather than Spark, because a plan for each table costs a small batch more than its rows: 0.2 to 0.3 s each on two cores (Spark 4.3).
"""

from collections.abc import Callable, Mapping
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from framegate.proxy.cause import LEVELS
from framegate.proxy.pipeline import completeness
from framegate.proxy.pipeline.columns import PLACE
from framegate.proxy.pipeline.partial_sums import MICROSECONDS, add_up, count, minute
from framegate.proxy.tap.fleet import FOREVER_NS

# Rows of frames, or of gaps and totals, to rows of a table.
Maker = Callable[[pa.Table], pa.Table]

_GAPS: Final = (*PLACE, "first_sequence", "lost_from", "lost_until", "lost_frames", "lost_bytes", "reason", "certainty")
_TRAFFIC_SUMS: Final = dict.fromkeys(("frames", "bytes", "cut_bytes", "lost_frames", "lost_bytes"), "sum")


def gaps(rows: pa.Table) -> pa.Table:
    """The table ``gaps``: frames that passed, or may have passed, and are not in the log; ``certainty`` says how exact the counts are. Also ends of
    connections that are missing.
    """
    rows = rows.filter(pc.is_in(rows["kind"], pa.array(["gap", "connection"])))
    is_gap, missing = pc.equal(rows["kind"], "gap"), rows["lost_frames"]
    lost = {"lost_frames": pc.if_else(is_gap, missing, 0), "lost_ends": pc.if_else(is_gap, 0, missing)}
    certainty = pc.coalesce(rows["certainty"], "exact")
    return pa.table({name: rows[name] for name in _GAPS} | lost | {"certainty": certainty})


def nodes(rows: pa.Table) -> pa.Table:
    """The table ``nodes``: when nodes in an object store were heard; each is complete until the time in its last row."""
    heard = rows.filter(pc.equal(rows["kind"], "heard"))
    until = heard["lost_until"].cast(MICROSECONDS)
    ended = pc.equal(until.cast(pa.int64()), FOREVER_NS // 1000)
    return pa.table(
        {"node": heard["node"], "heard_time": heard["capture_time"], "complete_until": pc.if_else(ended, pa.scalar(None, MICROSECONDS), until)}
    )


_END: Final = pa.schema(
    {
        **dict.fromkeys(("frames", "bytes"), pa.struct({"request": pa.int64(), "response": pa.int64()})),
        **dict.fromkeys(("opened_ns", "handshake_ns", "connect_ns"), pa.int64()),
        "duration_ms": pa.float64(),
        **dict.fromkeys(("attempts", "broker"), pa.int32()),
        **dict.fromkeys(("tap_rule", "upstream", "endpoint", "mechanism", "client_id", "software", "software_version"), pa.string()),
        **dict.fromkeys(("attempted_user", "cause", "detail", "side", "state"), pa.string()),
        "tls": pa.struct({"version": pa.string()}),
        "lost": pa.struct({"bytes": pa.int64()}),
    }
)
"""The members of the row ``closed`` that the table ``connections`` has, but for those that the chunk has, too. One that is missing has its usual
value, as ``proxy.server.link.complete`` gives it.
"""


def connections(rows: pa.Table) -> pa.Table:
    """The table ``connections``, of rows with the JSON of a connection as ``rule``. Texts that are empty there are null here."""
    texts = "\n".join(rows["rule"].to_pylist()).encode()
    found = pyarrow.json.read_json(
        pa.BufferReader(texts),
        read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=len(texts) + 1),
        parse_options=pyarrow.json.ParseOptions(explicit_schema=_END, unexpected_field_behavior="ignore"),
    )
    words = {name: found[name] for name in _END.names if _END.field(name).type == pa.string()}
    traffic = {f"{side}_{each}": pc.struct_field(found[each], side) for side in ("request", "response") for each in ("frames", "bytes")}
    lasted_ns = pc.round(pc.multiply(found["duration_ms"], 1e6)).cast(pa.int64())
    levels = pa.array(LEVELS.values()).take(pc.index_in(found["cause"], pa.array(LEVELS)))
    return pa.table(
        {
            **{name: rows[name] for name in PLACE if name not in ("rule", "framing", "direction")},
            **{name: pc.if_else(pc.equal(column, ""), None, column) for name, column in words.items() if name not in ("tap_rule", "state")},
            "attempts": pc.coalesce(found["attempts"], pa.scalar(1, pa.int32())),
            "broker": found["broker"],
            "duration_ms": pc.divide(lasted_ns, 1_000_000),
            **{name: pc.divide(found[f"{name[:-3]}_ns"], 1000) for name in ("handshake_us", "connect_us")},
            "opened_time": pc.divide(found["opened_ns"], 1000).cast(MICROSECONDS),
            "closed_time": pc.divide(pc.add(found["opened_ns"], lasted_ns), 1000).cast(MICROSECONDS),
            **traffic,
            "rule": words["tap_rule"],
            "end_state": pc.coalesce(words["state"], "half_closed"),
            "tls_version": pc.struct_field(found["tls"], "version"),
            "unforwarded_bytes": pc.coalesce(pc.struct_field(found["lost"], "bytes"), 0),
            "level": levels,
        }
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
OF_ENDS: Final[dict[str, Maker]] = {"connections": connections}
OF_GAPS_AND_TOTALS: Final[dict[str, Maker]] = {
    "nodes": nodes,
    "gaps": gaps,
    "traffic_by_minute": traffic_lost,
    "completeness": completeness.of_gaps_and_totals,
}
