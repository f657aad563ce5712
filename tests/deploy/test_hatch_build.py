"""The build hook: compiled code only in a wheel, and a build that cannot compile says so once or stops."""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "small"
version = "1"
[tool.hatch.build.targets.wheel]
only-include = ["proxy"]
[tool.hatch.build]
dev-mode-dirs = [".src"]
[tool.hatch.build.targets.wheel.sources]
proxy = "framegate/proxy"
[tool.hatch.build.targets.wheel.hooks.custom]
path = "hatch_build.py"
compiled = ["proxy/hot/**/*.py"]
top_level = ["proxy/found.py"]
"""
COMPILED = {"framegate/proxy/hot/one", "framegate/proxy/hot/two", "framegate__mypyc"}

pytestmark = [pytest.mark.slow, pytest.mark.extended]


def fill(root: Path) -> None:
    """A project of two modules, built by our hook."""
    (root / "proxy" / "hot").mkdir(parents=True)
    (root / "pyproject.toml").write_text(PROJECT)
    (root / "hatch_build.py").write_text((ROOT / "deploy" / "hatch_build.py").read_text())
    (root / "proxy" / "__init__.py").write_text("")
    (root / "proxy" / "found.py").write_text("")
    (root / "proxy" / "hot" / "__init__.py").write_text("")
    (root / "proxy" / "hot" / "one.py").write_text("def double(number: int) -> int:\n    return number * 2\n")
    (root / "proxy" / "hot" / "two.py").write_text("from framegate.proxy.hot.one import double\n\ndef four() -> int:\n    return double(2)\n")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    fill(tmp_path)
    return tmp_path


def build(project: Path, target: str = "wheel", **environment: str) -> subprocess.CompletedProcess[str]:
    temporary = project.with_name(f"{project.name}-tmp")
    temporary.mkdir(exist_ok=True)
    options = {**os.environ, "TMPDIR": str(temporary), **environment}
    for name in ("FRAMEGATE_REQUIRE_COMPILED", "FRAMEGATE_PURE", "FRAMEGATE_COMPILED"):
        if name not in environment:
            options.pop(name, None)
    function = "build_editable" if target == "editable" else "build_wheel"
    line = f"import hatchling.build as b; print(b.{function}('dist'))"
    (project / "dist").mkdir(exist_ok=True)
    done = subprocess.run([sys.executable, "-P", "-c", line], cwd=project, env=options, capture_output=True, text=True, check=False)
    assert list(temporary.glob("framegate-*")) == [], "the copy that was compiled is gone, however the build ended"
    return done


def contents(project: Path) -> tuple[str, list[str]]:
    (wheel,) = (project / "dist").glob("*.whl")
    return wheel.name, [name for name in zipfile.ZipFile(wheel).namelist() if "dist-info" not in name]


def built(project: Path, target: str = "wheel", **environment: str) -> tuple[str, list[str], str]:
    """The name of what was built, what is in it, and what the build printed."""
    done = build(project, target, **environment)
    assert done.returncode == 0, done.stderr
    return *contents(project), done.stdout + done.stderr


def compiled_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*.so") if "dist" not in path.parts]


def needs_compiler() -> None:
    if not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")) or shutil.which("cc") is None:
        pytest.skip("needs a C compiler and Python.h")


def test_a_wheel_holds_each_hot_module_twice_and_the_checkout_none(project: Path) -> None:
    needs_compiler()
    name, files, _ = built(project, FRAMEGATE_REQUIRE_COMPILED="1")
    assert not name.endswith("-none-any.whl")
    assert "linux" in name
    assert {file.partition(".")[0] for file in files if file.endswith(".so")} == COMPILED
    assert {"found/__init__.py", "found/py.typed"} <= set(files)
    assert {f"framegate/proxy/{name}.py" for name in ("hot/one", "hot/two", "hot/__init__", "found")} <= set(files)
    assert compiled_in(project) == []


def test_an_editable_install_compiles_nothing(project: Path) -> None:
    _, files, printed = built(project, "editable", CC="/bin/false")
    assert "not compiled" not in printed
    assert [file.rpartition(".")[2] for file in files] == ["pth"], "it names the folder with the links, and holds nothing"


def test_without_a_compiler_the_wheel_is_plain_and_says_so_in_one_line(project: Path) -> None:
    name, files, printed = built(project, CC="/bin/false")
    assert name.endswith("-none-any.whl")
    assert not any(file.endswith(".so") for file in files)
    assert printed.count("framegate: not compiled") == 1


def test_a_compiled_wheel_can_be_demanded(project: Path) -> None:
    done = build(project, CC="/bin/false", FRAMEGATE_REQUIRE_COMPILED="1")
    assert done.returncode != 0
    assert "FRAMEGATE_REQUIRE_COMPILED=1" in done.stderr
    assert list((project / "dist").glob("*.whl")) == []


def test_a_plain_wheel_can_be_demanded(project: Path) -> None:
    assert built(project, FRAMEGATE_PURE="1")[0].endswith("-none-any.whl")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose hot path was compiled ahead, into ``ahead`` beside it."""
    needs_compiler()
    root = tmp_path_factory.mktemp("compiled") / "project"
    root.mkdir()
    fill(root)
    done = ahead(root)
    assert done.returncode == 0, done.stderr
    return root


def ahead(project: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "hatch_build.py", "--ahead", str(project.parent / "ahead")]
    return subprocess.run(command, cwd=project, env={**os.environ, **environment}, capture_output=True, text=True, check=False)


def test_what_was_compiled_ahead_is_taken_and_nothing_compiled_again(compiled: Path) -> None:
    name, files, _ = built(compiled, CC="/bin/false", FRAMEGATE_REQUIRE_COMPILED="1", FRAMEGATE_COMPILED=str(compiled.parent / "ahead"))
    assert "linux" in name
    assert {file.partition(".")[0] for file in files if file.endswith(".so")} == COMPILED
    assert compiled_in(compiled) == []


def test_only_a_change_of_what_is_compiled_compiles_again(compiled: Path) -> None:
    kept = compiled.parent / "ahead"
    for changed, again in (("found.py", False), ("hot/one.py", True)):  # only the latter is compiled, or imported by what is
        with (compiled / "proxy" / changed).open("a") as file:
            file.write("other = 1\n")
        done = build(compiled, CC="/bin/false", FRAMEGATE_REQUIRE_COMPILED="1", FRAMEGATE_COMPILED=str(kept))
        assert (done.returncode != 0) is again, done.stderr
