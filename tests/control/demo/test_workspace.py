"""The demo's folder: its own, emptied, locked."""

import errno
import os
import shutil
from pathlib import Path

import pytest

from control.demo.workspace import Workspace, WorkspaceError


def test_a_second_run_starts_from_an_empty_folder(tmp_path: Path) -> None:
    first = Workspace(tmp_path / "demo")
    (first.tap / "old").touch()
    first.tables.mkdir()
    (first.tables / "old").touch()
    first.release()
    second = Workspace(tmp_path / "demo")
    assert list(second.tap.iterdir()) == []
    assert not second.tables.exists()
    second.release()


def test_a_demo_keeps_what_a_demo_of_another_name_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    first = Workspace()
    first.tables.mkdir()
    first.release()
    other = Workspace(name="framegate-demo-kafka")
    other.release()
    assert (first.root.name, other.root.name) == (f"framegate-demo-{os.getuid()}", f"framegate-demo-kafka-{os.getuid()}")
    assert first.tables.is_dir()


def test_somebody_elses_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(WorkspaceError, match="holds something else"):
        Workspace(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_two_demos_cannot_share_it(tmp_path: Path) -> None:
    first = Workspace(tmp_path)
    with pytest.raises(WorkspaceError, match="another demo"):
        Workspace(tmp_path)
    first.release()
    Workspace(tmp_path).release()


def test_a_folder_that_cannot_be_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(WorkspaceError, match="cannot be used: Not a directory"):
        Workspace(tmp_path / "file" / "demo")


def test_what_cannot_be_emptied_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Workspace(tmp_path).release()

    def refuse(path: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(shutil, "rmtree", refuse)
    with pytest.raises(WorkspaceError, match="cannot be used: Read-only file system"):
        Workspace(tmp_path)


def test_a_socket_elsewhere_goes_with_the_demo(tmp_path: Path) -> None:
    deep = Workspace(tmp_path / ("x" * 100))
    sockets = [Path(address.removeprefix("unix:")) for address in (deep.admin, deep.upstream_admin)]
    for socket in sockets:
        socket.touch()
    deep.release()
    assert [socket.exists() for socket in sockets] == [False, False]


def test_the_socket_goes_elsewhere_when_its_path_would_be_too_long(tmp_path: Path) -> None:
    deep = Workspace(tmp_path / ("x" * 100))
    for address in (deep.admin, deep.upstream_admin):
        assert not address.startswith(f"unix:{tmp_path}")
        assert len(address) < 108
    assert deep.admin != deep.upstream_admin
    deep.release()
