"""The build hook of the wheel: compiles the hot path with mypyc.

The modules that ``[tool.hatch.build.targets.wheel.hooks.custom] compiled`` names are compiled in a temporary copy, as one group, and only
the ``.so`` files go into the wheel, beside their ``.py`` (Python prefers the ``.so``; the source serves tracebacks). The checkout and an
editable install never hold one.

Without a C compiler, or with one that fails, the wheel is plain Python and says so in one line; ``FRAMEGATE_REQUIRE_COMPILED=1`` makes
that an error.
``FRAMEGATE_PURE=1`` asks for plain Python. ``FRAMEGATE_COMPILED=DIR`` takes what ``python hatch_build.py --ahead DIR`` compiled, if the sources
are still the same: a container's build compiles in a layer of its own, which lasts as long as ``proxy/`` does. The wheel's tag names a platform
only when something was compiled.

The modules named ``top_level`` are installed a second time, at the top, for those who look for them there: each as a package of one module, for
only a package can say that it is typed (``py.typed``).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

GROUP = "framegate"


def hot_modules(root: Path, patterns: list[str]) -> list[str]:
    """The files that are compiled, relative to the root; package files (``__init__.py``) stay plain: they hold re-exports only."""
    found = {
        path.relative_to(root).as_posix() for pattern in patterns for path in root.glob(pattern) if path.name not in ("__init__.py", "__main__.py")
    }
    return sorted(found)


def compile_group(root: Path, modules: list[str], target: Path) -> tuple[list[Path], str]:
    """Compile a copy of the data path below ``target``.

    Returns:
        The extension files, relative to ``target`` (empty when it failed), and what the compiler said.
    """
    shutil.copytree(root / "proxy", target / "proxy", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    command = [sys.executable, str(Path(__file__).resolve()), *modules]
    done = subprocess.run(command, cwd=target, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        return [], done.stdout
    return extensions_in(target), done.stdout


def compiled_ahead(root: Path, folder: Path) -> list[Path]:
    """The extension files that ``--ahead`` left in a folder, relative to it.

    Raises:
        RuntimeError: they were made from other sources than those in ``root``, or there are none.
    """
    now = sources(root)
    before = sources(folder)
    if now != before:
        differing = sorted({name for name, _ in now ^ before})
        raise RuntimeError(f"framegate: FRAMEGATE_COMPILED={folder} is of other sources ({', '.join(differing[:5])}): compile again with --ahead")
    built = extensions_in(folder)
    if not built:
        raise RuntimeError(f"framegate: FRAMEGATE_COMPILED={folder} holds nothing compiled: compile with --ahead")
    return built


def sources(root: Path) -> set[tuple[str, bytes]]:
    """Every Python file of the data path, and what it says."""
    return {(path.relative_to(root).as_posix(), path.read_bytes()) for path in (root / "proxy").rglob("*.py")}


def extensions_in(folder: Path) -> list[Path]:
    """The extension files below a folder in which a group was compiled, relative to it."""
    return sorted(path.relative_to(folder) for path in folder.rglob("*.so") if "build" not in path.relative_to(folder).parts)


def reason(output: str) -> str:
    """The one line of a compiler's output that tells most."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for word in ("Python.h: No such file", "No such file or directory", "error:", "Error"):
        for line in lines:
            if word in line:
                return line[:200]
    return lines[-1][:200] if lines else "the compiler said nothing"


try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run as the compiling subprocess, in an environment that holds mypyc alone
    BuildHookInterface = object  # type: ignore[assignment,misc]


class CompileHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the compiled hot path to a wheel; hatchling finds this class by itself."""

    PLUGIN_NAME = "custom"
    _target: Path | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        self._target = Path(tempfile.mkdtemp(prefix="framegate-build-"))
        try:
            self._fill(self._target, version, build_data)
        except BaseException:  # hatchling calls ``finalize`` only after a build that went well
            shutil.rmtree(self._target, ignore_errors=True)
            raise

    def _fill(self, target: Path, version: str, build_data: dict[str, Any]) -> None:
        """Make what goes into the wheel beside the packages, and say so to hatchling."""
        included = build_data["force_include_editable" if version == "editable" else "force_include"]
        included.update(self._copies(Path(self.root), target / "top"))
        if version != "editable":
            ahead = os.environ.get("FRAMEGATE_COMPILED")
            compiled = Path(ahead) if ahead else target / "compiled"
            built = compiled_ahead(Path(self.root), compiled) if ahead else self._compile(Path(self.root), compiled)
            included.update({str(compiled / path): path.as_posix() for path in built})
            build_data["pure_python"] = not built
            build_data["infer_tag"] = bool(built)

    def _copies(self, root: Path, target: Path) -> dict[str, str]:
        """Copies of the modules that are also wanted at the top: a file that is included by name would leave its package."""
        copies: dict[str, str] = {}
        for module in (root / name for name in self.config.get("top_level", [])):
            package = target / module.stem
            package.mkdir(parents=True)
            shutil.copy(str(module), str(package / "__init__.py"))
            (package / "py.typed").touch()
            copies.update({str(path): f"{module.stem}/{path.name}" for path in package.iterdir()})
        return copies

    def _compile(self, root: Path, target: Path) -> list[Path]:
        """The compiled files, or none and a warning."""
        required = os.environ.get("FRAMEGATE_REQUIRE_COMPILED") == "1"
        if os.environ.get("FRAMEGATE_PURE") == "1":
            if required:
                raise RuntimeError("FRAMEGATE_PURE=1 and FRAMEGATE_REQUIRE_COMPILED=1 exclude each other")
            return []
        built, output = compile_group(root, hot_modules(root, self.config["compiled"]), target)
        if not built and required:
            raise RuntimeError(f"framegate: FRAMEGATE_REQUIRE_COMPILED=1, but the hot path did not compile:\n{output}")
        if not built:
            self.app.display_warning(f"framegate: not compiled ({reason(output)}): this wheel is plain Python, and slower")
        return built

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if self._target is not None:
            shutil.rmtree(self._target, ignore_errors=True)


def main(modules: list[str]) -> None:
    """Compile the modules named, in the working directory, in place."""
    sys.path.pop(0)  # our own folder: its names must not shadow a library's
    from mypyc.build import mypycify
    from setuptools import setup

    extensions: Any = mypycify(["--config-file=", *modules], opt_level="3", group_name=GROUP)
    setup(name=GROUP, packages=[], py_modules=[], ext_modules=extensions, script_args=["build_ext", "--inplace"])


def compile_ahead(root: Path, folder: Path) -> int:
    """Compile the data path of a checkout into a new folder; the exit code."""
    project = tomllib.loads((root / "pyproject.toml").read_text())
    modules = hot_modules(root, project["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]["compiled"])
    built, output = compile_group(root, modules, folder)
    sys.stdout.write(output)
    if not built:
        sys.stderr.write(f"framegate: the hot path did not compile: {reason(output)}\n")
    return 0 if built else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--ahead"]:
        raise SystemExit(compile_ahead(Path.cwd(), Path(sys.argv[2]).resolve()))
    main(sys.argv[1:])
