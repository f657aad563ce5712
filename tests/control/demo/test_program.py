"""What the demo tells people to type: it works in their shell."""

import subprocess
import sys
from pathlib import Path

import pytest

from control.demo.program import program, python

ELSEWHERE = Path(__file__).parent


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment whose ``framegate`` is the program that runs."""
    script = tmp_path / "project" / ".venv" / "bin" / "framegate"
    script.parent.mkdir(parents=True)
    script.write_text("#!/bin/sh\necho it works\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "argv", [str(script), "demo"])
    monkeypatch.setenv("PATH", f"{script.parent}:/usr/bin:/bin")
    monkeypatch.setenv("FRAMEGATE_USER_PATH", "/usr/bin:/bin")
    monkeypatch.chdir(tmp_path / "project")
    return script


def test_below_the_working_directory_the_path_is_short(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert program() == ".venv/bin/framegate"
    assert subprocess.run(program(), shell=True, capture_output=True, text=True, check=True).stdout == "it works\n"
    monkeypatch.chdir(installed.parent)
    assert program() == "./framegate"


def test_elsewhere_it_is_whole_and_quoted(installed: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    spaced = tmp_path / "my project"
    (tmp_path / "project").rename(spaced)
    monkeypatch.setattr(sys, "argv", [str(spaced / ".venv/bin/framegate")])
    monkeypatch.chdir(ELSEWHERE)
    assert program() == f"'{spaced}/.venv/bin/framegate'"
    assert subprocess.run(program(), shell=True, capture_output=True, text=True, check=True).stdout == "it works\n"


def test_the_name_is_enough_where_the_users_path_has_it(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRAMEGATE_USER_PATH", f"{installed.parent}:/usr/bin")
    assert program() == "framegate"
    monkeypatch.delenv("FRAMEGATE_USER_PATH")
    assert program() == "framegate", "without make, PATH is the user's"


def test_another_framegate_on_the_users_path_is_not_this_one(installed: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    other = tmp_path / "bin" / "framegate"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    monkeypatch.setenv("FRAMEGATE_USER_PATH", str(other.parent))
    assert program() == ".venv/bin/framegate"


def test_without_the_script_it_is_the_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["-c"])
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.chdir(ELSEWHERE)
    assert program() == f"{tmp_path}/python -m control.cli"
    assert python() == f"{tmp_path}/python"
