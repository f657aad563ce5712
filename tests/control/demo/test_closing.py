"""The last lines of a demo: the result, and commands that work in the user's shell."""

import io
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from framegate.control.demo.closing import conclude, program
from framegate.control.demo.workspace import Workspace


def test_it_says_what_was_wrong_where_files_are_and_ends_with_the_result(tmp_path: Path) -> None:
    place = Workspace(tmp_path / "demo")
    place.release()
    for good, last in ((True, "RESULT: everything equal, everything seen"), (False, "RESULT: NOT everything was equal or seen")):
        out = io.StringIO()
        assert conclude(Console(file=out, width=40), place, [("one", True), ("two", good)], ["a note"]) == good
        lines = out.getvalue().splitlines()
        assert lines[:3] == ["ok    one", f"{'ok   ' if good else 'WRONG'} two", "a note"]
        assert lines[-1].startswith(last)
        assert any(line.startswith("PySpark:") and f"{place.tables}/frames" in line for line in lines)
        assert f"try next:       {program()} check --config {place.configuration}" in lines


def script(folder: Path) -> Path:
    made = folder / ".venv" / "bin" / "framegate"
    made.parent.mkdir(parents=True)
    made.write_text("#!/bin/sh\necho it works\n")
    made.chmod(0o755)
    return made


def test_what_to_type_is_the_name_where_the_users_path_has_it_else_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, other = script(tmp_path / "my project"), script(tmp_path / "other")
    monkeypatch.setattr(sys, "argv", [str(mine), "demo"])
    monkeypatch.setenv("PATH", f"{mine.parent}:/usr/bin:/bin")
    for users_path, folder, expected in (
        (f"{mine.parent}:/usr/bin", tmp_path, "framegate"),
        ("/usr/bin:/bin", tmp_path / "my project", ".venv/bin/framegate"),
        ("/usr/bin:/bin", mine.parent, "./framegate"),
        ("/usr/bin:/bin", tmp_path / "other", f"'{mine}'"),
        (f"{other.parent}:/usr/bin", tmp_path / "my project", ".venv/bin/framegate"),
    ):
        monkeypatch.setenv("FRAMEGATE_USER_PATH", users_path)
        monkeypatch.chdir(folder)
        assert program() == expected
        assert subprocess.run(program(), shell=True, capture_output=True, text=True, check=True).stdout == "it works\n"
    monkeypatch.delenv("FRAMEGATE_USER_PATH")
    assert program() == "framegate", "without make, PATH is the user's"


def test_without_the_script_it_is_the_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["-c"])
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.chdir("/")
    assert program() == f"{str(tmp_path)[1:]}/python -m framegate.control.cli"
