"""The demo's folder: its own, emptied, locked."""

import errno
import os
import shutil
from pathlib import Path

import pytest

from framegate.control.demo.workspace import Workspace, WorkspaceError


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
    with pytest.raises(WorkspaceError, match="holds something else"):
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
    for socket in sockets:
        assert not socket.is_relative_to(tmp_path)
        assert len(str(socket)) < 103
        socket.touch()
    deep.release()
    assert [socket.exists() for socket in sockets] == [False, False]
