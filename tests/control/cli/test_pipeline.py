"""The command of the pipeline's job."""

import dataclasses
import pathlib
import sys
from typing import Any

import click
import pytest
from click.testing import CliRunner

from framegate.control.cli.commands import main
from framegate.control.cli.pipeline import run as command
from framegate.proxy.pipeline.settings import PipelineSettings


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
