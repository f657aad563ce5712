"""Ctrl-C and SIGTERM as exceptions; each end of a demo is one line and an exit code; the last lines."""

import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from rich.console import Console

from framegate.control.demo.ending import TerminatedError, conclude, exit_code, program
from framegate.control.demo.processes import ChildError, signals_ignored
from framegate.control.demo.stage import Workspace, WorkspaceError


def failing(error: BaseException) -> Callable[[], int]:
    def perform() -> int:
        raise error

    return perform


def test_each_error_that_ends_the_demo_is_one_line_and_an_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    for error, code, said in (
        (ValueError("of the broker:\nno jars"), 1, "of the broker: no jars"),
        (ChildError("proxy ended: no"), 1, "proxy ended: no"),
        (grpc.RpcError("no answer"), 1, "no answer"),
        (OSError(28, "No space left on device"), 1, "[Errno 28] No space left on device"),
        (WorkspaceError("/x is not empty"), 2, "/x is not empty"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (TerminatedError(), 143, "terminated"),
    ):
        assert exit_code(failing(error), ValueError) == code
        assert capsys.readouterr().err == f"framegate demo: {said}\n"
    assert exit_code(lambda: 7) == 7
    with pytest.raises(TypeError):
        exit_code(failing(TypeError()))


def test_sigterm_ends_it_and_the_handler_is_put_back() -> None:
    before = signal.getsignal(signal.SIGTERM)

    def perform() -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        return 0

    assert exit_code(perform) == 143
    assert signal.getsignal(signal.SIGTERM) is before


def test_signals_are_ignored_while_it_cleans_up() -> None:
    before = signal.getsignal(signal.SIGINT)
    with signals_ignored():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGINT) is before


def test_the_last_lines_have_the_checks_the_files_and_the_result(tmp_path: Path) -> None:
    place = Workspace(tmp_path / "demo")
    place.release()
    for good, last in ((True, "RESULT: everything equal, everything seen"), (False, "RESULT: NOT everything was equal or seen")):
        out = io.StringIO()
        assert conclude(Console(file=out, width=40), place, [("one", True), ("two", good)], ["a note"]) == good
        lines = out.getvalue().splitlines()
        assert lines[:3] == ["ok    one", f"{'ok   ' if good else 'WRONG'} two", "a note"]
        assert lines[-1].startswith(last)
        assert any(line.startswith("pandas:") and f"{place.tables}/frames" in line for line in lines)
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
