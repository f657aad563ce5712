"""The table ``completeness``: for each stream, listener, direction and minute the frames that were seen, stored and lost
(``proxy/tap/COMPLETENESS.md``).

The table holds partial sums: a minute has a row from each micro-batch with data of it. The view ``completeness`` adds them up, counts the rows that
control wrote for a dead processor (``<node>.recovery.<boot-id>``) in that processor's stream, and judges each minute by the equation
``seen = stored + withheld + sampled + lost``. ``framegate tap verify`` does the same from the log itself, and also checks the seals and the CRCs.
Data that is missing according to the ledger (``proxy.tap.expected``) ends a strict job, and is a gap of reason ``vanished`` for one that goes on. A
minute that retention deleted before the job read it has no row; if the job has read only the rest of a stream, or only control's rows for it, the
minutes are ``cut`` or ``missing``. A minute of a node in an object store that was not heard since (table ``nodes``) is ``open``. So ``complete`` rows
prove a minute only for streams that the job has read from their beginning; ``verify`` names the others.
"""

import functools
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from framegate.proxy.pipeline.partial_sums import add_up, count, minute

# How partial sums of each column are put together; ``columns`` describes them.
COUNTED: Final = ("totals", "seen", "stored", "withheld", "sampled", "lost", "at_most", "unknown", "shared")
SUMS: Final = {**dict.fromkeys(COUNTED, "sum"), "first_offset": "min"}


def of_frames(frames: pa.Table) -> pa.Table:
    """Partial sums of rows of the table ``frames``; the payload is not read."""
    stands_for = pc.and_(pc.is_in(frames["capture"], pa.array(["full", "hash"])), pc.equal(frames["kept_size"], 0))
    withheld = pc.and_(pc.and_(pc.equal(frames["reason"], "withheld"), stands_for), pc.greater(frames["size"], 0))
    lost = pc.equal(frames["reason"], "pieces_lost")
    at = minute(frames["capture_time"])
    return _sums(frames, at, at, stored=count(pc.invert(pc.or_(withheld, lost))), withheld=count(withheld), lost=count(lost))


def of_gaps_and_totals(rows: pa.Table) -> pa.Table:
    """Partial sums of gaps and totals. A gap counts in each minute from ``lost_from`` to ``lost_until``; an exact gap over several minutes counts as
    ``shared``. It is one row here, because a gap may be months long; the view makes a row of each minute.
    """
    rows = rows.filter(pc.is_in(rows["kind"], pa.array(["gap", "totals"])))
    begun, ended = (minute(pc.coalesce(rows[name], rows["capture_time"])) for name in ("lost_from", "lost_until"))
    first, last = pc.if_else(pc.less(ended, begun), ended, begun), pc.if_else(pc.less(ended, begun), begun, ended)
    one = pc.equal(first, last)
    gap, totals = (pc.equal(rows["kind"], kind) for kind in ("gap", "totals"))
    certainty = pc.coalesce(rows["certainty"], "exact")  # null: of a version before there was another
    exact = pc.and_(gap, pc.equal(certainty, "exact"))
    sampled = pc.equal(rows["reason"], "sampled")

    def lost(*conditions: pa.ChunkedArray) -> pa.ChunkedArray:
        return pc.multiply(rows["lost_frames"], count(functools.reduce(pc.and_, conditions)))

    return _sums(
        rows,
        first,
        last,
        totals=count(totals),
        seen=pc.coalesce(rows["seen_frames"], 0),
        sampled=lost(exact, one, sampled),
        lost=lost(exact, one, pc.invert(sampled)),
        at_most=lost(gap, pc.equal(certainty, "at_most")),
        unknown=pc.add(count(pc.and_(gap, pc.equal(certainty, "unknown"))), count(pc.and_(totals, pc.invert(one)))),
        shared=lost(exact, pc.invert(one)),
    )


def merge(rows: pa.Table) -> pa.Table:
    """Add rows of the table up, to a row for each key, with its ``state``. ``unknown``, ``at_most`` and ``lost`` are as in the view. ``complete``:
    the equation holds within the row. ``partial``: it does not: other rows have the rest of the minute, or frames are missing; the view decides.
    """
    sums = add_up(rows.drop_columns("state") if "state" in rows.column_names else rows, SUMS)
    lost = pc.or_(pc.greater(sums["lost"], 0), pc.greater(sums["shared"], 0))
    accounted = functools.reduce(pc.add, (sums[name] for name in ("stored", "withheld", "sampled", "lost")))
    state = pc.case_when(
        pc.make_struct(pc.greater(sums["unknown"], 0), pc.greater(sums["at_most"], 0), lost, pc.equal(sums["seen"], accounted)),
        "unknown", "at_most", "lost", "complete", "partial",
    )  # fmt: skip
    return sums.append_column("state", state)


def states(sums: pa.Table) -> dict[str, int]:
    """The number of rows by state; ``complete`` includes ``partial``: rows without a known loss. The view judges the whole minute."""
    known = pc.if_else(pc.equal(sums["state"], "partial"), "complete", sums["state"])
    return {item["values"]: item["counts"] for item in pc.value_counts(known).to_pylist()}


def _sums(rows: pa.Table, first: pa.ChunkedArray, last: pa.ChunkedArray, **sums: pa.ChunkedArray) -> pa.Table:
    place = {name: rows[name] for name in ("node", "stream", "listener", "direction")}
    return merge(pa.table({**place, "minute": first, "until": last, **sums, "first_offset": rows["offset"]}))
