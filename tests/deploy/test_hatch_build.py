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
packages = ["proxy"]
[tool.hatch.build.targets.wheel.hooks.custom]
path = "hatch_build.py"
compiled = ["proxy/hot/**/*.py"]
top_level = ["proxy/found.py"]
"""

pytestmark = pytest.mark.slow


def fill(root: Path) -> None:
    """A project of two modules, built by our hook."""
    (root / "proxy" / "hot").mkdir(parents=True)
    (root / "pyproject.toml").write_text(PROJECT)
    (root / "hatch_build.py").write_text((ROOT / "deploy" / "hatch_build.py").read_text())
    (root / "proxy" / "__init__.py").write_text("")
    (root / "proxy" / "found.py").write_text("")
    (root / "proxy" / "hot" / "__init__.py").write_text("")
    (root / "proxy" / "hot" / "one.py").write_text("def double(number: int) -> int:\n    return number * 2\n")
    (root / "proxy" / "hot" / "two.py").write_text("from proxy.hot.one import double\n\ndef four() -> int:\n    return double(2)\n")


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


def compiled_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*.so") if "dist" not in path.parts]


def needs_compiler() -> None:
    if not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")) or shutil.which("cc") is None:
        pytest.skip("needs a C compiler and Python.h")


def test_a_wheel_holds_each_hot_module_twice_and_the_checkout_none(project: Path) -> None:
    needs_compiler()
    done = build(project, FRAMEGATE_REQUIRE_COMPILED="1")
    assert done.returncode == 0, done.stderr
    name, files = contents(project)
    assert not name.endswith("-none-any.whl")
    assert "linux" in name
    assert {file.partition(".")[0] for file in files if file.endswith(".so")} == {"proxy/hot/one", "proxy/hot/two", "framegate__mypyc"}
    assert {"proxy/hot/one.py", "proxy/hot/two.py", "proxy/hot/__init__.py", "proxy/found.py", "found/__init__.py", "found/py.typed"} <= set(files)
    assert compiled_in(project) == []


def test_an_editable_install_compiles_nothing(project: Path) -> None:
    done = build(project, "editable", CC="/bin/false")
    assert done.returncode == 0, done.stderr
    assert "not compiled" not in done.stdout + done.stderr
    files = contents(project)[1]
    assert not any(file.endswith(".so") for file in files)
    assert {"found/__init__.py", "found/py.typed"} <= set(files)


def test_without_a_compiler_the_wheel_is_plain_and_says_so_in_one_line(project: Path) -> None:
    done = build(project, CC="/bin/false")
    assert done.returncode == 0, done.stderr
    name, files = contents(project)
    assert name.endswith("-none-any.whl")
    assert not any(file.endswith(".so") for file in files)
    assert (done.stdout + done.stderr).count("framegate: not compiled") == 1


def test_a_type_error_in_the_hot_path_makes_a_plain_wheel_too(project: Path) -> None:
    (project / "proxy" / "hot" / "one.py").write_text("def double(number: int) -> int:\n    return 'two'\n")
    done = build(project)
    assert done.returncode == 0, done.stderr
    assert contents(project)[0].endswith("-none-any.whl")
    assert "Incompatible return value type" in done.stdout + done.stderr


def test_a_compiled_wheel_can_be_demanded(project: Path) -> None:
    done = build(project, CC="/bin/false", FRAMEGATE_REQUIRE_COMPILED="1")
    assert done.returncode != 0
    assert "FRAMEGATE_REQUIRE_COMPILED=1" in done.stderr
    assert list((project / "dist").glob("*.whl")) == []


def test_a_plain_wheel_can_be_demanded(project: Path) -> None:
    assert build(project, FRAMEGATE_PURE="1").returncode == 0
    assert contents(project)[0].endswith("-none-any.whl")


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
    done = build(compiled, CC="/bin/false", FRAMEGATE_REQUIRE_COMPILED="1", FRAMEGATE_COMPILED=str(compiled.parent / "ahead"))
    assert done.returncode == 0, done.stderr
    name, files = contents(compiled)
    assert "linux" in name
    assert {file.partition(".")[0] for file in files if file.endswith(".so")} == {"proxy/hot/one", "proxy/hot/two", "framegate__mypyc"}
    assert compiled_in(compiled) == []


@pytest.mark.parametrize("changed", ["hot/one.py", "found.py", "new.py"])
def test_what_was_compiled_from_other_sources_is_refused(compiled: Path, changed: str) -> None:
    path = compiled / "proxy" / changed
    before = path.read_text() if path.exists() else None
    path.write_text("other = 1\n")
    try:
        done = build(compiled, FRAMEGATE_COMPILED=str(compiled.parent / "ahead"))
    finally:
        path.unlink() if before is None else path.write_text(before)
    assert done.returncode != 0
    assert f"is of other sources (proxy/{changed})" in done.stderr


def test_a_folder_in_which_nothing_was_compiled_is_refused(project: Path) -> None:
    folder = project.parent / "empty"
    shutil.copytree(project / "proxy", folder / "proxy")
    done = build(project, FRAMEGATE_COMPILED=str(folder))
    assert done.returncode != 0
    assert "holds nothing compiled" in done.stderr


def test_compiling_ahead_fails_with_the_compilers_reason(project: Path) -> None:
    done = ahead(project, CC="/bin/false")
    assert done.returncode == 1
    assert "framegate: the hot path did not compile" in done.stderr
