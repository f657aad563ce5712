"""The job, as a process of its own where signals matter."""

import collections
import contextlib
import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

import proxy
from proxy.pipeline.manifest import ManifestLog
from proxy.pipeline.run import EXIT_FAILED, EXIT_OK, EXIT_USAGE, StoppedError, _reason, _Stopping, run_pipeline, start_query
from proxy.pipeline.settings import PipelineSettings
from proxy.pipeline.tables import TableWriter
from proxy.tap import record
from proxy.tap.consumer import claim_consumer, read_consumers, write_consumer
from tests.fakes.runs import pieces_of
from tests.fakes.tap_files import stored
from tests.fakes.tap_log import START_NS, FakeProcessor, demo_body

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOB = Path(__file__).with_name("job.py")
WAIT_S = 120


def until(ready: Callable[[], Any], what: str, job: "subprocess.Popen[str] | None" = None) -> Any:
    """What ``ready`` gives, as soon as it is true; a job that ended meanwhile is a failure."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        found = ready()
        if found:
            return found
        assert job is None or job.poll() is None, f"the job ended while waiting for {what}: {job.stderr.read() if job.stderr else ''}"
        time.sleep(0.02)
    raise AssertionError(f"no {what} within {WAIT_S} s")


def environment() -> dict[str, str]:
    """Of a process that runs the same build."""
    return {**os.environ, "PYTHONPATH": str(Path(proxy.__file__).parents[1])}


@contextlib.contextmanager
def running(**told: Any) -> Iterator["subprocess.Popen[str]"]:
    """The job in a process group of its own, which is killed whole in the end. Told nothing, it starts Spark and waits for ``tell``."""
    job = subprocess.Popen(
        [sys.executable, str(JOB), *([json.dumps(told)] if told else [])],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        with job:
            try:
                yield job
            finally:
                if job.returncode != -signal.SIGKILL:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(job.pid, signal.SIGKILL)
    finally:
        job.wait(10)


def tell(job: "subprocess.Popen[str]", **told: Any) -> None:
    """Let a job begin that started Spark and waits."""
    assert job.stdin is not None
    job.stdin.write(json.dumps(told) + "\n")
    job.stdin.flush()


def modes(folder: Path) -> set[tuple[str, int]]:
    """The modes of a folder and of everything in it."""
    return {("folder" if path.is_dir() else "file", stat.S_IMODE(path.stat().st_mode)) for path in (folder, *folder.rglob("*"))}


def table(output: Path, name: str) -> list[dict[str, Any]]:
    """The rows of a table, read without Spark."""
    return [row for part in sorted((output / name).glob("date=*/hour=*/*.parquet")) for row in pq.ParquetFile(part).read().to_pylist()]


# Before anything starts


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


def test_an_output_has_one_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (tmp_path / "_lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert run_pipeline(PipelineSettings(source=tmp_path, output=tmp_path)) == EXIT_USAGE
    assert "another job writes" in capsys.readouterr().err


def test_batches_without_their_checkpoint_are_not_continued(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ManifestLog(tmp_path).close()
    assert run_pipeline(PipelineSettings(source=tmp_path, output=tmp_path)) == EXIT_USAGE
    assert "there is no checkpoint" in capsys.readouterr().err


def test_an_output_that_cannot_be_is_one_line_and_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    for output in (tmp_path / "file", tmp_path / "file" / "out"):
        assert run_pipeline(PipelineSettings(source=tmp_path, output=output)) == EXIT_USAGE
        said = capsys.readouterr().err
        assert said.startswith(f"framegate pipeline: --output: {output} cannot be written to: ")
        assert said.count("\n") == 1


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


@pytest.mark.parametrize(
    ("told", "fault"),
    [
        ({"start_from": "yesterday"}, "startingOffsets: earliest, latest or a time like"),
        ({"payload": "some"}, "payload: none, full or bytes"),
        ({"consumer": "../x"}, "--consumer: letters, digits"),
        ({"payload": "1g"}, "--memory: "),
        ({"cores": 64}, "--memory: 64 tasks at once"),
        ({"memory": "much"}, "not a heap as Java writes it"),
        ({"output": "s3a://bucket/tables"}, "--output: s3a://bucket/tables is no folder of this host"),
    ],
)
def test_what_cannot_be_is_one_line_and_exit_2(tmp_path: Path, told: dict[str, Any], fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    settings = PipelineSettings(**{"source": tmp_path, "output": tmp_path / "out", **told})
    assert run_pipeline(settings) == EXIT_USAGE
    said = capsys.readouterr().err
    assert said.startswith(f"framegate pipeline: {fault}")
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_consumer_is_one_job_of_the_tap(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_consumer(str(tmp_path), "pipeline", {}, 1, "/elsewhere/_checkpoint")
    assert run_pipeline(PipelineSettings(source=tmp_path, output=tmp_path / "out")) == EXIT_USAGE
    said = capsys.readouterr().err
    assert "--consumer: the name pipeline is in use by /elsewhere/_checkpoint" in said
    assert "framegate tap consumers remove pipeline" in said
    with claim_consumer(str(tmp_path), "mine"):
        assert run_pipeline(PipelineSettings(source=tmp_path, output=tmp_path / "out", consumer="mine")) == EXIT_USAGE
    assert "another process reads under the name mine" in capsys.readouterr().err


def test_a_tap_that_cannot_be_written_to_is_said_and_read(tmp_path: Path, unwritable: list[str]) -> None:
    told = {"source": str(tmp_path / "sealed"), "output": str(tmp_path / "out")}
    command = [*unwritable, sys.executable, str(JOB), json.dumps(told)]
    no_java = {**environment(), "JAVA_HOME": str(tmp_path / "no-java")}
    done = subprocess.run(command, env=no_java, capture_output=True, text=True, check=False)
    (said,) = [json.loads(line) for line in done.stdout.splitlines()]
    assert (said["event"], said["consumer"]) == ("unregistered", "pipeline")
    assert said["reason"].startswith(str(tmp_path / "sealed" / "_consumers"))
    assert "Spark needs Java" in done.stderr, "it went on from there"


def test_an_output_that_holds_something_else_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.txt").touch()
    assert run_pipeline(PipelineSettings(source=tmp_path, output=tmp_path)) == EXIT_USAGE
    assert capsys.readouterr().err == f"framegate pipeline: --output: {tmp_path} holds something else (thesis.txt); name a new folder\n"
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_new_disk_is_empty_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "lost+found").mkdir()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "no-java"))
    assert run_pipeline(PipelineSettings(source=tmp_path, output=tmp_path)) == EXIT_USAGE
    assert "Spark needs Java" in capsys.readouterr().err


def test_a_signal_asks_for_an_end_in_order_once_and_only_while_there_is_one() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    try:
        early = _Stopping()
        with pytest.raises(StoppedError):
            early.on_signal(signal.SIGINT, None)
        assert (early.word, early.exit_code) == ("interrupted", 130)
        stopping = _Stopping()
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


def test_the_reason_of_a_failure_is_its_own_line() -> None:
    trace = "Traceback (most recent call last):\n  File x\nproxy.pipeline.planner.DataLossError: stream a is gone\n\tat org.x"
    assert _reason(f"[STREAM_FAILED] Query terminated\n{trace}") == "proxy.pipeline.planner.DataLossError: stream a is gone"
    assert _reason("[STREAM_FAILED] Query terminated\n at x") == "[STREAM_FAILED] Query terminated"
    py4j = "An error occurred while calling o68.start.\n: java.io.IOException: mkdir of file:/x failed\n\tat org.x"
    assert _reason(py4j) == "java.io.IOException: mkdir of file:/x failed"


# The job


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_job_follows_the_log_says_so_and_stops_on_sigterm(tmp_path: Path, no_umask: None) -> None:
    log, output = tmp_path / "log", tmp_path / "out"
    processor = FakeProcessor(log)
    processor.block([b"one", b"two"])
    events: list[dict[str, Any]] = []
    with running(source=str(log), output=str(output)) as job:
        assert job.stdout is not None
        follower = threading.Thread(target=lambda: events.extend(json.loads(line) for line in job.stdout or ()))
        follower.start()

        def batches() -> list[dict[str, Any]]:
            return [event for event in events if event["event"] == "batch"]

        until(batches, "first batch", job)
        processor.block([b"three"])
        until(lambda: len(batches()) == 2, "second batch", job)
        job.terminate()
        assert job.wait(WAIT_S) == EXIT_OK
        follower.join(10)
    assert events[0]["event"] == "started"
    first, second = batches()
    assert (first["rows"]["frames"], second["rows"]["frames"], second["total"]["frames"], second["lag_bytes"]) == (2, 1, 3, 0)
    assert first["bytes"] > 0
    assert second["duration_ms"] > 0
    assert events[-1] == {"event": "stopped", "total": second["total"], "lag_bytes": 0}
    assert [bytes(row["payload"]) for row in table(output, "frames")] == [b"one", b"two", b"three"]
    assert list(read_consumers(str(log)).offsets) == ["pipeline"]
    assert modes(output) == {("folder", 0o750), ("file", 0o640)}
    assert modes(log / record.CONSUMERS_FOLDER) == {("folder", 0o750), ("file", 0o640)}


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_frames_too_large_for_the_heap_are_cut_and_said_and_come_again_the_same(tmp_path: Path) -> None:
    """Four frames of 100 MB, and the heap that a job has when nobody says otherwise."""
    log, output = tmp_path / "log", tmp_path / "out"
    size = 100_000_000
    processor = FakeProcessor(log)
    body = memoryview(bytes(1 << 20) * (size // (1 << 20) + 1))[:size]
    for connection in range(1, 5):
        for run in pieces_of(bytes(body), [1 << 20] * (size >> 20)):
            processor.part(run, size, connection=connection)
            processor.flush()
        processor.block([b"small"], connection=9)
    processor.close()
    with running(source=str(log), output=str(output), available_now=True, cores=2) as job:
        out, said = job.communicate(timeout=WAIT_S * 2)
        assert job.returncode == EXIT_OK, said
    assert said == ""
    events = [json.loads(line) for line in out.splitlines()]
    cut = [event for event in events if event["event"] == "cut"]
    assert sum(event["frames"] for event in cut) == 4
    assert {event["largest"] for event in cut} == {size}
    kept = cut[0]["kept"]
    names = ("size", "kept_size")
    assert sorted(tuple(row[name] for name in names) for row in narrow(output, names)) == [(5, 5)] * 4 + [(size, kept)] * 4


def narrow(output: Path, columns: tuple[str, ...]) -> list[dict[str, Any]]:
    """Some columns of the table ``frames``, read without Spark."""
    return [row for file in (output / "frames").rglob("*.parquet") for row in pq.ParquetFile(file).read(columns=list(columns)).to_pylist()]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_job_that_is_stopped_says_nothing(tmp_path: Path, number: int, busy: bool) -> None:
    log, marker = tmp_path / "log", tmp_path / "marker"
    processor = FakeProcessor(log)
    processor.block([b"one"])
    paused = {"pause_from": 0, "pause_at": "begun", "marker": str(marker), "pause_s": 1.0} if busy else {}
    with running(source=str(log), output=str(tmp_path / "out"), **paused) as job:
        assert job.stdout is not None
        if busy:
            until(marker.exists, "batch", job)
        else:
            assert any(json.loads(line)["event"] == "batch" for line in job.stdout)
        os.kill(job.pid, number)
        out, said = job.communicate(timeout=WAIT_S)
    assert (job.returncode, said) == (EXIT_OK, "")
    assert json.loads(out.splitlines()[-1])["event"] == "stopped"


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_job_that_fails_says_why_first_and_last_and_goes_on_with_a_gap_when_told_to(tmp_path: Path) -> None:
    log, output = tmp_path / "log", tmp_path / "out"
    processor = FakeProcessor(log, segment_size=1)
    for number in range(3):
        processor.block([b"%d" % number])
    processor.close()
    sorted((log / processor.stream).iterdir())[1].unlink()
    told = {"source": str(log), "output": str(output), "available_now": True}
    with running(**told) as job:
        out, said = job.communicate(timeout=WAIT_S)
    assert job.returncode == EXIT_FAILED
    lines = said.splitlines()
    assert lines[0] == lines[-1]
    assert lines[0].startswith("framegate pipeline: proxy.pipeline.loss.DataLossError: stream ")
    assert len(lines) > 2
    assert json.loads(out.splitlines()[-1])["reason"] == lines[0].removeprefix("framegate pipeline: ")
    with running(**told, fail_on_data_loss=False) as job:
        out, said = job.communicate(timeout=WAIT_S)
    assert (job.returncode, said) == (EXIT_OK, "")
    assert sorted(row["payload"] for row in narrow(output, ("payload",))) == [b"0", b"2"]
    gaps = [row for file in (output / "gaps").rglob("*.parquet") for row in pq.ParquetFile(file).read().to_pylist()]
    assert {(row["reason"], row["certainty"], row["lost_frames"]) for row in gaps} == {("vanished", "unknown", 0)}


def in_session(leader: int) -> list[str]:
    """What runs in the session of a process: its children and theirs. One that has died and was not waited for does not run."""
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = file.read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader and fields[0] not in "ZX":
                found.append((file.parent / "cmdline").read_text().replace("\0", " ")[:80])
    return found


def until_gone(job: "subprocess.Popen[str]") -> str:
    """What a job that was told to end at once said last; nothing of it is left by then."""
    said = job.communicate(timeout=WAIT_S)[1]
    until(lambda: not in_session(job.pid), "end of every process of the job")
    assert list(Path("/tmp").glob(f"framegate-spark-{job.pid}-*")) == []
    return said


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize(("number", "word"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated")])
def test_a_signal_while_spark_starts_ends_the_job_at_once(tmp_path: Path, number: int, word: str) -> None:
    (tmp_path / "log").mkdir()
    with running(source=str(tmp_path / "log"), output=str(tmp_path / "out")) as job:
        until(lambda: list(Path("/tmp").glob(f"framegate-spark-{job.pid}-*")) and len(in_session(job.pid)) > 1, "start of the JVM", job)
        os.killpg(job.pid, number)
        said = until_gone(job)
    assert job.returncode == 128 + number
    assert said.splitlines()[-1] == f"framegate pipeline: {word}"
    assert "Traceback" not in said


@pytest.mark.spark
@pytest.mark.slow
def test_a_second_ctrl_c_does_not_wait_for_the_batch_in_hand(tmp_path: Path) -> None:
    log, marker = tmp_path / "log", tmp_path / "marker"
    processor = FakeProcessor(log)
    processor.block([b"one", b"two"])
    processor.close()
    paused = {"pause_from": 0, "pause_at": "staged frames", "marker": str(marker)}
    with running(source=str(log), output=str(tmp_path / "out"), **paused) as job:
        until(marker.exists, "batch", job)
        os.killpg(job.pid, signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            job.wait(0.5)
        os.killpg(job.pid, signal.SIGINT)
        said = until_gone(job)
    assert job.returncode == 130
    assert said.splitlines()[-1] == "framegate pipeline: interrupted"
    assert "Traceback" not in said
    assert table(tmp_path / "out", "frames") == []


@pytest.mark.spark
@pytest.mark.slow
def test_an_available_now_job_that_is_stopped_early_says_so(tmp_path: Path) -> None:
    log, marker = tmp_path / "log", tmp_path / "marker"
    processor = FakeProcessor(log)
    for number in range(3):
        processor.block([b"%d" % number])
    processor.close()
    paused = {"pause_from": 0, "pause_at": "begun", "marker": str(marker), "pause_s": 1.0}
    told = {"source": str(log), "output": str(tmp_path / "out"), "available_now": True, "max_bytes_per_trigger": 1, **paused}
    with running(**told) as job:
        until(marker.exists, "batch", job)
        os.killpg(job.pid, signal.SIGINT)
        said = until_gone(job)
    assert job.returncode == 130
    assert said.splitlines()[-1] == "framegate pipeline: interrupted before everything was read"
    assert [row["payload"] for row in table(tmp_path / "out", "frames")] == [b"0"], "the batch in hand was finished"


# Where the driver stands when it is killed, and in which batch: the next new one, or the one that the kill before left to be replayed.
KILLS = (
    ("begun", "new"),
    ("staged frames", "replayed"),
    ("taken frames", "replayed"),
    ("committed", "new"),
    ("published", "replayed"),
)


class Traffic(threading.Thread):
    """Two processors that append while the driver comes and goes; remembers what it sent."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.sent: list[tuple[Any, ...]] = []
        self.lost = 0
        self._stopping = threading.Event()
        self._processors = [FakeProcessor(directory, slot=slot, segment_size=20_000) for slot in range(2)]

    def run(self) -> None:
        number = 0
        while not self._stopping.wait(0.05):
            self._round(number)
            number += 1
        for processor in self._processors:
            processor.close()

    def _round(self, number: int) -> None:
        for slot, processor in enumerate(self._processors):
            connection = slot * 10 + number % 3
            first = processor.sent.get((connection, "request"), 0)
            bodies = [demo_body(connection, first + index, os.urandom(200)) for index in range(3)]
            processor.send(bodies, connection=connection, at_ns=START_NS + number * 10**9)
            self.sent += [(connection, "request", first + index, body, None, None) for index, body in enumerate(bodies)]
            answer = processor.sent.get((connection, "response"), 0)
            processor.send(
                [b"%d" % number], connection=connection, direction="response", protocol="kafka", keys=[number % 4 << 16 | 1], latencies=[number]
            )
            self.sent.append((connection, "response", answer, b"%d" % number, number % 4, number))
            if number % 10 == 9:
                processor.point(connection, "request").lose(record.REASON_QUEUE_FULL, 2, 20, first + 3, START_NS)
                self.lost += 2
            processor.flush()

    def stop(self) -> None:
        self._stopping.set()
        self.join()


def highest(checkpoint: Path, kind: str) -> int:
    """The last batch that Spark logged as planned (offsets) or done (commits)."""
    numbers = [int(file.name) for file in (checkpoint / kind).glob("*") if file.name.isdigit()]
    return max(numbers, default=-1)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_tables_equal_the_model_after_kills_between_offsets_and_commit(spark: "SparkSession", tmp_path: Path) -> None:
    log, output, marker = tmp_path / "log", tmp_path / "out", tmp_path / "marker"
    checkpoint = output / "_checkpoint"
    log.mkdir()
    traffic = Traffic(log)
    traffic.start()
    try:
        with contextlib.ExitStack() as jobs:
            job = jobs.enter_context(running())
            for number, (place, kind) in enumerate(KILLS, 1):
                begin = max(1, highest(checkpoint, "offsets") + (kind == "new"))
                pause = {"pause_from": begin, "pause_at": place, "marker": str(marker)}
                tell(job, source=str(log), output=str(output), max_bytes_per_trigger=100_000, **pause)
                following = jobs.enter_context(running()) if number < len(KILLS) else None
                batch = int(until(lambda: marker.exists() and marker.read_text(), place, job))
                assert highest(checkpoint, "offsets") == batch > highest(checkpoint, "commits") == batch - 1 >= 0
                os.killpg(job.pid, signal.SIGKILL)
                assert job.wait(WAIT_S) == -signal.SIGKILL
                marker.unlink()
                job = following or job
    finally:
        traffic.stop()
    settings = PipelineSettings(source=log, output=output, available_now=True)
    assert start_query(spark, settings, TableWriter(output)).awaitTermination(WAIT_S)
    check_against_model(output, traffic, log)


def check_against_model(output: Path, traffic: Traffic, log: Path) -> None:
    frames = table(output, "frames")
    names = ("connection_id", "direction", "sequence", "payload", "api_key", "latency_us")
    assert collections.Counter(tuple(row[name] for name in names) for row in frames) == collections.Counter(traffic.sent)
    keys = {(row["stream"], row["offset"], row["chunk_index"], row["frame_index"]) for row in frames}
    assert len(keys) == len(frames) == sum(stored(log).values())
    answers = [sent for sent in traffic.sent if sent[1] == "response"]
    assert sorted((row["connection_id"], row["sequence"], row["latency_us"]) for row in table(output, "requests")) == sorted(
        (sent[0], sent[2], sent[5]) for sent in answers
    )
    parts = table(output, "traffic_by_minute")
    assert sum(row["frames"] for row in parts) == len(traffic.sent)
    assert sum(row["bytes"] for row in parts) == sum(len(sent[3]) + 4 for sent in traffic.sent)
    assert sum(row["lost_frames"] for row in parts) == sum(row["lost_frames"] for row in table(output, "gaps")) == traffic.lost
    said = json.loads((output / "_progress.json").read_text())
    rows = ("frames", "requests", "gaps")
    assert {name: said["total"][name] for name in rows} == {name: len(table(output, name)) for name in rows}
    assert not (output / "_staging").exists()
