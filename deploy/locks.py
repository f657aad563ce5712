"""The locked dependencies of the images: ``python3 deploy/locks.py`` writes ``deploy/locks/*.txt`` anew (``make locks``).

=============  =====================================================================================================================
file           what, with version and hashes
=============  =====================================================================================================================
build.txt      what builds the wheel: ``[build-system] requires``
framegate.txt  what the sidecar has: the dependencies, and the extras otlp and prometheus
spark.txt      what the Spark image has beside these: the extra spark
=============  =====================================================================================================================

uv resolves them, for the image's Python; it is installed from PyPI into ``.cache/locks``. Which index the packages come from is not in the files.

Exit codes: as ``environment.py``.
"""

from __future__ import annotations

import os
import sys
import tomllib
from pathlib import Path

import environment

LOCKS = environment.ROOT / "deploy" / "locks"
IMAGE_PYTHON = "3.13"
SIDECAR_EXTRAS = ("otlp", "prometheus")
HEADER = "# Written by `make locks`, from pyproject.toml.\n"


def requirements(*extras: str) -> list[str]:
    """What framegate with these extras asks for in ``pyproject.toml``."""
    project = tomllib.loads((environment.ROOT / "pyproject.toml").read_text())["project"]
    return [*project["dependencies"], *(name for extra in extras for name in project["optional-dependencies"][extra])]


def build_requirements() -> list[str]:
    """What building the wheel asks for in ``pyproject.toml``."""
    return list(tomllib.loads((environment.ROOT / "pyproject.toml").read_text())["build-system"]["requires"])


def pinned(text: str) -> dict[str, str]:
    """The entries of a lock by the names of their packages: the version with all its hashes."""
    entries: dict[str, str] = {}
    name = ""
    for line in text.splitlines(keepends=True):
        if line.startswith((" ", "\t")):
            entries[name] += line
        elif "==" in line and not line.startswith("#"):
            name = line.partition("==")[0]
            entries[name] = line
    return entries


def without(text: str, other: str) -> str:
    """Of one lock the entries whose packages another has not."""
    known = pinned(other)
    return "".join(entry for name, entry in pinned(text).items() if name not in known)


def resolve(uv: Path, name: str, asked: list[str], constraints: Path | None = None) -> str:
    """A lock of what is asked for, resolved by uv."""
    folder = environment.CACHE / "locks"
    wanted, found = folder / f"{name}.in", folder / f"{name}.txt"
    wanted.write_text("\n".join(asked) + "\n")
    found.unlink(missing_ok=True)
    command = [str(uv), "pip", "compile", "--quiet", "--upgrade", "--generate-hashes", "--no-header", "--no-annotate", "--no-emit-index-url"]
    command += ["--python-version", IMAGE_PYTHON, "--python-platform", "linux", "--output-file", str(found), str(wanted)]
    command += ["--constraints", str(constraints)] if constraints else []
    environment.run_or_stop(command, f"locks-{name}.log", f"resolving {name}", f"uv could not resolve {name}")
    return "".join(pinned(found.read_text()).values())


def main(arguments: list[str]) -> int:
    """Write the three files."""
    if arguments:
        environment.stop(__doc__ or "")
    with environment.one_at_a_time():
        tool = environment.CACHE / "locks"
        uv = tool / "bin" / "uv"
        if not os.path.exists(uv):
            environment.make_environment(tool)
            environment.run_or_stop([str(tool / "bin" / "pip"), "install", "-q", "uv"], "locks-uv.log", "installing uv", "uv could not be installed")
        sidecar = resolve(uv, "framegate", requirements(*SIDECAR_EXTRAS))
        spark = resolve(uv, "spark", requirements(*SIDECAR_EXTRAS, "spark"), tool / "framegate.txt")
        build = resolve(uv, "build", build_requirements())
        LOCKS.mkdir(exist_ok=True)
        for name, text in (("framegate", sidecar), ("spark", without(spark, sidecar)), ("build", build)):
            (LOCKS / f"{name}.txt").write_text(HEADER + text)
    return 0


if __name__ == "__main__":
    raise SystemExit(environment.guarded(sys.argv[1:], main))
