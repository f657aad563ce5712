"""The command of the pipeline's job."""

import dataclasses
import datetime
import json
import pathlib
import sys
from typing import Any

import click
import pytest
from click.testing import CliRunner

from framegate.control.cli.commands import main
from framegate.control.cli.pipeline import run as command
from framegate.proxy.pipeline.delta import TableError
from framegate.proxy.pipeline.settings import PipelineSettings
from framegate.proxy.pipeline.sql import QueryError

MOMENT = datetime.datetime(2026, 11, 22, 7, tzinfo=datetime.UTC)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[PipelineSettings]:
    """The settings that the job was started with; it ends with 7."""
    found: list[PipelineSettings] = []
    monkeypatch.setattr("framegate.proxy.pipeline.run.run_pipeline", lambda settings: found.append(settings) or 7)
    return found


def run(*words: str) -> Any:
    return CliRunner().invoke(main, ["pipeline", "run", "--source", "tap", "--output", "tables", *words])


def test_every_setting_has_its_flag_and_every_flag_its_setting() -> None:
    flags = {param.name for param in command.params if isinstance(param, click.Option)}
    assert flags == {field.name for field in dataclasses.fields(PipelineSettings)}


def test_what_is_not_said_is_as_the_settings_have_it(asked: list[PipelineSettings]) -> None:
    assert run().exit_code == 7
    assert asked == [PipelineSettings(source=pathlib.Path("tap"), output=pathlib.Path("tables"), memory="1024m")]


def test_what_is_said_is_handed_on(asked: list[PipelineSettings]) -> None:
    words = "--available-now --trigger 250ms --max-bytes-per-trigger 64MiB --payload 4k --compact-every 0 --expire-after 7d"
    more = "--checkpoint s3a://bucket/log --consumer sizes --from latest --go-on --memory 2g --cores 3 --conf spark.a=b=c --conf spark.d="
    assert run(*words.split(), *more.split(), "--output", "s3a://bucket/tables").exit_code == 7
    assert asked == [
        PipelineSettings(
            source=pathlib.Path("tap"),
            output="s3a://bucket/tables",
            available_now=True,
            trigger_ms=250,
            max_bytes_per_trigger=64 << 20,
            payload="4k",
            compact_ms=0,
            expire_after_s=7 * 86400,
            checkpoint="s3a://bucket/log",
            consumer="sizes",
            start_from="latest",
            fail_on_data_loss=False,
            memory="2048m",
            cores=3,
            spark={"spark.a": "b=c", "spark.d": ""},
        )
    ]


@pytest.mark.parametrize("words", [["--conf", "a=b"], ["--conf", "spark.a"], ["--cores", "0"], ["--trigger", "soon"]])
def test_what_cannot_be_is_wrong_usage(asked: list[PipelineSettings], words: list[str]) -> None:
    assert run(*words).exit_code == 2
    assert asked == []


def test_the_pipeline_without_spark_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "framegate.proxy.pipeline.run", None)
    result = run()
    assert (result.exit_code, "framegate[spark]" in result.stderr) == (2, True)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the tables answer, by folder and query; ``asked``: the times of the pages."""
    import pyarrow as pa

    found: dict[str, Any] = {"asked": [], "rows": pa.table({"topic": ["orders", None], "at": [MOMENT, None], "n": [7, 1]})}

    def open_tables(folder: pathlib.Path) -> Any:
        if folder.name == "none":
            raise TableError("none has no tables")

        def ask(query: str) -> Any:
            if query != "SELECT":
                raise QueryError("not a query")
            return found["rows"]

        return ask

    monkeypatch.setattr("framegate.proxy.pipeline.sql.open_tables", open_tables)
    monkeypatch.setattr("framegate.proxy.pipeline.page.page", lambda ask, source, *times: found["asked"].append(times) or f"page of {source}")
    return found


def test_rows_are_a_table_or_json(answers: dict[str, Any]) -> None:
    shown = CliRunner().invoke(main, ["pipeline", "sql", "--tables", "t", "SELECT"])
    assert [line.split() for line in shown.output.splitlines()] == [["topic", "at", "n"], ["orders", "2026-11-22T07:00:00Z", "7"], ["-", "-", "1"]]
    told = CliRunner().invoke(main, ["pipeline", "sql", "--tables", "t", "--output", "json", "SELECT"])
    assert json.loads(told.output) == [{"topic": "orders", "at": "2026-11-22T07:00:00Z", "n": 7}, {"topic": None, "at": None, "n": 1}]
    answers["rows"] = answers["rows"].slice(2)
    for words, said in ((["sql"], "framegate: no rows of topic, at, n\n"), (["sql", "--output", "json"], "[]\n")):
        assert CliRunner().invoke(main, ["pipeline", *words, "--tables", "t", "SELECT"]).output == said


@pytest.mark.parametrize(("folder", "query", "code"), [("none", "SELECT", 2), ("t", "DELETE", 1)])
def test_what_cannot_be_asked_is_one_line(answers: dict[str, Any], folder: str, query: str, code: int) -> None:
    result = CliRunner().invoke(main, ["pipeline", "sql", "--tables", folder, query])
    assert (result.exit_code, len(result.output.splitlines())) == (code, 1)


def test_a_report_is_a_file_of_a_time(answers: dict[str, Any], tmp_path: pathlib.Path) -> None:
    words = ["pipeline", "report", "--tables", "t", "--since", "2026-11-22T07:00:00Z", "--until", "2026-11-22T08:00:00Z", "--out"]
    assert CliRunner().invoke(main, [*words, str(tmp_path / "page.html")]).exit_code == 0
    assert (tmp_path / "page.html").read_text() == "page of t"
    assert answers["asked"] == [(MOMENT, MOMENT + datetime.timedelta(hours=1))]
    assert CliRunner().invoke(main, [*words, str(tmp_path / "no" / "page.html")]).exit_code == 1
