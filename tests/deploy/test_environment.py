"""The setup of the Makefile's tasks: it finds what a machine has, says in one line what is missing, and builds only what changed."""

import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from tests.fakes import deploying
from tests.fakes.framegate import alive

ROOT = Path(__file__).resolve().parents[2]


# What stands in for pip in an environment: it says what it was told, makes what pip would make, or waits to be ended.
PIP = """#!/bin/sh
echo "$@" >> {root}/told
case "$*" in
  *" wheel "*)
    touch "$TMPDIR/half-built"
    if [ -e {root}/slow ]; then sleep 300 & echo $! > {root}/inner; echo $$ > {root}/waiting; wait; fi
    while [ "$1" != -w ]; do shift; done
    mkdir -p "$2" && touch "$2/framegate-1-cp-cp-linux.whl" ;;
esac
"""
SCRIPT = """
import os, runpy, sys, types
sys.argv = ["environment.py", *sys.argv[1:]]
root = {root!r}
module = types.ModuleType("environment")
module.__file__ = os.path.join(root, "deploy", "environment.py")
code = compile(open(module.__file__).read(), module.__file__, "exec")
sys.modules["environment"] = module
exec(code, module.__dict__)
def make(environment, tool=""):
    os.makedirs(environment / "bin", exist_ok=True)
    for name in ("python", "pip"):
        (environment / "bin" / name).write_text(open(os.path.join(root, "pip")).read())
        (environment / "bin" / name).chmod(0o755)
module.make_environment = make
module.uv = lambda: os.environ.get("FAKE_UV", "")
sys.exit(module.guarded(sys.argv[1:]))
"""


def test_the_pythons_that_are_supported_are_said() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    said = [name.rpartition(" ")[2] for name in project["classifiers"] if name.startswith("Programming Language :: Python :: 3.")]
    assert said == ["3.11", "3.12", "3.13", "3.14"]
    assert project["requires-python"] == f">={said[0]}"
    assert "for minor in 14 13 12 11; do" in (ROOT / ".ci" / "run").read_text(), "CI looks for the newest of them"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout of a few files, in which making environments and running pip take no time."""
    root = tmp_path / "checkout"
    for folder in ("deploy", "proxy/pipeline", "control"):
        (root / folder).mkdir(parents=True)
    for name in ("deploy/environment.py", "deploy/hatch_build.py", "pyproject.toml", "README.md", "LICENSE", "proxy/pipeline/pyspark_framegate.py"):
        shutil.copy(ROOT / name, root / name)
    (root / "pip").write_text(PIP.format(root=root))
    return root


def start(checkout: Path, *words: str, **options: object) -> "subprocess.Popen[str]":
    """``environment.py`` as make starts it."""
    given: dict[str, object] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True, **options}
    return subprocess.Popen([sys.executable, "-c", SCRIPT.format(root=str(checkout)), *words], **given)  # type: ignore[call-overload,no-any-return]


def run(checkout: Path, *words: str, **options: object) -> tuple[int, str, str]:
    """Its exit code and both outputs."""
    process = start(checkout, *words, **options)
    out, err = process.communicate(timeout=30)
    return process.returncode, out, err


def appears(path: Path, process: "subprocess.Popen[str]") -> str:
    """What a file says, once it says something."""
    deadline = time.monotonic() + 30
    while not (path.exists() and path.read_text().strip()):
        assert process.poll() is None, f"it ended: {process.communicate()}"
        assert time.monotonic() < deadline, f"no {path}"
        time.sleep(0.01)
    return path.read_text()


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    module = deploying.module("environment")
    module.update_package_lists.cache_clear()
    monkeypatch.setattr(module, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return module


def test_all_that_is_missing_is_one_line(environment: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What a task only wishes for does not end it; beside what it needs it is named in the same line."""
    needs = environment.NEEDS
    for name in ("java", "compiler", "maven", "openssl"):
        monkeypatch.setattr(needs[name], "present", lambda: False)
    monkeypatch.setattr(needs["browser"], "present", lambda: True)
    compiler, others = "a C compiler with the headers of this Python", "Maven and OpenSSL with its headers are missing: install them"
    slower, skipped = "the hot path runs as plain Python, and slower", "tests with a real Kafka broker are skipped"
    for wanted, line in (
        ([], ""),
        ([("browser", False)], ""),
        (
            [("compiler", True)],
            f"warning: {compiler} is missing: install it (on Debian: apt-get install gcc libc6-dev python3-dev); until then {slower}",
        ),
        (
            [("maven", True), ("openssl", True), ("browser", True)],
            f"warning: {others} (on Debian: apt-get install maven libssl-dev); until then {skipped}; {needs['openssl'].without}",
        ),
    ):
        environment.provide([(needs[name], wished) for name, wished in wanted])
        assert capsys.readouterr().err == (f"framegate: {line}\n" if line else "")
    with pytest.raises(SystemExit) as stopped:
        environment.provide([(needs["java"], False), (needs["maven"], False), (needs["browser"], False), (needs["compiler"], True)])
    assert stopped.value.code == 2
    packages = "openjdk-17-jre-headless maven gcc libc6-dev python3-dev"
    assert capsys.readouterr().err == (
        f"framegate: Java 17 or newer, Maven and {compiler} are missing: install them (on Debian: apt-get install {packages})\n"
    )


def test_the_wheel_is_made_from_everything_that_is_in_it(environment: ModuleType) -> None:
    names = {path.relative_to(ROOT).as_posix() for path in environment.wheel_sources()}
    assert {"pyproject.toml", "deploy/hatch_build.py", "proxy/py.typed", "control/py.typed", "proxy/config/model.py"} <= names
    assert not any(name.endswith((".pyc", ".so")) for name in names)


def test_the_command_runs_in_its_environment(environment: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: dict[str, object] = {}
    monkeypatch.setattr(os, "execvpe", lambda file, words, variables: ran.update(file=file, words=words, variables=variables))
    monkeypatch.setattr(os, "chdir", lambda _: None)
    for name in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE"):
        monkeypatch.setenv(name, "elsewhere")
    environment.run_command(["python", "-V"], Path(sys.prefix), "compiled")
    variables = ran["variables"]
    assert isinstance(variables, dict)
    assert variables["PYTHONSAFEPATH"] == "1"
    assert variables["FRAMEGATE_EXPECT"] == "compiled"
    assert variables["PATH"].startswith(f"{sys.prefix}/bin:")
    assert not {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE"} & set(variables)
    environment.run_command(["python", "-V"], Path(sys.prefix), "pure", source=True)
    assert ran["variables"]["PYTHONPATH"] == str(ROOT / ".src")  # type: ignore[index]


# In a process of its own: signals, clocks, places that cannot be written


@pytest.mark.parametrize(("number", "code", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")])
def test_a_signal_while_the_wheel_is_built_leaves_nothing(checkout: Path, number: int, code: int, word: str) -> None:
    (checkout / "slow").touch()
    process = start(checkout, "run", "--", "echo", "never")
    appears(checkout / "waiting", process)
    inner = int(appears(checkout / "inner", process))
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (code, "")
    assert err.splitlines()[-1] == f"framegate: {word}"
    assert "Traceback" not in err
    assert not alive(inner)
    assert not (checkout / ".cache" / "tmp").exists()
    (checkout / "slow").unlink()
    assert run(checkout, "run", "--", "echo", "works")[:2] == (0, "works\n"), "the next call goes on from there"


def test_an_environment_that_was_not_finished_is_made_anew(checkout: Path) -> None:
    half = checkout / ".venv" / "bin" / "python"
    half.parent.mkdir(parents=True)
    half.write_text("#!/bin/sh\nexit 9\n")
    half.chmod(0o755)
    assert run(checkout, "run", "--", "echo", "works")[:2] == (0, "works\n")


def test_what_is_up_to_date_is_left_alone(checkout: Path) -> None:
    assert run(checkout, "run", "--", "true")[0] == 0
    assert run(checkout, "run", "--", "true") == (0, "", "")
    assert len((checkout / "told").read_text().splitlines()) == 3, "one wheel, one installation of everything, one of the wheel"


def test_the_source_and_the_wheel_share_an_environment(checkout: Path) -> None:
    for kind in ("pure", "test", "pure", "test"):
        assert run(checkout, kind, "--", "echo", "works")[1] == "works\n"
    told = (checkout / "told").read_text().splitlines()
    assert [line.split()[-1].rpartition("/")[2] for line in told if "--force-reinstall" in line] == ["checkout", "framegate-1-cp-cp-linux.whl"]


def test_a_second_task_says_that_it_waits(checkout: Path) -> None:
    (checkout / "slow").touch()
    first = start(checkout, "run", "--", "true")
    appears(checkout / "waiting", first)
    second = start(checkout, "run", "--", "echo", "second")
    assert second.stderr is not None
    assert second.stderr.readline() == "framegate: waiting for another task that sets up\n"
    (checkout / "slow").unlink()
    first.send_signal(signal.SIGINT)
    assert first.wait(30) == 130
    first.communicate()
    assert second.communicate(timeout=30)[0] == "second\n"
