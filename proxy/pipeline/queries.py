"""The queries behind the views of the tables, for Spark and for DataFusion, which comes with delta-rs. Needs neither."""

from typing import Final

from framegate.proxy.config.selection import KAFKA_APIS
from framegate.proxy.pipeline.completeness import COUNTED
from framegate.proxy.tap.stream_totals import MAX_SPAN

__all__ = ["PARTS", "queries"]

PARTS: Final = {"traffic_by_minute": "traffic_by_minute_parts", "completeness": "completeness_parts"}
"""Tables of partial sums: what they are called where the view has their name."""
_TRAFFIC: Final = """
SELECT minute, listener, principal, direction, sum(frames) AS frames, sum(bytes) AS bytes, sum(cut_bytes) AS cut_bytes,
       sum(lost_frames) AS lost_frames, sum(lost_bytes) AS lost_bytes
FROM traffic_by_minute_parts
GROUP BY minute, listener, principal, direction
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
# stream: <node>.<slot>.<boot-id>; run: without the slot, which a processor's stream and its recovery have in common. The judgement is that of
# ``verify`` but for two facts that only the ledger and the segments have: whether a stream is still being written (here: always, so its last two
# minutes may be open), and whether its version writes no totals (here: when it has none).
_COMPLETENESS: Final = f"""
WITH parts AS (
  SELECT stream, listener, direction, {", ".join(COUNTED)}, regexp_replace(stream, '[.][^.]+([.][^.]+)$', '$1') AS run,
         regexp_like(stream, '[.]recovery[.][^.]+$') AS recovered, CASE WHEN minute = until THEN first_offset END AS place,
         minute AS begun, until AS ended, until < minute + INTERVAL '{MAX_SPAN}' MINUTE AS short, EACH_MINUTE AS at_minute
  FROM completeness_parts
), sums AS (
  SELECT run, listener, direction, at_minute, {", ".join(f"sum({name}) AS {name}" for name in COUNTED)},
         max(CASE WHEN NOT recovered THEN stream END) AS own, max(stream) AS any_stream,
         min(CASE WHEN NOT recovered THEN place END) AS first_offset
  FROM parts
  GROUP BY run, listener, direction, at_minute
  HAVING max(short OR at_minute = begun OR at_minute = ended)
), runs AS (
  SELECT *, seen - stored - withheld - sampled - lost AS difference, sum(totals) OVER (PARTITION BY run) AS run_totals,
         coalesce(max(own) OVER (PARTITION BY run), max(any_stream) OVER (PARTITION BY run)) AS stream,
         min(first_offset) OVER (PARTITION BY run) AS run_offset, max(at_minute) OVER (PARTITION BY run) AS newest
  FROM sums
), judged AS (
  SELECT *, CASE WHEN difference > 0 AND difference <= shared THEN 0 ELSE difference END AS missing,
         coalesce(at_minute <= max(CASE WHEN run_offset > 0 AND first_offset = run_offset THEN at_minute END) OVER (PARTITION BY run), FALSE)
           AS is_cut,
         difference < 0 AND at_minute >= newest - INTERVAL '1' MINUTE AS is_open
  FROM runs
)
SELECT stream, listener, direction, at_minute AS minute, {", ".join(name for name in COUNTED if name != "totals")}, missing,
       CASE
         WHEN unknown > 0 THEN 'unknown'
         WHEN missing <> 0 AND NOT is_cut AND NOT is_open AND run_totals = 0 THEN 'unknown'
         WHEN missing <> 0 AND NOT is_cut AND NOT is_open THEN 'missing'
         WHEN at_most > 0 THEN 'at_most'
         WHEN lost > 0 OR shared > 0 THEN 'lost'
         WHEN missing <> 0 AND is_cut THEN 'cut'
         WHEN missing <> 0 THEN 'open'
         ELSE 'complete'
       END AS state
FROM judged
"""
_OWN_WORDS: Final = {
    "spark": {"EACH_MINUTE": "explode(sequence(minute, until, INTERVAL 1 MINUTE))", "PERCENTILE": "percentile_approx"},
    "datafusion": {"EACH_MINUTE": "unnest(generate_series(minute, until, INTERVAL '1 minute'))", "PERCENTILE": "approx_percentile_cont"},
}


def queries(engine: str) -> dict[str, str]:
    """The query of each view. ``engine``: ``spark`` or ``datafusion``."""
    found = {"traffic_by_minute": _TRAFFIC, "requests_by_api": _REQUESTS, "completeness": _COMPLETENESS}
    for general, own in _OWN_WORDS[engine].items():
        found = {name: query.replace(general, own) for name, query in found.items()}
    return found
