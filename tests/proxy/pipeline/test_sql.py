"""Questions to the tables without Spark."""

import datetime
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from framegate.proxy.pipeline.columns import TABLE_SCHEMAS, TIME_COLUMNS, arrow_schema
from framegate.proxy.pipeline.delta import DeltaTables, TableError
from framegate.proxy.pipeline.page import page
from framegate.proxy.pipeline.sql import QueryError, open_tables
from framegate.proxy.pipeline.table_files import TableFile
from tests.fakes.outputs import Output

START = datetime.datetime(2026, 11, 22, 7, tzinfo=datetime.UTC)
MINUTE = datetime.timedelta(minutes=1)
OTHERS = ("totals", "withheld", "sampled", "lost", "at_most", "unknown", "shared", "first_offset")


def stage(tables: DeltaTables, table: str, *rows: dict[str, Any]) -> list[TableFile]:
    schema = arrow_schema(table).remove_metadata()
    names = [field for field in schema if field.name not in ("date", "hour")]
    return tables.write(table, pa.Table.from_pylist([{TIME_COLUMNS[table]: START} | row for row in rows], pa.schema(names)))


@pytest.fixture
def tables(output: Output) -> Output:
    return write_hour(output)


def write_hour(output: Output) -> Output:
    """An hour of requests of two clients; a batch that is only in one table."""
    tables, files = DeltaTables(output), dict[str, list[TableFile]]()
    kafka = {"listener": "main", "api_key": 0, "api": "Produce", "api_version": 9, "outcome": "answered", "error_code": 0, "client_id": "<b>&shop"}
    requests = [
        kafka | {"capture_time": START + MINUTE * number, "latency_us": 1000 * number, "request_size": 1 << number % 20} for number in range(60)
    ]
    refused = kafka | {"principal": "CN=b", "error_code": 29, "client_id": "audit", "latency_us": 5}
    files["requests"] = stage(tables, "requests", *requests, refused, kafka | {"outcome": None, "api": None, "client_id": None, "latency_us": None})
    part = kafka | {"topic": "orders", "partition": 0, "records": 7, "record_bytes": 700}
    files["kafka_partitions"] = stage(tables, "kafka_partitions", part, part | {"records": None, "record_bytes": None})
    sums = {"listener": "main", "direction": "request"}
    files["traffic_by_minute"] = stage(
        tables, "traffic_by_minute", *(sums | {"principal": who, "frames": 1, "bytes": 10} for who in ("CN=a", "CN=a", None))
    )
    files["completeness"] = stage(
        tables, "completeness", sums | {"stream": "n.0.b", "until": START, "seen": 3, "stored": 3, **dict.fromkeys(OTHERS, 0)}
    )
    files["gaps"] = stage(tables, "gaps", sums | {"reason": "queue_full", "certainty": "exact", "lost_frames": 4})
    end = {"duration_ms": 1500, "request_bytes": 10, "response_bytes": 20}
    files["connections"] = stage(
        tables, "connections", *(end | {"principal": who, "level": level} for who, level in (("CN=a", "info"), ("CN=a", "error"), (None, "info")))
    )
    for table in TABLE_SCHEMAS:
        tables.commit(table, 0, "", files.get(table, []))
    tables.commit("gaps", 1, "", stage(tables, "gaps", sums | {"reason": "disk_full"}))
    return output


def test_tables_and_views_have_their_names_and_are_of_one_batch(tables: Output) -> None:
    ask = open_tables(tables)
    for name in (*TABLE_SCHEMAS, "requests_by_api", "minutes"):
        assert ask(f"SELECT * FROM {name} LIMIT 1").num_columns > 2, name
    assert ask("SELECT principal, frames FROM traffic_by_minute ORDER BY principal NULLS FIRST").to_pylist() == [
        {"principal": None, "frames": 1},
        {"principal": "CN=a", "frames": 2},
    ]
    assert ask("SELECT reason FROM gaps")["reason"].to_pylist() == ["queue_full"], "disk_full is of a batch that not all tables have"
    assert ask("SELECT api, requests, answers, errors FROM requests_by_api").to_pylist() == [
        {"api": "Produce", "requests": 62, "answers": 62, "errors": 1}
    ]


def test_a_table_that_is_new_in_this_version_has_no_rows_until_a_job_has_made_it(tmp_path: Path) -> None:
    write_hour(tmp_path)
    shutil.rmtree(tmp_path / "connections")
    ask = open_tables(tmp_path)
    empty = ask("SELECT * FROM connections")
    assert (empty.column_names, empty.num_rows) == (arrow_schema("connections").names, 0)
    assert "Connections that ended" in page(ask, "t", START, START + 60 * MINUTE)


@pytest.fixture(scope="module")
def hour(tmp_path_factory: pytest.TempPathFactory) -> Output:
    return write_hour(tmp_path_factory.mktemp("hour"))


@pytest.mark.parametrize(
    "statement", ["DELETE FROM frames", "INSERT INTO gaps SELECT * FROM gaps", "COPY frames TO 'x'", "CREATE VIEW x AS SELECT 1", ""]
)
def test_only_queries_are_run(hour: Output, statement: str) -> None:
    with pytest.raises(QueryError, match="not a query"):
        open_tables(hour)(statement)


@pytest.mark.parametrize("statement", ["SELECT nonsense FROM frames", "SELECT 1; DELETE FROM frames", "WITH x AS (SELECT"])
def test_a_query_that_cannot_be_run_is_one_line(hour: Output, statement: str) -> None:
    with pytest.raises(QueryError) as error:
        open_tables(hour)(statement)
    assert "\n" not in str(error.value)


def test_a_table_that_is_not_there_is_answered_with_those_that_are(hour: Output) -> None:
    with pytest.raises(QueryError, match=r"^no table frame: there are completeness, connections, frames, .* traffic_by_minute$"):
        open_tables(hour)("SELECT * FROM frame")


def test_comments_and_common_table_expressions_are_queries(hour: Output) -> None:
    ask = open_tables(hour)
    for statement in ("-- how many\n SELECT 1 AS n", "/* a\n b */ with x as (select 1 as n) select n from x", "(SELECT 1 AS n)", "values (1)"):
        assert ask(statement).num_rows == 1


def test_an_output_without_tables_says_so_and_one_without_rows_answers(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="has no table"):
        open_tables(tmp_path)
    DeltaTables(tmp_path)
    ask = open_tables(tmp_path)
    assert ask("SELECT count(*) AS n FROM minutes")["n"].to_pylist() == [0]
    assert page(ask, "t", START, START + MINUTE).count('class="none"') == 11
