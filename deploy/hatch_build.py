"""The build hook of the wheel: compiles the hot path with mypyc.

The modules in ``[tool.hatch.build.targets.wheel.hooks.custom] compiled`` are compiled in a temporary copy, as one group. Only the ``.so`` files are
added to the wheel, beside their ``.py`` (Python prefers the ``.so``; tracebacks show the source). The checkout and an editable install never have
``.so`` files.

Without a C compiler, or if it fails, the wheel is plain Python and one line says so; ``FRAMEGATE_REQUIRE_COMPILED=1`` makes that an error.
``FRAMEGATE_PURE=1`` requests plain Python. ``FRAMEGATE_COMPILED=DIR`` keeps the compiled files in ``DIR`` and uses them as long as the compiled
modules and their imports do not change; ``python hatch_build.py --ahead DIR`` only compiles, for a layer of its own in a container's build. The
wheel's tag names a platform only if something was compiled.

Extensions that are written in C (``native``) are compiled together with them.

The modules in ``top_level`` are installed a second time at the top level, for Spark: each as a package of one module, because only a package can have
a ``py.typed``.
"""

from __future__ import annotations

import ast
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

PACKAGE = "framegate"  # the package that has `proxy` when installed, and the name of the compiled group

LINKS = {
    "framegate/proxy": "proxy",
    "framegate/control": "control",
    "pyspark_framegate/__init__.py": "proxy/pipeline/pyspark_framegate.py",
    "pyspark_framegate/py.typed": "proxy/py.typed",
}  # the links in ``.src``: sources of the checkout by their installed names


def link_sources(root: Path) -> None:
    """Make the links in ``.src``, which mypy, editors and an editable install follow. They are not in Git: some ways of copying lose links."""
    for name, source in LINKS.items():
        link = root / ".src" / name
        target = os.path.relpath(str(root / source), str(link.parent))
        if not link.is_symlink() or os.readlink(str(link)) != target:
            link.parent.mkdir(parents=True, exist_ok=True)
            if link.exists() or link.is_symlink():
                link.unlink()
            link.symlink_to(target)


def hot_modules(root: Path, patterns: list[str]) -> list[str]:
    """The files to compile, relative to the root; package files (``__init__.py``) are not compiled, because they only have re-exports."""
    found = {
        path.relative_to(root).as_posix() for pattern in patterns for path in root.glob(pattern) if path.name not in ("__init__.py", "__main__.py")
    }
    return sorted(found)


def compile_group(root: Path, target: Path) -> str:
    """Compile a copy of the data path into ``target``, unless it is up to date; returns the compiler's output, empty for a success."""
    if is_compiled(root, target):
        return ""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    shutil.copytree(root / "proxy", target / PACKAGE / "proxy", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    modules = hot_modules(root, settings(tomllib.loads((root / "pyproject.toml").read_text()))["compiled"])
    command = [sys.executable, str(Path(__file__).resolve()), *(f"{PACKAGE}/{module}" for module in [*modules, *native(root)])]
    done = subprocess.run(command, cwd=target, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        return done.stdout
    (target / "compiled-from").write_text(compiled_from(root))
    return ""


def is_compiled(root: Path, folder: Path) -> bool:
    """Whether a folder has the compiled files of the sources in ``root``."""
    file = folder / "compiled-from"
    return file.exists() and file.read_text() == compiled_from(root) and bool(extensions_in(folder))


def compiled_from(root: Path) -> str:
    """A digest of everything that determines the compiled files: the modules, their imports of ours, Python, this hook, the build's requirements."""
    project = tomllib.loads((root / "pyproject.toml").read_text())
    modules = hot_modules(root, settings(project)["compiled"])
    total = hashlib.sha256(repr((modules, project["build-system"]["requires"], sys.version)).encode() + Path(__file__).read_bytes())
    for path in [*imported(root, modules), *native(root), *native(root, "*.h")]:
        total.update(path.encode() + (root / path).read_bytes())
    return total.hexdigest()


def imported(root: Path, modules: list[str]) -> list[str]:
    """The modules, and every module below ``root`` that they import, directly or not; relative to it."""
    found: set[str] = set()
    waiting = list(modules)
    while waiting:
        path = waiting.pop()
        if path in found or not (root / path).exists():
            continue
        found.add(path)
        for node in ast.walk(ast.parse((root / path).read_bytes())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(PACKAGE + "."):
                below = node.module.split(".")[1:]
                names = ["/".join([*below, alias.name]) for alias in node.names]
                waiting += [f"{name}{end}" for name in ["/".join(below), *names] for end in (".py", "/__init__.py")]
    return sorted(found)


def settings(project: dict[str, Any]) -> dict[str, Any]:
    """The settings of this hook in pyproject.toml."""
    hook: dict[str, Any] = project["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]
    return hook


def native(root: Path, kind: str = "*.c") -> list[str]:
    """The extensions that are written in C, or their headers, relative to the root."""
    return sorted(path.relative_to(root).as_posix() for path in (root / "proxy").rglob(kind))


def extensions_in(folder: Path) -> list[Path]:
    """The extension files below a folder in which a group was compiled, relative to it."""
    return sorted(path.relative_to(folder) for path in folder.rglob("*.so") if "build" not in path.relative_to(folder).parts)


def reason(output: str) -> str:
    """The most useful line of a compiler's output."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for word in ("Python.h: No such file", "No such file or directory", "error:", "Error"):
        for line in lines:
            if word in line:
                return line[:200]
    return lines[-1][:200] if lines else "the compiler said nothing"


try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # in the compiling subprocess, whose environment has only mypyc
    BuildHookInterface = object  # type: ignore[assignment,misc]


class CompileHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the compiled hot path to a wheel; hatchling finds this class."""

    PLUGIN_NAME = "custom"
    _target: Path | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        self._target = Path(tempfile.mkdtemp(prefix="framegate-build-"))
        try:
            self._fill(self._target, version, build_data)
        except BaseException:  # hatchling calls ``finalize`` only after a successful build
            shutil.rmtree(self._target, ignore_errors=True)
            raise

    def _fill(self, target: Path, version: str, build_data: dict[str, Any]) -> None:
        """Make the wheel's additional files, and tell hatchling about them."""
        included = build_data["force_include"]
        if version == "editable":  # it refers to `.src`
            link_sources(Path(self.root))
        else:
            included.update(self._copies(Path(self.root), target / "top"))
            compiled = Path(os.environ.get("FRAMEGATE_COMPILED") or target / "compiled")
            built = self._compile(Path(self.root), compiled)
            included.update({str(compiled / path): path.as_posix() for path in built})
            build_data["pure_python"] = not built
            build_data["infer_tag"] = bool(built)

    def _copies(self, root: Path, target: Path) -> dict[str, str]:
        """Copies of the modules for the top level: including a file directly would remove it from its package."""
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
        failure = compile_group(root, target)
        if failure and required:
            raise RuntimeError(f"framegate: FRAMEGATE_REQUIRE_COMPILED=1, but the hot path did not compile:\n{failure}")
        if failure:
            self.app.display_warning(f"framegate: not compiled ({reason(failure)}): this wheel is plain Python, and slower")
            return []
        return extensions_in(target)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if self._target is not None:
            shutil.rmtree(self._target, ignore_errors=True)


def main(modules: list[str]) -> None:
    """Compile the modules named, in the working directory, in place. There is one C file for each module, so that all processors compile. The
    interpreter's flags include ``-Wall``, and some of its passes take longer than the optimization of mypyc's code: ``-w`` switches them off.
    """
    sys.path.pop(0)  # this folder, whose modules must not shadow libraries
    from mypyc.build import mypycify
    from setuptools import Extension, setup
    from setuptools.command.build_ext import build_ext

    workers = len(os.sched_getaffinity(0))

    class Parallel(build_ext):
        """Compiles the files of an extension in parallel."""

        def build_extensions(self) -> None:
            one = self.compiler.compile

            def several(files: list[str], *arguments: Any, **named: Any) -> list[str]:
                with ThreadPoolExecutor(workers) as pool:
                    return [made for objects in pool.map(lambda file: one([file], *arguments, **named), files) for made in objects]

            self.compiler.compile = several
            super().build_extensions()

    # The folder has no `__init__.py`, so mypy must be told where package names begin.
    extensions: Any = mypycify(
        ["--config-file=", "--explicit-package-bases", *(name for name in modules if not name.endswith(".c"))],
        opt_level="2",
        group_name=PACKAGE,
        multi_file=True,
    )
    extensions += [Extension(name.removesuffix(".c").replace("/", "."), [name]) for name in modules if name.endswith(".c")]
    for extension in extensions:
        extension.extra_compile_args += ["-w", "-fvisibility=hidden"]  # hidden symbols make calls between the files direct, as within one file
    script = ["build_ext", "--inplace", f"--parallel={workers}"]
    setup(name=PACKAGE, packages=[], py_modules=[], ext_modules=extensions, script_args=script, cmdclass={"build_ext": Parallel})


if __name__ == "__main__":
    if sys.argv[1:2] == ["--ahead"]:
        output = compile_group(Path.cwd(), Path(sys.argv[2]).resolve())
        raise SystemExit(f"{output}\nframegate: the hot path did not compile: {reason(output)}" if output else 0)
    main(sys.argv[1:])
