"""The demo's beginning: what is missing is one line and exit code 2, before anything starts. All of it runs in tests/integration/test_demo.py."""

from pathlib import Path

import pytest

from framegate.control.demo import run


def test_what_is_missing_is_named_and_nothing_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert run.run(directory=tmp_path / "demo") == 2
    captured = capsys.readouterr()
    assert (captured.out, len(captured.err.splitlines()), "Java 17" in captured.err) == ("", 1, True)
    assert not (tmp_path / "demo").exists()
    monkeypatch.setattr(run, "find_java", lambda: "/usr/bin/java")
    assert run.missing("json", "no_such_module") == "needs no_such_module; install framegate[spark,kafka]"
    assert run.missing("json") is None


def test_a_folder_in_use_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(run, "missing", lambda *_: None)
    (tmp_path / "mine").touch()
    assert run.run(directory=tmp_path) == 2
    assert "is not empty and is not from an earlier demo" in capsys.readouterr().err
