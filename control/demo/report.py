"""The demo's proof: what each part counted, side by side, and whether it is the same.

Requests: what the generator sent is what the proxy forwarded and what it refused by name. Answers: what the upstream sent is what the proxy forwarded
and what the generator received. In both directions the tap's log and Spark's tables hold what was forwarded. No count is derived from another. The
log itself must prove that it is complete, and Spark's table must say the same.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from framegate.control.demo.stage import LISTENER, LogCount
from framegate.control.demo.steering import Metrics
from framegate.proxy.tap.completeness import Verdict

PROOF: Final = {
    "completeness": """
        SELECT direction, state, count(*) AS windows, sum(seen) AS seen, sum(stored + withheld + sampled + lost) AS accounted
        FROM completeness GROUP BY direction, state"""
}  # the query of ``proof``

_BODIES: Final = """
    SELECT direction, connection_id, sequence,
           conv(hex(substring(payload, 1, 4)), 16, 10) AS number,
           cast(conv(hex(substring(payload, 5, 8)), 16, 10) AS bigint) AS stated_sequence,
           cast(conv(hex(substring(payload, 13, 4)), 16, 10) AS bigint) AS stated_checksum,
           crc32(substring(payload, 17)) AS checksum
    FROM frames
"""
CONTENT_QUERIES: Final[dict[str, str]] = {
    "frames": "SELECT direction, count(*) AS frames, sum(size + 4) AS bytes FROM frames GROUP BY direction",
    "content": f"""
        SELECT direction, count_if(stated_checksum <> checksum) AS wrong_checksums, count_if(stated_sequence <> sequence) AS misplaced
        FROM ({_BODIES}) GROUP BY direction""",
    "sequences": f"""
        SELECT direction, sum(last + 1 - different) AS missing, sum(frames - different) AS doubled
        FROM (SELECT direction, number, count(*) AS frames, count(DISTINCT stated_sequence) AS different, max(stated_sequence) AS last
              FROM ({_BODIES}) GROUP BY direction, number)
        GROUP BY direction""",
    "gaps": "SELECT coalesce(sum(lost_frames), 0) AS lost FROM gaps",
    **PROOF,
}  # the queries to Spark: counts, recomputed checksums, and whether each sequence has no gap and is in the order in which the proxy saw it


class Evidence(NamedTuple):
    """What each part counted: the load generator's final row, the upstream's handler, the proxy's metrics after the last connection closed, the
    frames in the tap's log, the verdict on its completeness, Spark's answers to ``CONTENT_QUERIES``. ``refused``: causes that the API named for
    refused frames.
    """

    generator: Mapping[str, Any]
    upstream: Mapping[str, Any]
    metrics: Metrics
    log: LogCount
    verdict: Verdict
    tables: Mapping[str, list[dict[str, Any]]]
    refused: list[str]

    def table(self, name: str, direction: str, column: str) -> int:
        """One number of Spark's answers; 0 when there is no row."""
        return next((int(row[column]) for row in self.tables[name] if row["direction"] == direction), 0)


class Counts(NamedTuple):
    """One line of the report: who counted, and how many frames."""

    who: str
    request: int
    response: int


class Check(NamedTuple):
    """One equation and whether it holds."""

    text: str
    good: bool


def counts(evidence: Evidence) -> list[Counts]:
    """The counts of each direction, by who counted them."""
    generator, log = evidence.generator, evidence.log
    return [
        Counts("load generator: sent, answers received", generator["sent"], generator["answered"]),
        Counts("upstream: received, answers sent", evidence.upstream["frames"], evidence.upstream["frames"]),
        Counts("proxy's shared cells: forwarded", _forwarded(evidence.metrics, "upstream"), _forwarded(evidence.metrics, "downstream")),
        Counts("proxy's shared cells: refused", evidence.metrics.sum("framegate_frame_rejected_total"), 0),
        Counts("reader of the tap's log", log.frames["request"], log.frames["response"]),
        Counts("Spark SQL over the tables", evidence.table("frames", "request", "frames"), evidence.table("frames", "response", "frames")),
    ]


def checks(evidence: Evidence) -> list[Check]:
    """Every equation."""
    return [*_equations(evidence), *_content(evidence), *proof(evidence.verdict, evidence.tables)]


def proof(verdict: Verdict, tables: Mapping[str, Sequence[Mapping[str, Any]]], unclaimed: int = 0) -> list[Check]:
    """Whether the log is complete, and Spark's table says the same. ``tables``: Spark's answers to ``PROOF``. ``unclaimed``: answers that came when
    their client had left: the log says that exactly so many are lost.
    """
    rows = verdict.rows
    late = [row for row in rows if (row.direction, row.state) == ("response", "lost")]
    explained = bool(unclaimed) and sum(row.lost for row in late) == unclaimed
    worse = Counter(row.state for row in rows if row.state != "complete" and not (explained and row in late))
    but = f"; all is there but answers whose clients had left: {unclaimed}" if explained else ""
    bad = f"; not complete: {', '.join(f'{count} {state}' for state, count in worse.items())}" if worse else ""
    faults = f"; {verdict.faults[0]}" if verdict.faults else ""
    ours: dict[tuple[str, str], list[int]] = {}
    for row in rows:
        windows, seen, accounted = ours.get((row.direction, row.state), (0, 0, 0))
        ours[row.direction, row.state] = [windows + 1, seen + row.seen, accounted + row.accounted]
    table = {(row["direction"], row["state"]): [int(row[name]) for name in ("windows", "seen", "accounted")] for row in tables["completeness"]}
    text = f"the tap's log proves that it is complete: {len(rows)} windows, {sum(row.seen for row in rows):,} frames seen{but}{bad}{faults}"
    return [
        Check(text, (verdict.complete or (explained and not faults)) and bool(rows) and not worse),
        Check(f"Spark's table completeness says the same: {sum(windows for windows, _, _ in table.values())} windows", table == ours),
    ]


def _equations(evidence: Evidence) -> Iterator[Check]:
    generator, upstream, cells, refused, log, spark = counts(evidence)
    text = f"requests: {generator.request:,} sent = {cells.request:,} forwarded + {refused.request:,} refused"
    yield Check(text, generator.request == cells.request + refused.request)
    named = evidence.metrics.by("framegate_frame_rejected_total", "framegate_reason")
    words = ", ".join(f"{count} {cause}" for cause, count in named.items()) or "none"
    counted = sorted(cause for cause, count in named.items() for _ in range(count))
    yield Check(f"requests: refused by name: {words}", sorted(evidence.refused) == counted)
    yield Check(f"requests: forwarded = received by the upstream = {upstream.request:,}", cells.request == upstream.request)
    yield Check(f"requests: forwarded = tapped = rows = {spark.request:,}", cells.request == log.request == spark.request)
    yield Check(f"answers: sent = forwarded = received = {generator.response:,}", upstream.response == cells.response == generator.response)
    yield Check(f"answers: forwarded = tapped = rows = {spark.response:,}", cells.response == log.response == spark.response)
    sizes = {
        "sent": [int(evidence.upstream["bytes"])] * 2,
        "tapped": [evidence.log.bytes["request"], evidence.log.bytes["response"]],
        "rows": [evidence.table("frames", direction, "bytes") for direction in ("request", "response")],
    }
    yield Check(f"bytes of both directions: {sum(sizes['rows']):,} in the tables", sizes["sent"] == sizes["tapped"] == sizes["rows"])


def _content(evidence: Evidence) -> Iterator[Check]:
    generator = evidence.generator
    for direction in ("request", "response"):
        found = {
            "wrong checksums": evidence.table("content", direction, "wrong_checksums"),
            "out of order": evidence.table("content", direction, "misplaced"),
            "missing": evidence.table("sequences", direction, "missing"),
            "doubled": evidence.table("sequences", direction, "doubled"),
        }
        rows = evidence.table("frames", direction, "frames")
        text = ", ".join(f"{count} {what}" for what, count in found.items())
        yield Check(f"{direction} bodies recomputed by Spark: {rows:,} checked: {text}", rows > 0 and not any(found.values()))
    lost = int(evidence.tables["gaps"][0]["lost"])
    yield Check(f"frames that the tap lost: {evidence.log.lost} by the log, {lost} by the table of gaps", evidence.log.lost == lost == 0)
    text = f"answers that the generator found wrong: {generator['wrong']}; load connections lost: {generator['lost']}"
    yield Check(text, generator["wrong"] == 0 and generator["lost"] == 0)


def _forwarded(metrics: Metrics, side: str) -> int:
    labels = {"framegate_side": side, "network_io_direction": "transmit", "framegate_listener": LISTENER}
    return metrics.sum("framegate_frame_count_total", **labels)
