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
from framegate.proxy.tap.fleet import LOST
from framegate.proxy.tap.stream_totals import MAX_SPAN

__all__ = ["MINUTES_VIEW", "NODES_VIEW", "SUMS", "VIEW", "merge", "of_frames", "of_gaps_and_totals", "states"]

# How partial sums of each column are put together; ``columns`` describes them.
_COUNTED: Final = ("totals", "seen", "stored", "withheld", "sampled", "lost", "at_most", "unknown", "shared")
SUMS: Final = {**dict.fromkeys(_COUNTED, "sum"), "first_offset": "min"}

# stream: <node>.<slot>.<boot-id>; run: without the slot, which a processor's stream and its recovery have in common. The judgement is that of
# ``verify`` but for two facts that only the ledger and the segments have: whether a stream is still being written (here: always, so its last two
# minutes may be open), and whether its version writes no totals (here: when it has none).
VIEW: Final = f"""
CREATE OR REPLACE TEMPORARY VIEW completeness AS
WITH parts AS (
  SELECT coalesce(node, regexp_replace(stream, '([.][^.]+){{2}}$', '')) AS node, stream, listener, direction,
         {", ".join(_COUNTED)}, regexp_replace(stream, '[.][^.]+([.][^.]+)$', '$1') AS run,
         stream RLIKE '[.]recovery[.][^.]+$' AS recovered, IF(minute = until, first_offset, NULL) AS first_offset, minute AS begun, until AS ended,
         unix_seconds(until) - unix_seconds(minute) < {MAX_SPAN * 60} AS short, explode(sequence(minute, until, INTERVAL 1 MINUTE)) AS at_minute
  FROM completeness_parts
), sums AS (
  SELECT node, run, listener, direction, at_minute, {", ".join(f"sum({name}) AS {name}" for name in _COUNTED)},
         max(IF(recovered, NULL, stream)) AS own, max(stream) AS any_stream, min(IF(recovered, NULL, first_offset)) AS first_offset
  FROM parts
  GROUP BY node, run, listener, direction, at_minute
  HAVING max(short OR at_minute = begun OR at_minute = ended)
), runs AS (
  SELECT *, seen - stored - withheld - sampled - lost AS difference, sum(totals) OVER (PARTITION BY node, run) AS run_totals,
         coalesce(max(own) OVER (PARTITION BY node, run), max(any_stream) OVER (PARTITION BY node, run)) AS stream,
         min(first_offset) OVER (PARTITION BY node, run) AS run_offset, max(at_minute) OVER (PARTITION BY node, run) AS newest
  FROM sums
), judged AS (
  SELECT *, IF(difference > 0 AND difference <= shared, 0, difference) AS missing,
         coalesce(at_minute <= max(IF(run_offset > 0 AND first_offset = run_offset, at_minute, NULL)) OVER (PARTITION BY node, run), FALSE) AS is_cut,
         difference < 0 AND at_minute >= newest - INTERVAL 1 MINUTE AS is_open,
         coalesce(complete_until < at_minute + INTERVAL 1 MINUTE, FALSE) AS is_not_heard
  FROM runs LEFT JOIN nodes USING (node)
)
SELECT node, stream, listener, direction, at_minute AS minute, {", ".join(name for name in _COUNTED if name != "totals")}, missing,
       CASE
         WHEN unknown > 0 THEN 'unknown'
         WHEN missing <> 0 AND NOT is_cut AND NOT is_open AND run_totals = 0 THEN 'unknown'
         WHEN missing <> 0 AND NOT is_cut AND NOT is_open THEN 'missing'
         WHEN at_most > 0 THEN 'at_most'
         WHEN lost > 0 OR shared > 0 THEN 'lost'
         WHEN missing <> 0 AND is_cut THEN 'cut'
         WHEN missing <> 0 OR is_not_heard THEN 'open'
         ELSE 'complete'
       END AS state
FROM judged
"""


NODES_VIEW: Final = """
CREATE OR REPLACE TEMPORARY VIEW nodes AS
SELECT node, max(heard_time) AS heard_time, max_by(struct(complete_until), heard_time).complete_until AS complete_until
FROM nodes_parts
GROUP BY node
"""
# ``fleet.minutes`` over the views; its states and its reasons to wait are the same.
MINUTES_VIEW: Final = f"""
CREATE OR REPLACE TEMPORARY VIEW minutes AS
WITH counted AS (
  SELECT minute, sum(seen) AS seen, sum(IF(is_lost, lost + shared + abs(missing), 0)) AS lost, sum(IF(is_lost, at_most, 0)) AS at_most,
         max(is_lost) AS is_lost, collect_set(IF(state = 'open', node, NULL)) AS waiting
  FROM (SELECT *, state IN {LOST} AS is_lost FROM completeness)
  GROUP BY minute
), every AS (
  SELECT explode(sequence(min(minute), max(minute), INTERVAL 1 MINUTE)) AS minute FROM counted
), late AS (
  SELECT minute, collect_set(node) AS late FROM every JOIN nodes ON complete_until < minute + INTERVAL 1 MINUTE GROUP BY minute
), waiting AS (
  SELECT minute, coalesce(seen, 0) AS seen, coalesce(lost, 0) AS lost, coalesce(at_most, 0) AS at_most, coalesce(is_lost, FALSE) AS is_lost,
         sort_array(array_union(coalesce(waiting, array()), coalesce(late, array()))) AS waiting
  FROM every LEFT JOIN counted USING (minute) LEFT JOIN late USING (minute)
)
SELECT minute, CASE WHEN is_lost THEN 'lost' WHEN size(waiting) > 0 THEN 'open' ELSE 'complete' END AS state, seen, lost, at_most, waiting
FROM waiting
"""


def of_frames(frames: pa.Table) -> pa.Table:
    """Partial sums of rows of the table ``frames``; the payload is not read."""
    stands_for = pc.and_(pc.is_in(frames["capture"], pa.array(["full", "hash"])), pc.equal(frames["kept_size"], 0))
    withheld = pc.and_(pc.and_(pc.equal(frames["reason"], "withheld"), stands_for), pc.greater(frames["size"], 0))
    lost = pc.equal(frames["reason"], "pieces_lost")
    at = minute(frames["capture_time"])
    return _sums(frames, at, at, stored=count(pc.invert(pc.or_(withheld, lost))), withheld=count(withheld), lost=count(lost))


def of_gaps_and_totals(rows: pa.Table) -> pa.Table:
    """Partial sums of gaps and totals.

    A gap counts in each minute from ``lost_from`` to ``lost_until``; an exact gap over several minutes counts as ``shared``. It is one row here,
    because a gap may be months long; the view makes a row of each minute.
    """
    rows = rows.filter(pc.not_equal(rows["kind"], "heard"))
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
    """Add rows of the table up, to a row for each key, with its ``state``.

    ``unknown``, ``at_most`` and ``lost`` are as in the view. ``complete``: the equation holds within the row. ``partial``: it does not: other rows
    have the rest of the minute, or frames are missing; the view decides.
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
