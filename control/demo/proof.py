"""The last word of both demos: the log proves that it is complete, and Spark's table says the same."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from proxy.tap.completeness import Verdict

__all__ = ["NAME", "QUERY", "proof"]

NAME: Final = "completeness"
QUERY: Final = f"""
    SELECT direction, state, count(*) AS windows, sum(seen) AS seen, sum(stored + withheld + sampled + lost) AS accounted
    FROM {NAME} GROUP BY direction, state
"""


def proof(verdict: Verdict, rows: Sequence[Mapping[str, Any]], unclaimed: int = 0) -> list[tuple[str, bool]]:
    """What was found, and whether it is good.

    Args:
        verdict: on the log, after the proxy has ended.
        rows: of Spark, what ``QUERY`` asks.
        unclaimed: answers that came when their client had left: the log says that exactly so many are lost.
    """
    windows = len(verdict.rows)
    seen = sum(row.seen for row in verdict.rows)
    states = Counter((row.direction, row.state) for row in verdict.rows)
    late = [row for row in verdict.rows if (row.direction, row.state) == ("response", "lost")]
    but = f"; all is there but answers whose clients had left: {unclaimed}" if unclaimed and sum(row.lost for row in late) == unclaimed else ""
    worse = Counter(row.state for row in verdict.rows if row.state != "complete" and not (but and row in late))
    bad = ", ".join(f"{count} {state}" for state, count in worse.items())
    found = f"{windows} windows, {seen:,} frames seen{but}" + (f"; not complete: {bad}" if bad else "")
    faults = f"; {verdict.faults[0]}" if verdict.faults else ""
    same = {(row["direction"], row["state"]): (int(row["windows"]), int(row["seen"]), int(row["accounted"])) for row in rows}
    ours = {
        key: (
            count,
            sum(row.seen for row in verdict.rows if (row.direction, row.state) == key),
            sum(row.accounted for row in verdict.rows if (row.direction, row.state) == key),
        )
        for key, count in states.items()
    }
    return [
        (f"the tap's log proves that it is complete: {found}{faults}", (verdict.complete or (bool(but) and not faults)) and windows > 0 and not bad),
        (f"Spark's table {NAME} says the same: {sum(counts[0] for counts in same.values())} windows", same == ours),
    ]
