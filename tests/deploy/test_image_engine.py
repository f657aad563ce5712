"""podman: what it is told, and a clear word where there is none."""

import os
import resource
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import deploying

image_engine = deploying.module("image_engine")
ORDER = image_engine.Order("framegate", "localhost/framegate:1", {"BASE": "debian"}, {"pip.conf": Path("/secret")}, 77)


def test_without_podman_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(SystemExit) as stopped:
        image_engine.Engine()
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "apt-get install podman runc" in line


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(image_engine.environment, "provide", lambda _wanted: None)
    return image_engine.Engine()


def test_a_build_gets_all_of_its_order(engine: Any) -> None:
    words = engine.build_command(ORDER, Path("/x/Containerfile"), Path("/x"))
    text = " ".join(words)
    assert words[-1] == "/x"
    for part in (
        "--timestamp 77",
        "--file /x/Containerfile",
        "--target framegate",
        "--tag localhost/framegate:1",
        "--build-arg BASE=debian",
        "--build-arg SOURCE_DATE_EPOCH=77",
        "--secret id=pip.conf,src=/secret",
    ):
        assert part in text
    assert "--no-cache" not in words


def test_a_container_is_confined(engine: Any) -> None:
    words = engine.run_command("image", "--rm", words=("--version",))
    text = " ".join(words)
    for part in ("--read-only", "--cap-drop all", "--security-opt no-new-privileges"):
        assert part in text
    assert words[-3:] == ["--rm", "image", "--version"]


@pytest.mark.parametrize(("exists", "chosen"), [(False, True), (True, False)])
def test_control_groups_v1_need_runc(engine: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, exists: bool, chosen: bool) -> None:
    if exists:
        (tmp_path / "controllers").touch()
    monkeypatch.setattr(image_engine, "CGROUP_V2", tmp_path / "controllers")
    assert ("runc" in engine.command("ps")) is chosen


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ((10, 20), "10:20"),
        ((16383, 16384), "16383:16384"),
        ((5, 16385), "5:16384"),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), "16384:16384"),
    ],
)
def test_no_limit_is_raised_and_none_is_more_than_a_trial_needs(
    engine: Any, monkeypatch: pytest.MonkeyPatch, limits: tuple[int, int], told: str
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _kind: limits)
    words = engine.run_command("image")
    assert [words[index + 1] for index, word in enumerate(words) if word == "--ulimit"] == [f"nofile={told}", f"nproc={told}"]
