"""The demo's folder: its own, emptied, locked."""

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
    with pytest.raises(WorkspaceError, match="cannot be made"):
        Workspace(tmp_path / "file" / "demo")


def test_the_socket_goes_elsewhere_when_its_path_would_be_too_long(tmp_path: Path) -> None:
    deep = Workspace(tmp_path / ("x" * 100))
    assert not deep.admin.startswith(f"unix:{tmp_path}")
    assert len(deep.admin) < 108
    deep.release()
