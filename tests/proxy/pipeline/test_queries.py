"""What the view says of each minute, for every way in which one can end."""

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from framegate.proxy.pipeline import completeness
from framegate.proxy.pipeline.columns import arrow_schema
from framegate.proxy.pipeline.delta import DeltaTables
from framegate.proxy.pipeline.queries import queries
from framegate.proxy.pipeline.sql import open_tables
from framegate.proxy.tap.stream_totals import STATES

START = datetime.datetime(2026, 11, 22, 7, 0)  # as Spark gives it, UTC
PLACE = ("stream", "listener", "direction", "capture_time", "offset")
FRAME = pa.schema([arrow_schema("frames").field(name) for name in (*PLACE, "capture", "reason", "kept_size", "size")])
_GAP = {name: arrow_schema("gaps").field(name) for name in (*PLACE, "reason", "certainty", "lost_frames", "lost_from", "lost_until")}
_FACT = _GAP | {"kind": pa.field("kind", pa.string()), "seen_frames": pa.field("seen_frames", pa.int64())}
FACT = pa.schema([_FACT[name] for name in (*PLACE, "kind", "reason", "certainty", "lost_frames", "seen_frames", "lost_from", "lost_until")])


class Log:
    """Rows of frames and of facts."""

    def __init__(self) -> None:
        self.frames: list[tuple[Any, ...]] = []
        self.facts: list[tuple[Any, ...]] = []
        self._stream = ""
        self._offset = 0

    def stream(self, name: str, *, offset: int = 0) -> "Log":
        self._stream, self._offset = name, offset
        return self

    def stored(self, minute: float, count: int, *, capture: str = "full", reason: str = "none", kept: int = 9, size: int = 9) -> "Log":
        for _ in range(count):
            self.frames.append((self._stream, "main", "request", self._at(minute), self._offset, capture, reason, kept, size))
        self._offset += 64
        return self

    def totals(self, minute: float, seen: int) -> "Log":
        return self._fact(minute + 0.5, "totals", "none", None, 0, seen, minute, minute)

    def gap(self, minute: float, lost: int, *, until: float | None = None, certainty: str | None = "exact", reason: str = "queue_full") -> "Log":
        last = minute if until is None else until
        return self._fact(last + 3, "gap", reason, certainty, lost, None, minute, last)

    def _fact(self, minute: float, kind: str, reason: str, certainty: str | None, lost: int, seen: int | None, first: float, last: float) -> "Log":
        place = (self._stream, "main", "request", self._at(minute), self._offset)
        self.facts.append((*place, kind, reason, certainty, lost, seen, self._at(first), self._at(last)))
        self._offset += 64
        return self

    def _at(self, minute: float) -> datetime.datetime:
        return (START + datetime.timedelta(minutes=minute)).replace(tzinfo=datetime.UTC)


def tables(log: Log) -> tuple[pa.Table, pa.Table]:
    """The rows of frames and of facts."""
    return _table(log.frames, FRAME), _table(log.facts, FACT)


def _table(rows: list[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema=schema)


Judge = Callable[[Log], dict[str, list[tuple[Any, ...]]]]


@pytest.fixture(params=["datafusion", pytest.param("spark", marks=[pytest.mark.extended, pytest.mark.spark, pytest.mark.slow])])
def judged(request: pytest.FixtureRequest, tmp_path: Path) -> Judge:
    """By stream: minute and state of each row of the view, by each engine."""

    def judge(log: Log) -> dict[str, list[tuple[Any, ...]]]:
        frames, facts = tables(log)
        parts = pa.concat_tables([completeness.of_frames(frames), completeness.of_gaps_and_totals(facts)])
        if request.param == "spark":
            spark = request.getfixturevalue("spark")
            spark.createDataFrame(parts).createOrReplaceTempView("completeness_parts")
            rows = spark.sql(queries("spark")["completeness"]).toArrow().to_pylist()
        else:
            written = DeltaTables(tmp_path)
            written.stage("completeness", parts)
            written.commit("completeness", 0, "")
            written.commit("frames", 0, "")
            rows = open_tables(tmp_path)("SELECT * FROM completeness").to_pylist()
        found: dict[str, list[tuple[Any, ...]]] = {}
        for row in sorted(rows, key=lambda row: (row["stream"], row["minute"])):
            assert row["state"] in STATES
            minute = (row["minute"].replace(tzinfo=None) - START) // datetime.timedelta(minutes=1)
            counts = [row[name] for name in ("seen", "stored", "withheld", "sampled", "lost", "missing", "state")]
            found.setdefault(row["stream"], []).append((minute, *counts))
        return found

    return judge


def test_every_state(judged: Judge) -> None:
    log = Log()
    log.stream("n.0.good").stored(0, 3).stored(0.9, 2).totals(0, 5).stored(1, 2)
    log.stream("n.0.ended").stored(0, 3).totals(0, 2).totals(0.1, 1)
    log.stream("a.b.c.1.dots").stored(0, 1).totals(0, 1)
    log.stream("n.0.lost").stored(0, 1).gap(0, 2).totals(0, 3)
    log.stream("n.0.late").stored(0, 1).gap(0.5, 2).totals(0, 3).stored(5, 1).totals(5, 1)
    log.stream("n.0.sampled").stored(0, 1).gap(0, 4, reason="sampled").totals(0, 5)
    log.stream("n.0.withheld").stored(0, 2, reason="withheld", kept=0).stored(0, 1, reason="withheld").totals(0, 3)
    log.stream("n.0.lengths").stored(0, 2, capture="lengths", reason="capture", kept=0).totals(0, 2)
    log.stream("n.0.empty").stored(0, 2, reason="withheld", kept=0, size=0).totals(0, 2)
    log.stream("n.0.missing").stored(0, 3).totals(0, 5).stored(1, 1).stored(3, 1).totals(3, 1)
    log.stream("n.0.more").stored(0, 3).totals(0, 2).stored(3, 1).totals(3, 1)
    log.stream("n.0.pieces").stored(0, 2).stored(0, 1, reason="pieces_lost").totals(0, 3)
    log.stream("n.0.version2").stored(0, 1).stored(9, 1)
    log.stream("n.0.cut", offset=640).stored(0, 3).totals(0, 5).stored(1, 3).totals(1, 5).stored(2, 1).totals(2, 1)
    log.stream("n.0.cutlost", offset=640).stored(0, 3).totals(0, 7).gap(0, 2)
    log.stream("n.0.openlost").stored(0, 3).gap(0, 2)
    log.stream("n.0.shared").stored(0, 3).totals(0, 5).stored(1, 3).totals(1, 8).gap(0.5, 4, until=1.5)
    log.stream("n.0.old").stored(0, 1).gap(0, 2, certainty=None).totals(0, 3)
    assert judged(log) == {
        "n.0.good": [(0, 5, 5, 0, 0, 0, 0, "complete"), (1, 0, 2, 0, 0, 0, -2, "open")],
        "n.0.ended": [(0, 3, 3, 0, 0, 0, 0, "complete")],
        "a.b.c.1.dots": [(0, 1, 1, 0, 0, 0, 0, "complete")],
        "n.0.lost": [(0, 3, 1, 0, 0, 2, 0, "lost")],
        "n.0.late": [(0, 3, 1, 0, 0, 2, 0, "lost"), (5, 1, 1, 0, 0, 0, 0, "complete")],
        "n.0.sampled": [(0, 5, 1, 0, 4, 0, 0, "complete")],
        "n.0.withheld": [(0, 3, 1, 2, 0, 0, 0, "complete")],
        "n.0.lengths": [(0, 2, 2, 0, 0, 0, 0, "complete")],
        "n.0.empty": [(0, 2, 2, 0, 0, 0, 0, "complete")],
        "n.0.missing": [(0, 5, 3, 0, 0, 0, 2, "missing"), (1, 0, 1, 0, 0, 0, -1, "missing"), (3, 1, 1, 0, 0, 0, 0, "complete")],
        "n.0.more": [(0, 2, 3, 0, 0, 0, -1, "missing"), (3, 1, 1, 0, 0, 0, 0, "complete")],
        "n.0.pieces": [(0, 3, 2, 0, 0, 1, 0, "lost")],
        "n.0.version2": [(0, 0, 1, 0, 0, 0, -1, "unknown"), (9, 0, 1, 0, 0, 0, -1, "open")],
        "n.0.cut": [(0, 5, 3, 0, 0, 0, 2, "cut"), (1, 5, 3, 0, 0, 0, 2, "missing"), (2, 1, 1, 0, 0, 0, 0, "complete")],
        "n.0.cutlost": [(0, 7, 3, 0, 0, 2, 2, "lost")],
        "n.0.openlost": [(0, 0, 3, 0, 0, 2, -5, "lost")],
        "n.0.shared": [(0, 5, 3, 0, 0, 0, 0, "lost"), (1, 8, 3, 0, 0, 0, 5, "missing")],
        "n.0.old": [(0, 3, 1, 0, 0, 2, 0, "lost")],
    }


def test_what_control_wrote_counts_for_the_dead_stream(judged: Judge) -> None:
    log = Log()
    log.stream("n.3.boot").stored(0, 3).totals(0, 3).stored(1, 2)
    log.stream("n.recovery.boot").totals(1, 2).gap(1, 10, certainty="at_most", reason="processor_died")
    log.stream("n.recovery.gone").gap(0, 0, until=2, certainty="unknown", reason="processor_died")
    log.stream("m.3.boot").stored(0, 1).totals(0, 1)
    assert judged(log) == {
        "n.3.boot": [(0, 3, 3, 0, 0, 0, 0, "complete"), (1, 2, 2, 0, 0, 0, 0, "at_most")],
        "n.recovery.gone": [(minute, 0, 0, 0, 0, 0, 0, "unknown") for minute in range(3)],
        "m.3.boot": [(0, 1, 1, 0, 0, 0, 0, "complete")],
    }


def test_a_gap_of_months_does_not_make_rows_of_every_minute(judged: Judge) -> None:
    log = Log().stream("n.0.b").stored(0, 1).totals(0, 1).stored(7, 1).totals(7, 1)
    log.stream("n.recovery.b").gap(0, 0, until=100_000, certainty="unknown")
    assert [row[0] for row in judged(log)["n.0.b"]] == [0, 7, 100_000]
