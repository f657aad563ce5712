"""The folder of a demo, the configurations that it writes, and its count of the log."""

import errno
import os
import shutil
import socket
import sys
from pathlib import Path

import pytest

from framegate.control.demo.processes import ChildError
from framegate.control.demo.stage import LISTENER, Stage, Workspace, WorkspaceError
from tests.fakes.configuration import validate
from tests.fakes.tap_log import FakeProcessor
from tests.fakes.upstream import frame, read_frame


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(Workspace(tmp_path / "demo"))


def test_its_configuration_has_no_fault(stage: Stage) -> None:
    with stage:
        document = stage.configuration("127.0.0.1:9", stage._tap(0, 4 << 20), {"protocol": "kafka", "max_receive_size": "16MiB"})
        config = validate(document)
    assert [(listener.name, listener.protocol, listener.max_receive_size) for listener in config.listeners] == [(LISTENER, "kafka", 16 << 20)]
    assert config.processors == 2
    assert config.tap is not None
    assert (config.tap.rules[0].on_full, config.tap.rules[0].max_frame_bytes) == ("mute", 4 << 20)


@pytest.mark.slow
def test_its_upstream_answers_and_says_at_its_end_what_it_counted(stage: Stage) -> None:
    with stage:
        assert validate(stage.upstream_configuration()).listeners[0].upstream is None
        with socket.create_connection(("127.0.0.1", stage.start_upstream()), timeout=10) as client:
            client.sendall(frame(b"") + frame(b"x" * 100_000))
            assert (read_frame(client), read_frame(client)) == (b"", b"x" * 100_000)
        assert stage.stop_upstream() == {"frames": 2, "bytes": 100_008}


def test_the_log_is_counted_by_walking_over_sizes(stage: Stage) -> None:
    with stage:
        for slot in (0, 1):
            processor = FakeProcessor(stage.workspace.tap, slot=slot)
            processor.block([b"", b"abc"], connection=1)
            processor.block([b"x" * 1000], connection=1, direction="response")
            processor.close()
        count = stage.count_log()
    assert count.frames == {"request": 4, "response": 2}
    assert count.bytes == {"request": 2 * 11, "response": 2 * 1004}
    assert count.lost == 0


def test_rows_are_waited_for_until_they_are_there_or_the_job_has_ended(stage: Stage) -> None:
    with stage:
        batches = "".join(f'{{"event": "batch", "total": {{"frames": {count}}}}}\n' for count in (5, 12))
        stage.pipeline = stage.start("pipeline", ["sh", "-c", f"read go; printf '%s' '{batches}'; exec sleep 60"])
        assert (stage.table_rows(), stage.wait_for_rows(1, 0.0)) == (0, False), "there is no batch"
        stage.pipeline.send({})
        assert stage.wait_for_rows(12, 10.0)
        assert stage.table_rows() == 12
        stage.pipeline.terminate()
        stage.pipeline.wait(10)
        with pytest.raises(ChildError, match="the pipeline ended"):
            stage.wait_for_rows(13, 60.0)


def test_leaving_ends_what_was_started_at_once_after_an_exception(stage: Stage) -> None:
    with stage:
        child = stage.start("sleeper", ["sleep", "60"])
        assert child.running
    assert not child.running
    stage = Stage(Workspace(stage.workspace.root))
    stubborn = "import signal, time; signal.signal(15, lambda *_: signal.signal(15, signal.SIG_DFL)); time.sleep(60); time.sleep(60)"
    child = stage.start("stubborn", [sys.executable, "-c", stubborn])
    stage.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert not child.running


def test_a_run_starts_from_an_empty_folder_and_keeps_that_of_another_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    first = Workspace()
    for folder in (first.tap, first.tables):
        folder.mkdir(exist_ok=True)
        (folder / "old").touch()
    first.release()
    other = Workspace(name="framegate-demo-kafka")
    other.release()
    assert (first.root.name, other.root.name) == (f"framegate-demo-{os.getuid()}", f"framegate-demo-kafka-{os.getuid()}")
    assert (first.tables / "old").exists()
    Workspace().release()
    assert (list(first.tap.iterdir()), first.tables.exists()) == ([], False)


def test_a_folder_that_is_not_free_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(WorkspaceError, match="is not empty and is not from an earlier demo"):
        Workspace(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    with pytest.raises(WorkspaceError, match="cannot be used: Not a directory"):
        Workspace(tmp_path / "thesis.txt" / "demo")
    first = Workspace(tmp_path / "demo")
    with pytest.raises(WorkspaceError, match="another demo"):
        Workspace(tmp_path / "demo")
    first.release()

    def refuse(path: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(shutil, "rmtree", refuse)
    with pytest.raises(WorkspaceError, match="cannot be used: Read-only file system"):
        Workspace(tmp_path / "demo")


def test_a_socket_with_too_long_a_path_is_elsewhere_and_goes_with_the_demo(tmp_path: Path) -> None:
    deep = Workspace(tmp_path / ("x" * 100))
    sockets = [Path(address.removeprefix("unix:")) for address in (deep.admin, deep.upstream_admin)]
    assert len(set(sockets)) == 2
    for path in sockets:
        assert not path.is_relative_to(tmp_path)
        assert len(str(path)) < 103
        path.touch()
    deep.release()
    assert [path.exists() for path in sockets] == [False, False]
