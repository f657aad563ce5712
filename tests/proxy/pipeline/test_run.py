"""The messages of a job before Spark starts, the reason of a failure, and signals."""

import signal
from pathlib import Path
from typing import Any

import pytest

from framegate.proxy.pipeline.run import EXIT_USAGE, StoppedError, Stopping, _reason, run_pipeline
from framegate.proxy.pipeline.settings import PipelineSettings


def test_a_source_that_is_not_there_is_one_line_and_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = PipelineSettings(source=tmp_path / "nowhere", output=tmp_path / "out")
    assert run_pipeline(settings) == EXIT_USAGE
    assert capsys.readouterr() == ("", f"framegate pipeline: --source: no directory {tmp_path / 'nowhere'}\n")


def test_no_java_is_one_line_and_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "no-java"))
    assert run_pipeline(PipelineSettings(source=tmp_path, output=tmp_path / "out")) == EXIT_USAGE
    said = capsys.readouterr().err
    assert said.startswith("framegate pipeline: Spark needs Java 17")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("told", "fault"),
    [
        ({"start_from": "yesterday"}, "--from: earliest, latest or a time like"),
        ({"payload": "some"}, "--payload: none, full or bytes"),
        ({"consumer": "../x"}, "--consumer: letters, digits"),
        ({"payload": "1g"}, "--memory: "),
        ({"cores": 128}, "--memory: 128 tasks at once"),
        ({"memory": "much"}, "not a heap as Java writes it"),
        ({"output": "s3a://bucket/tables"}, "--output: s3a://bucket/tables must begin with s3://, gs://, az:// or file://"),
        ({"output": "s3://bucket/tables"}, "--checkpoint: an output in an object store needs a folder"),
    ],
)
def test_what_cannot_be_is_one_line_and_exit_2(tmp_path: Path, told: dict[str, Any], fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    settings = PipelineSettings(**{"source": tmp_path, "output": tmp_path / "out", **told})
    assert run_pipeline(settings) == EXIT_USAGE
    said = capsys.readouterr().err
    assert said.startswith(f"framegate pipeline: {fault}")
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_the_reason_of_a_failure_is_its_own_line() -> None:
    trace = "Traceback (most recent call last):\n  File x\nframegate.proxy.pipeline.planner.DataLossError: stream a is gone\n\tat org.x"
    assert _reason(f"[STREAM_FAILED] Query terminated\n{trace}") == "framegate.proxy.pipeline.planner.DataLossError: stream a is gone"
    assert _reason("[STREAM_FAILED] Query terminated\n at x") == "[STREAM_FAILED] Query terminated"
    py4j = "An error occurred while calling o68.start.\n: java.io.IOException: mkdir of file:/x failed\n\tat org.x"
    assert _reason(py4j) == "java.io.IOException: mkdir of file:/x failed"
    within = "py4j.protocol.Py4JJavaError: An error occurred while calling o1.parquet.\n: org.apache.spark.SparkException: Job aborted"
    assert _reason(f"{within}\nCaused by: a.B: c\n\tat org.x\nCaused by: java.io.IOException: broken\n\tat org.y") == "java.io.IOException: broken"


def test_a_signal_asks_for_an_end_in_order_once_and_only_while_there_is_one() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    try:
        early = Stopping()
        with pytest.raises(StoppedError):
            early.on_signal(signal.SIGINT, None)
        assert (early.word, early.exit_code) == ("interrupted", 130)
        stopping = Stopping()
        stopping.in_order = True
        stopping.on_signal(signal.SIGINT, None)
        assert stopping.asked.is_set()
        with pytest.raises(StoppedError):
            stopping.on_signal(signal.SIGTERM, None)
        assert (stopping.word, stopping.exit_code) == ("terminated", 143)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN, "what ends at once is not interrupted in its cleaning up"
    finally:
        for number, handler in zip((signal.SIGTERM, signal.SIGINT), before, strict=True):
            signal.signal(number, handler)


def test_signal_handlers_are_put_back(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    run_pipeline(PipelineSettings(source=tmp_path / "nowhere", output=tmp_path / "out"))
    assert signal.getsignal(signal.SIGTERM) is before
