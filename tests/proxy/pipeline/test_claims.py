"""What another job holds, or cannot be held, is one line and exit code 2."""

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from framegate.proxy.pipeline.claims import claim_name, claim_output
from framegate.proxy.pipeline.delta import DeltaTables
from framegate.proxy.pipeline.kafka_tables import State
from framegate.proxy.pipeline.run import EXIT_USAGE, run_pipeline
from framegate.proxy.pipeline.settings import PipelineSettings
from framegate.proxy.tap.consumer import claim_consumer, write_consumer
from tests.fakes.jobs import JOB, environment
from tests.fakes.outputs import Output


def refusal(capsys: pytest.CaptureFixture[str], **settings: Any) -> str:
    """What a job with these settings says before it ends with exit code 2: one line."""
    assert run_pipeline(PipelineSettings(**settings)) == EXIT_USAGE
    said = capsys.readouterr().err
    assert said.startswith("framegate pipeline: ")
    assert said.count("\n") == 1
    return said.removeprefix("framegate pipeline: ").rstrip("\n")


def test_an_output_has_one_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (tmp_path / "_lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "another job writes" in refusal(capsys, source=tmp_path, output=tmp_path)


@pytest.mark.parametrize("url", ["http://bucket/x", "s3://key:secret@bucket/x", "file://host/x"])
def test_a_url_that_cannot_be_is_refused(tmp_path: Path, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert refusal(capsys, source=url, output=tmp_path).startswith(f"--source: {url} must ")


def test_nothing_is_written_to_a_store(tmp_path: Path) -> None:
    with claim_name(PipelineSettings(source=f"file://{tmp_path}", output=tmp_path / "out"), lambda event: None) as registered:
        assert not registered
    assert list(tmp_path.iterdir()) == []


def test_batches_without_their_checkpoint_are_not_continued(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "_lock").touch()
    tables = DeltaTables(tmp_path)
    with monkeypatch.context() as patch:
        patch.setenv("JAVA_HOME", str(tmp_path / "no-java"))
        assert "Spark needs Java" in refusal(capsys, source=tmp_path, output=tmp_path), "tables without batches need none"
    tables.commit("gaps", 0, "query", [])
    assert "there is no checkpoint" in refusal(capsys, source=tmp_path, output=tmp_path)


@pytest.mark.parametrize("old", ["_manifest", "frames/batch_id=3"])
def test_tables_of_an_earlier_format_are_refused(tmp_path: Path, old: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / old).mkdir(parents=True)
    said = refusal(capsys, source=tmp_path, output=tmp_path)
    assert said == f"--output: {tmp_path} has tables of an earlier format ({old}); name a new folder"


def test_tables_that_cannot_be_read_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    DeltaTables(tmp_path)
    (tmp_path / "gaps" / "_delta_log" / f"{0:020}.json").write_text("torn\n")
    assert refusal(capsys, source=tmp_path, output=tmp_path).startswith(f"--output: {tmp_path}/gaps: ")


def test_what_a_job_left_is_its_successors(tmp_path: Path, output: Output) -> None:
    settings = PipelineSettings(source=tmp_path, output=output, checkpoint=tmp_path / "checkpoint")
    for _ in range(2):
        with claim_output(settings):
            tables = DeltaTables(output)
            tables.write_state(tables.read_state(1), State())


def test_an_output_that_is_no_folder_or_holds_something_else_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.txt").touch()
    for output in (tmp_path / "thesis.txt", tmp_path / "thesis.txt" / "out"):
        assert refusal(capsys, source=tmp_path, output=output).startswith(f"--output: {output} cannot be written to: ")
    said = refusal(capsys, source=tmp_path, output=tmp_path)
    assert said == f"--output: {tmp_path} has files of something else (thesis.txt); name a new folder"
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_an_output_that_cannot_be_written_to_is_one_line_and_exit_2(tmp_path: Path, unwritable: list[str]) -> None:
    command = [*unwritable, sys.executable, str(JOB), json.dumps({"source": str(tmp_path), "output": str(tmp_path / "sealed" / "out")})]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == EXIT_USAGE
    assert done.stderr.startswith(f"framegate pipeline: --output: {tmp_path}/sealed/out cannot be written to: ")
    assert done.stderr.count("\n") == 1


@pytest.fixture
def unwritable(tmp_path: Path) -> Iterator[list[str]]:
    """What to put before a command for which ``sealed`` is a folder that cannot be written to."""
    sealed = tmp_path / "sealed"
    sealed.mkdir(mode=0o755 if os.geteuid() == 0 else 0o555)
    if os.geteuid() != 0:
        yield []
        return
    words = ["unshare", "-m", "sh", "-c", f'mount --bind {sealed} {sealed} && mount -o remount,bind,ro {sealed} && exec "$@"', "sh"]
    if subprocess.run([*words, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no mount namespaces here, and root may write everywhere")
    yield words


def test_a_consumer_is_one_job_of_the_tap(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_consumer(str(tmp_path), "pipeline", {}, 1, "/elsewhere/_checkpoint")
    said = refusal(capsys, source=tmp_path, output=tmp_path / "out")
    assert "--consumer: the name pipeline is in use by /elsewhere/_checkpoint" in said
    assert f"framegate tap consumers remove {tmp_path} pipeline" in said
    with claim_consumer(str(tmp_path), "mine"):
        assert "another process reads under the name mine" in refusal(capsys, source=tmp_path, output=tmp_path / "out", consumer="mine")


def test_a_tap_that_cannot_be_written_to_is_said_and_read(tmp_path: Path, unwritable: list[str]) -> None:
    told = {"source": str(tmp_path / "sealed"), "output": str(tmp_path / "out")}
    command = [*unwritable, sys.executable, str(JOB), json.dumps(told)]
    no_java = {**environment(), "JAVA_HOME": str(tmp_path / "no-java")}
    done = subprocess.run(command, env=no_java, capture_output=True, text=True, check=False)
    (said,) = [json.loads(line) for line in done.stdout.splitlines()]
    assert (said["event"], said["consumer"]) == ("unregistered", "pipeline")
    assert said["reason"].startswith(str(tmp_path / "sealed" / "_consumers"))
    assert "Spark needs Java" in done.stderr, "it went on from there"


def test_a_new_disk_is_empty_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "lost+found").mkdir()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "no-java"))
    assert "Spark needs Java" in refusal(capsys, source=tmp_path, output=tmp_path)
