"""What the view says of each minute, for every way in which one can end."""

import datetime
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from framegate.proxy.pipeline import completeness, derived
from framegate.proxy.pipeline.columns import arrow_schema
from framegate.proxy.pipeline.delta import DeltaTables
from framegate.proxy.pipeline.partial_sums import MICROSECONDS
from framegate.proxy.pipeline.queries import PARTS, queries
from framegate.proxy.pipeline.sql import open_tables
from framegate.proxy.tap.fleet import FOREVER_NS
from framegate.proxy.tap.stream_totals import STATES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START = datetime.datetime(2026, 11, 22, 7, 0)  # as Spark gives it, UTC
MINUTE = datetime.timedelta(minutes=1)
PLACE = ("node", "stream", "listener", "direction", "capture_time", "offset")
FRAME = pa.schema([arrow_schema("frames").field(name) for name in (*PLACE, "capture", "reason", "kept_size", "size")])
_GAP = {name: arrow_schema("gaps").field(name) for name in (*PLACE, "reason", "certainty", "lost_frames", "lost_from", "lost_until")}
_FACT = _GAP | {"kind": pa.field("kind", pa.string()), "seen_frames": pa.field("seen_frames", pa.int64())}
NODES = pa.schema([arrow_schema("nodes").field(name) for name in ("node", "heard_time", "complete_until")])
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
            self.frames.append((*self._place(minute), capture, reason, kept, size))
        self._offset += 64
        return self

    def totals(self, minute: float, seen: int) -> "Log":
        return self._fact(minute + 0.5, "totals", "none", None, 0, seen, minute, minute)

    def gap(self, minute: float, lost: int, *, until: float | None = None, certainty: str | None = "exact", reason: str = "queue_full") -> "Log":
        last = minute if until is None else until
        return self._fact(last + 3, "gap", reason, certainty, lost, None, minute, last)

    def _fact(self, minute: float, kind: str, reason: str, certainty: str | None, lost: int, seen: int | None, first: float, last: float) -> "Log":
        self.facts.append((*self._place(minute), kind, reason, certainty, lost, seen, self._at(first), self._at(last)))
        self._offset += 64
        return self

    def heard(self, minute: float, until: float | None) -> "Log":
        """``until``: None: it had ended in order."""
        self._fact(minute, "heard", "none", None, 0, None, minute, 0 if until is None else until)
        if until is None:
            self.facts[-1] = (*self.facts[-1][:-1], pa.scalar(FOREVER_NS // 1000, MICROSECONDS))
        return self

    def _place(self, minute: float) -> tuple[Any, ...]:
        return (self._stream.rsplit(".", 2)[0], self._stream, "main", "request", self._at(minute), self._offset)

    def _at(self, minute: float) -> datetime.datetime:
        return (START + datetime.timedelta(minutes=minute)).replace(tzinfo=datetime.UTC)


def tables(log: Log) -> tuple[pa.Table, pa.Table]:
    """The rows of frames and of facts."""
    return _table(log.frames, FRAME), _table(log.facts, FACT)


def _table(rows: list[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema=schema)


class Engine:
    """Runs queries on the tables of a log by one engine."""

    def __init__(self, name: str, output: Path, spark: "SparkSession | None") -> None:
        self._output = output / name
        self._spark = spark

    def ask(self, log: Log, statement: str) -> list[dict[str, Any]]:
        """The rows of a query; times without a zone."""
        frames, facts = tables(log)
        made = {"completeness": pa.concat_tables([completeness.of_frames(frames), completeness.of_gaps_and_totals(facts)])}
        made["nodes"] = derived.nodes(facts).cast(NODES)
        if self._spark is not None:
            for name, rows in made.items():
                self._spark.createDataFrame(rows).createOrReplaceTempView(PARTS[name])
            for name in ("nodes", "completeness", "minutes"):
                self._spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW {name} AS {queries('spark')[name]}")
            found = self._spark.sql(statement).toArrow()
        else:
            shutil.rmtree(self._output, ignore_errors=True)
            written = DeltaTables(self._output)
            for name, rows in made.items():
                if rows.num_rows:
                    written.commit(name, 0, "", written.write(name, rows))
            written.commit("frames", 0, "", [])
            found = open_tables(self._output)(statement)
        return [
            {name: value.replace(tzinfo=None) if isinstance(value, datetime.datetime) else value for name, value in row.items()}
            for row in found.to_pylist()
        ]

    def judged(self, log: Log) -> dict[str, list[tuple[Any, ...]]]:
        """By stream: minute and state of each row of the view ``completeness``."""
        found: dict[str, list[tuple[Any, ...]]] = {}
        for row in self.ask(log, "SELECT * FROM completeness ORDER BY stream, minute"):
            assert row["state"] in STATES
            counts = [row[name] for name in ("seen", "stored", "withheld", "sampled", "lost", "missing", "state")]
            found.setdefault(row["stream"], []).append(((row["minute"] - START) // MINUTE, *counts))
        return found

    def minutes(self, log: Log) -> list[tuple[Any, ...]]:
        """The rows of the view ``minutes``."""
        rows = self.ask(log, "SELECT * FROM minutes ORDER BY minute")
        return [((row.pop("minute") - START) // MINUTE, *row.values()) for row in rows]


@pytest.fixture(params=["datafusion", pytest.param("spark", marks=[pytest.mark.extended, pytest.mark.spark, pytest.mark.slow])])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    return Engine(request.param, tmp_path, request.getfixturevalue("spark") if request.param == "spark" else None)


def test_every_state(engine: Engine) -> None:
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
    log.frames[-1] = (None, *log.frames[-1][1:])  # a version without the column node
    assert engine.judged(log) == {
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


def test_what_control_wrote_counts_for_the_dead_stream(engine: Engine) -> None:
    log = Log()
    log.stream("n.3.boot").stored(0, 3).totals(0, 3).stored(1, 2)
    log.stream("n.recovery.boot").totals(1, 2).gap(1, 10, certainty="at_most", reason="processor_died")
    log.stream("n.recovery.gone").gap(0, 0, until=2, certainty="unknown", reason="processor_died")
    log.stream("m.3.boot").stored(0, 1).totals(0, 1)
    assert engine.judged(log) == {
        "n.3.boot": [(0, 3, 3, 0, 0, 0, 0, "complete"), (1, 2, 2, 0, 0, 0, 0, "at_most")],
        "n.recovery.gone": [(minute, 0, 0, 0, 0, 0, 0, "unknown") for minute in range(3)],
        "m.3.boot": [(0, 1, 1, 0, 0, 0, 0, "complete")],
    }


def test_a_minute_is_open_until_its_node_was_heard_since(engine: Engine) -> None:
    log = Log().stream("edge.0.b").stored(0, 2).totals(0, 2).stored(1, 1).totals(1, 1).stored(3, 1).gap(3, 1).totals(3, 2)
    log.heard(1, 0.5).heard(4, 1.9)
    assert [(row[0], row[-1]) for row in engine.judged(log)["edge.0.b"]] == [(0, "complete"), (1, "open"), (3, "lost")]
    assert engine.minutes(log) == [
        (0, "complete", 2, 0, 0, []), (1, "open", 1, 0, 0, ["edge"]), (2, "open", 0, 0, 0, ["edge"]), (3, "lost", 2, 1, 0, ["edge"]),
    ]  # fmt: skip
    log.stream("b.0.b").stored(3, 1).heard(4, 1)
    assert [row[-1] for row in engine.minutes(log)] == [[], ["b", "edge"], ["b", "edge"], ["b", "edge"]]
    log.heard(5, None).stream("edge.0.b").heard(5, 2)
    assert {row[-1] for row in engine.judged(log)["edge.0.b"]} == {"complete", "lost"}
    assert [row[-1] for row in engine.minutes(log)] == [[], [], ["edge"], ["b", "edge"]], "the last two minutes of b may be open"


def test_the_last_row_of_a_node_is_what_is_known_of_it(engine: Engine) -> None:
    log = Log().stream("b.0.b").heard(1, 0.5).heard(4, 3).heard(3, 2).stream("a.0.b").heard(1, 7).heard(2, None).heard(2, 1)
    found = engine.ask(log, "SELECT * FROM nodes ORDER BY node")
    assert [tuple(row.values()) for row in found] == [("a", START + 2 * MINUTE, None), ("b", START + 4 * MINUTE, START + 3 * MINUTE)]
    assert engine.minutes(log) == []


def test_a_gap_of_months_does_not_make_rows_of_every_minute(engine: Engine) -> None:
    log = Log().stream("n.0.b").stored(0, 1).totals(0, 1).stored(7, 1).totals(7, 1)
    log.stream("n.recovery.b").gap(0, 0, until=100_000, certainty="unknown")
    assert [row[0] for row in engine.judged(log)["n.0.b"]] == [0, 7, 100_000]
