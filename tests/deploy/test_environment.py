"""What sets up the tasks of the Makefile: it sees what a machine has, says in one line what is missing, and builds only what changed."""

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("environment", ROOT / "deploy" / "environment.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return module


def program(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


@pytest.mark.parametrize(
    ("version", "enough"),
    [
        ('openjdk version "17.0.15" 2025', True),
        ('openjdk version "21" 2023', True),
        ('java version "1.8.0_402"', False),
        ('openjdk version "11.0.2"', False),
    ],
)
def test_java_must_be_17_or_newer(environment: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str, enough: bool) -> None:
    program(tmp_path / "bin", "java", f"echo '{version}' >&2")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin")
    assert environment.has_java() is enough


def test_without_java_a_task_stops_before_anything_starts(
    environment: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit) as stopped:
        environment.main(["run", "--with", "java,compiler", "--", "true"])
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "Java 17" in line
    assert "openjdk-17-jre-headless" in line


def test_without_a_compiler_it_warns_once_and_goes_on(
    environment: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    need = environment.NEEDS["compiler"]
    monkeypatch.setattr(need, "present", lambda: False)
    environment.provide(need)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("framegate: warning: compiler is missing")


def test_root_installs_what_is_missing(environment: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program(tmp_path / "bin", "apt-get", f'[ "$1" = install ] && echo "$@" > {tmp_path}/asked; exit 0')
    monkeypatch.setenv("PATH", f"{tmp_path}/bin")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    need = environment.Need("thing", (tmp_path / "asked").exists, ["thing-dev"], None)
    environment.provide(need)
    assert (tmp_path / "asked").read_text().split() == ["install", "-q", "-y", "--no-install-recommends", "thing-dev"]


def test_a_digest_follows_names_contents_and_words(environment: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("1")
    two.write_text("1")
    digests = {environment.digest([one]), environment.digest([two]), environment.digest([one, two]), environment.digest([one], "word")}
    one.write_text("2")
    assert len(digests | {environment.digest([one])}) == 5
    assert environment.digest([one, two]) == environment.digest([two, one])


def test_the_wheel_is_made_from_everything_that_is_in_it(environment: ModuleType) -> None:
    names = {path.relative_to(ROOT).as_posix() for path in environment.wheel_sources()}
    assert {"pyproject.toml", "deploy/hatch_build.py", "proxy/py.typed", "control/py.typed", "proxy/config/model.py"} <= names
    assert not any(name.endswith((".pyc", ".so")) for name in names)


def test_an_unknown_task_explains_itself(environment: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        environment.main(["nothing"])
    assert "environment.py KIND" in capsys.readouterr().err


def test_the_command_runs_in_its_environment(environment: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: dict[str, object] = {}
    monkeypatch.setattr(os, "execvpe", lambda file, words, variables: ran.update(file=file, words=words, variables=variables))
    monkeypatch.setattr(os, "chdir", lambda _: None)
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    environment.become(["python", "-V"], Path(sys.prefix), "compiled")
    variables = ran["variables"]
    assert isinstance(variables, dict)
    assert variables["PYTHONSAFEPATH"] == "1"
    assert variables["FRAMEGATE_EXPECT"] == "compiled"
    assert variables["PATH"].startswith(f"{sys.prefix}/bin:")
    assert "PYTHONPATH" not in variables
