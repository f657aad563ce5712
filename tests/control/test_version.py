"""framegate.control.version: the version of the wheel that is installed."""

import importlib.metadata

import pytest

from framegate.control.version import installed_version


def test_the_version_is_that_of_the_metadata() -> None:
    assert installed_version() == importlib.metadata.version("framegate")


def test_folders_that_are_missing_or_archives_are_passed_over(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive, folder = tmp_path / "packages.zip", tmp_path / "packages"
    archive.touch()
    folder.mkdir()
    monkeypatch.setattr("sys.path", [str(tmp_path / "none"), str(archive), str(folder)])
    assert installed_version() == ""

    (folder / "framegate-1.2.3.dev4.dist-info").mkdir()
    assert installed_version() == "1.2.3.dev4"
