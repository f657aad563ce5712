"""The job, as a process of its own: what it writes and says, and how it ends."""

import contextlib
import json
import os
import re
import signal
import stat
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from framegate.proxy.pipeline.run import EXIT_FAILED, EXIT_OK
from framegate.proxy.tap import record
from framegate.proxy.tap.consumer import read_consumers
from tests.fakes.jobs import WAIT_S, running, table, until
from tests.fakes.runs import pieces_of
from tests.fakes.small_disk import fill, tiny_disk
from tests.fakes.tap_log import FakeProcessor

pytestmark = [pytest.mark.extended, pytest.mark.spark, pytest.mark.slow]


def log_of(folder: Path, *blocks: list[bytes], segment_size: int = 1 << 20) -> Path:
    """A complete log with these blocks."""
    processor = FakeProcessor(folder / "log", segment_size=segment_size)
    for bodies in blocks:
        processor.block(bodies)
    processor.close()
    return folder / "log"


def modes(folder: Path) -> set[tuple[str, int]]:
    """The modes of a folder and of everything in it."""
    return {("folder" if path.is_dir() else "file", stat.S_IMODE(path.stat().st_mode)) for path in (folder, *folder.rglob("*"))}


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
    assert sorted(row["payload"] for row in table(output, "frames")) == [b"one", b"three", b"two"]
    assert list(read_consumers(str(log)).offsets) == ["pipeline"]
    assert modes(output) == {("folder", 0o750), ("file", 0o640)}
    assert modes(log / record.CONSUMERS_FOLDER) == {("folder", 0o750), ("file", 0o640)}


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
    assert sorted(tuple(row[name] for name in names) for row in table(output, "frames", *names)) == [(5, 5)] * 4 + [(size, kept)] * 4


def test_a_job_that_finds_no_frame_says_so(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    with running(source=str(tmp_path / "log"), output=str(tmp_path / "out"), available_now=True) as job:
        out, said = job.communicate(timeout=WAIT_S)
    assert (job.returncode, said) == (EXIT_OK, f"framegate pipeline: nothing was read, and the tables are empty: is {tmp_path}/log a tap's log?\n")
    assert json.loads(out.splitlines()[-1])["event"] == "stopped"


@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_job_that_is_stopped_says_nothing(tmp_path: Path, number: int, busy: bool) -> None:
    marker = tmp_path / "marker"
    paused = {"pause_from": 0, "pause_at": "begun", "marker": str(marker), "pause_s": 1.0} if busy else {}
    with running(source=str(log_of(tmp_path, [b"one"])), output=str(tmp_path / "out"), **paused) as job:
        assert job.stdout is not None
        if busy:
            until(marker.exists, "batch", job)
        else:
            assert any(json.loads(line)["event"] == "batch" for line in job.stdout)
        os.kill(job.pid, number)
        out, said = job.communicate(timeout=WAIT_S)
    assert (job.returncode, said) == (EXIT_OK, "")
    assert json.loads(out.splitlines()[-1])["event"] == "stopped"


@pytest.mark.timeout(600)
def test_a_job_that_fails_says_why_first_and_last_and_goes_on_with_a_gap_when_told_to(tmp_path: Path) -> None:
    log, output = log_of(tmp_path, [b"0"], [b"1"], [b"2"], segment_size=1), tmp_path / "out"
    sorted(log.glob("edge*/*"))[1].unlink()
    told = {"source": str(log), "output": str(output), "available_now": True}
    with running(**told) as job:
        out, said = job.communicate(timeout=WAIT_S)
    assert job.returncode == EXIT_FAILED
    lines = said.splitlines()
    assert lines[0] == lines[-1]
    assert lines[0].startswith("framegate pipeline: framegate.proxy.pipeline.loss.DataLossError: stream ")
    assert len(lines) > 2
    assert json.loads(out.splitlines()[-1])["reason"] == lines[0].removeprefix("framegate pipeline: ")
    with running(**told, fail_on_data_loss=False) as job:
        out, said = job.communicate(timeout=WAIT_S)
    assert (job.returncode, said) == (EXIT_OK, "")
    assert sorted(row["payload"] for row in table(output, "frames", "payload")) == [b"0", b"2"]
    assert {(row["reason"], row["certainty"], row["lost_frames"]) for row in table(output, "gaps")} == {("vanished", "unknown", 0)}


@pytest.mark.timeout(600)
def test_a_full_output_disk_is_named_and_the_next_run_goes_on(tmp_path: Path) -> None:
    log, output = tmp_path / "log", tmp_path / "out"
    processor = FakeProcessor(log)
    bodies = [os.urandom(100_000) for _ in range(60)]
    for body in bodies[:5]:
        processor.block([body])
    told = {"source": str(log), "output": str(output), "available_now": True}
    with tiny_disk(output, 64) as mounted:
        if not mounted:
            pytest.skip("no disk can be mounted here")
        with running(**told) as job:
            assert job.communicate(timeout=WAIT_S)[1] == ""
        for body in bodies[5:]:
            processor.block([body])
        processor.close()
        ballast = output / "ballast"
        for left in (1 << 20, 0):  # too little for the batch; too little for what Spark notes of it
            fill(ballast)
            os.truncate(ballast, ballast.stat().st_size - left)
            with running(**told) as job:
                _, said = job.communicate(timeout=WAIT_S)
            assert job.returncode == EXIT_FAILED
            assert re.match(rf"framegate pipeline: {output}: no space left on device \([0-9]+ KiB free\)", said.splitlines()[0]), said
            assert said.splitlines()[0].endswith("start the job again: it goes on where it was")
        ballast.unlink()
        with running(**told) as job:
            _, said = job.communicate(timeout=WAIT_S)
        assert (job.returncode, said) == (EXIT_OK, "")
        assert sorted(row["payload"] for row in table(output, "frames", "payload")) == sorted(bodies)


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


def test_a_second_ctrl_c_does_not_wait_for_the_batch_in_hand(tmp_path: Path) -> None:
    log, marker = log_of(tmp_path, [b"one", b"two"]), tmp_path / "marker"
    paused = {"pause_from": 0, "pause_at": "written frames", "marker": str(marker)}
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
