"""Container engines: which is taken, what each is told, and a clear word where there is none."""

import os
import resource
from pathlib import Path

import pytest

from tests.fakes import deploying
from tests.fakes.cases import each_of

image_engine = deploying.module("image_engine")
program = deploying.program
ORDER = image_engine.Order("framegate", "localhost/framegate:1", {"BASE": "debian"}, {"pip.conf": Path("/secret")}, 77)


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The only folder in which programs are found; we are nobody, and have a cache of our own: a build that runs meanwhile keeps its files there."""
    monkeypatch.setattr(image_engine.environment, "CACHE", tmp_path / "cache")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    (tmp_path / "bin").mkdir()
    return tmp_path / "bin"


def test_buildah_is_taken_before_podman_and_podman_before_docker(tools: Path) -> None:
    assert image_engine.builder() == ""
    for name in ("docker", "podman", "buildah"):
        program(tools, name, "exit 0")
        assert image_engine.builder() == name


def test_the_engine_that_runs_sees_the_images_of_the_engine_that_builds(tools: Path) -> None:
    assert image_engine.runner("docker") == "docker"
    assert image_engine.runner("buildah") == ""
    program(tools, "podman", "exit 0")
    assert image_engine.runner("buildah") == "podman"
    assert image_engine.runner("podman") == "podman"


def test_without_an_engine_one_line_says_what_to_install(tools: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        image_engine.choose(trial=True)
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "apt-get install buildah podman runc" in line


@each_of("engine", ["buildah", "podman", "docker"])
def test_each_engine_gets_the_same_settings(engine: str) -> None:
    words = image_engine.Engine(engine, "").build_command(ORDER, Path("/x/Containerfile"), Path("/x"))
    text = " ".join(words)
    assert words[0] == engine
    assert words[-1] == "/x"
    for part in (
        "--file /x/Containerfile",
        "--target framegate",
        "--tag localhost/framegate:1",
        "--build-arg BASE=debian",
        "--build-arg SOURCE_DATE_EPOCH=77",
        "--secret id=pip.conf,src=/secret",
    ):
        assert part in text
    assert "--no-cache" not in words
    assert ("--timestamp 77" in text) is (engine != "docker")


@each_of("engine", ["podman", "docker"])
def test_a_container_is_confined(engine: str) -> None:
    words = image_engine.Engine("buildah", engine).run_command("image", "--rm", words=("--version",))
    text = " ".join(words)
    for part in ("--read-only", "--cap-drop all", "--security-opt no-new-privileges"):
        assert part in text
    assert words[-3:] == ["--rm", "image", "--version"]


@pytest.mark.parametrize(("exists", "chosen"), [(False, True), (True, False)])
def test_control_groups_v1_need_runc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, exists: bool, chosen: bool) -> None:
    if exists:
        (tmp_path / "controllers").touch()
    monkeypatch.setattr(image_engine, "CGROUP_V2", tmp_path / "controllers")
    assert ("runc" in image_engine.Engine("buildah", "podman").command("ps")) is chosen
    assert image_engine.Engine("docker", "docker").command("ps") == ["docker", "ps"]


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ((10, 20), "10:20"),
        ((16383, 16384), "16383:16384"),
        ((5, 16385), "5:16384"),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), "16384:16384"),
    ],
)
def test_no_limit_is_raised_and_none_is_more_than_a_trial_needs(monkeypatch: pytest.MonkeyPatch, limits: tuple[int, int], told: str) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _kind: limits)
    words = image_engine.Engine("buildah", "podman").run_command("image")
    assert [words[index + 1] for index, word in enumerate(words) if word == "--ulimit"] == [f"nofile={told}", f"nproc={told}"]


def test_a_tmpfs_over_a_folder_belongs_to_the_user() -> None:
    assert "uid=7" in " ".join(image_engine.Engine("docker", "docker").tmpfs("/run/x", 7))
    assert image_engine.Engine("buildah", "podman").tmpfs("/run/x", 7) == ["--read-only-tmpfs=false", "--tmpfs", "/run/x:mode=0700,U"]
