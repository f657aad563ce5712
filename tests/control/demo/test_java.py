"""Which Java is good enough."""

from pathlib import Path

import pytest

from control.demo.java import find_java


def pretend(home: Path, version: str) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    java.chmod(0o755)
    return java


@pytest.mark.parametrize(("version", "good"), [("17.0.15", True), ("21", True), ("11.0.2", False), ("1.8.0_402", False)])
def test_seventeen_or_newer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, good: bool) -> None:
    java = pretend(tmp_path, version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert find_java() == (str(java) if good else None)


def test_none_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_java() is None
