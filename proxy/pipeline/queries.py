"""The queries behind the views of the tables, for Spark and for DataFusion, which comes with delta-rs. Needs neither."""

from typing import Final

from framegate.proxy.config.selection import KAFKA_APIS
from framegate.proxy.pipeline.completeness import COUNTED
from framegate.proxy.tap.fleet import LOST
from framegate.proxy.tap.stream_totals import MAX_SPAN

PARTS: Final = {name: f"{name}_parts" for name in ("traffic_by_minute", "completeness", "nodes")}
"""Tables whose name a view has: what they are called beside it."""
_TRAFFIC: Final = """
SELECT minute, node, listener, principal, direction, sum(frames) AS frames, sum(bytes) AS bytes, sum(cut_bytes) AS cut_bytes,
       sum(lost_frames) AS lost_frames, sum(lost_bytes) AS lost_bytes
FROM traffic_by_minute_parts
GROUP BY minute, node, listener, principal, direction
"""
# Rows of the version before have no outcome; they have an answer.
_REQUESTS: Final = f"""
SELECT listener, api_key, CASE api_key {" ".join(f"WHEN {key} THEN '{name}'" for key, name in KAFKA_APIS.items())}
                          ELSE concat('api-', cast(api_key AS string)) END AS api,
       api_version, count(*) AS requests, count(CASE WHEN outcome = 'answered' OR outcome IS NULL THEN 1 END) AS answers,
       count(CASE WHEN error_code <> 0 THEN 1 END) AS errors,
       PERCENTILE(latency_us, 0.5) AS latency_us_p50, PERCENTILE(latency_us, 0.99) AS latency_us_p99,
       max(latency_us) AS latency_us_max, sum(request_size) AS request_bytes, sum(answer_size) AS answer_bytes
FROM requests
GROUP BY listener, api_key, api_version
"""
# The last row of each node; without ``complete_until`` it has ended in order, which is the last of it.
_NODES: Final = """
WITH numbered AS (
  SELECT *, row_number() OVER (PARTITION BY node ORDER BY heard_time DESC, complete_until DESC NULLS FIRST) AS number FROM nodes_parts
)
SELECT node, heard_time, complete_until FROM numbered WHERE number = 1
"""
# stream: <node>.<slot>.<boot-id>; run: without the slot, which a processor's stream and its recovery have in common. The judgement is that of
# ``verify`` but for two facts that only the ledger and the segments have: whether a stream is still being written (here: always, so its last two
# minutes may be open), and whether its version writes no totals (here: when it has none).
_COMPLETENESS: Final = f"""
WITH parts AS (
  SELECT coalesce(node, regexp_replace(stream, '([.][^.]+){{2}}$', '')) AS node_name, stream, listener, direction, {", ".join(COUNTED)},
         regexp_replace(stream, '[.][^.]+([.][^.]+)$', '$1') AS run, regexp_like(stream, '[.]recovery[.][^.]+$') AS recovered,
         CASE WHEN minute = until THEN first_offset END AS place, minute AS begun, until AS ended,
         until < minute + INTERVAL '{MAX_SPAN}' MINUTE AS short, EACH_MINUTE AS at_minute
  FROM completeness_parts
), sums AS (
  SELECT node_name AS node, run, listener, direction, at_minute, {", ".join(f"sum({name}) AS {name}" for name in COUNTED)},
         max(CASE WHEN NOT recovered THEN stream END) AS own, max(stream) AS any_stream,
         min(CASE WHEN NOT recovered THEN place END) AS first_offset
  FROM parts
  GROUP BY node_name, run, listener, direction, at_minute
  HAVING max(short OR at_minute = begun OR at_minute = ended)
), runs AS (
  SELECT *, seen - stored - withheld - sampled - lost AS difference, sum(totals) OVER (PARTITION BY node, run) AS run_totals,
         coalesce(max(own) OVER (PARTITION BY node, run), max(any_stream) OVER (PARTITION BY node, run)) AS stream,
         min(first_offset) OVER (PARTITION BY node, run) AS run_offset, max(at_minute) OVER (PARTITION BY node, run) AS newest
  FROM sums
), judged AS (
  SELECT *, CASE WHEN difference > 0 AND difference <= shared THEN 0 ELSE difference END AS missing,
         coalesce(at_minute <= max(CASE WHEN run_offset > 0 AND first_offset = run_offset THEN at_minute END) OVER (PARTITION BY node, run), FALSE)
           AS is_cut,
         difference < 0 AND at_minute >= newest - INTERVAL '1' MINUTE AS is_open,
         coalesce(complete_until < at_minute + INTERVAL '1' MINUTE, FALSE) AS is_not_heard
  FROM runs LEFT JOIN nodes USING (node)
)
SELECT node, stream, listener, direction, at_minute AS minute, {", ".join(name for name in COUNTED if name != "totals")}, missing,
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
# ``fleet.minutes`` over the views; its states and its reasons to wait are the same.
_MINUTES: Final = f"""
WITH judged AS (
  SELECT *, state IN {LOST} AS is_lost FROM completeness
), counted AS (
  SELECT minute, sum(seen) AS seen, sum(CASE WHEN is_lost THEN lost + shared + abs(missing) ELSE 0 END) AS lost,
         sum(CASE WHEN is_lost THEN at_most ELSE 0 END) AS at_most, max(is_lost) AS is_lost
  FROM judged
  GROUP BY minute
), bounds AS (
  SELECT min(minute) AS minute, max(minute) AS until FROM counted
), every AS (
  SELECT EACH_MINUTE AS at_minute FROM bounds
), waits AS (
  SELECT minute, node FROM judged WHERE state = 'open'
  UNION
  SELECT at_minute AS minute, node FROM every JOIN nodes ON complete_until < at_minute + INTERVAL '1' MINUTE
), waiting AS (
  SELECT minute, array_sort(array_agg(node)) AS waiting FROM waits GROUP BY minute
)
SELECT at_minute AS minute, CASE WHEN is_lost THEN 'lost' WHEN waiting IS NOT NULL THEN 'open' ELSE 'complete' END AS state,
       coalesce(seen, 0) AS seen, coalesce(lost, 0) AS lost, coalesce(at_most, 0) AS at_most, coalesce(waiting, NO_TEXTS) AS waiting
FROM every LEFT JOIN counted ON counted.minute = at_minute LEFT JOIN waiting ON waiting.minute = at_minute
"""
_OWN_WORDS: Final = {
    "spark": {
        "EACH_MINUTE": "explode(sequence(minute, until, INTERVAL 1 MINUTE))",
        "PERCENTILE": "percentile_approx",
        "NO_TEXTS": "array()",
    },
    "datafusion": {
        "EACH_MINUTE": "unnest(generate_series(minute, until, INTERVAL '1 minute'))",
        "PERCENTILE": "approx_percentile_cont",
        "NO_TEXTS": "make_array()",
    },
}


def queries(engine: str) -> dict[str, str]:
    """The query of each view, those of which others read first. ``engine``: ``spark`` or ``datafusion``."""
    found = {
        "traffic_by_minute": _TRAFFIC,
        "requests_by_api": _REQUESTS,
        "nodes": _NODES,
        "completeness": _COMPLETENESS,
        "minutes": _MINUTES,
    }
    for general, own in _OWN_WORDS[engine].items():
        found = {name: query.replace(general, own) for name, query in found.items()}
    return found
