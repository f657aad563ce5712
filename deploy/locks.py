"""Write the locked dependencies of the images: ``python3 deploy/locks.py`` (``make locks``) writes ``deploy/locks/*.txt``.

=============  =====================================================================================================================
file           packages, with version and hashes
=============  =====================================================================================================================
build.txt      what builds the wheel: ``[build-system] requires``
framegate.txt  packages of the sidecar: the dependencies, and the extras otlp, prometheus and ship
spark.txt      further packages of the Spark image: the extra spark
=============  =====================================================================================================================

uv resolves them for the image's Python. The files do not name the package index.

Exit codes: as ``environment.py``.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import environment

LOCKS = environment.ROOT / "deploy" / "locks"
IMAGE_PYTHON = "3.13"
SIDECAR_EXTRAS = ("otlp", "prometheus", "ship")
HEADER = "# Written by `make locks`, from pyproject.toml.\n"


def requirements(*extras: str) -> list[str]:
    """The requirements of framegate with these extras in ``pyproject.toml``."""
    project = tomllib.loads((environment.ROOT / "pyproject.toml").read_text())["project"]
    return [*project["dependencies"], *(name for extra in extras for name in project["optional-dependencies"][extra])]


def build_requirements() -> list[str]:
    """The requirements of the wheel's build in ``pyproject.toml``."""
    return list(tomllib.loads((environment.ROOT / "pyproject.toml").read_text())["build-system"]["requires"])


def pinned(text: str) -> dict[str, str]:
    """The entries of a lock file by package: the version with all its hashes."""
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
    """The entries of a lock file whose packages another one does not have."""
    known = pinned(other)
    return "".join(entry for name, entry in pinned(text).items() if name not in known)


def resolve(uv: str, name: str, asked: list[str], constraints: Path | None = None) -> str:
    """The lock file of some requirements, resolved by uv."""
    folder = environment.CACHE / "locks"
    folder.mkdir(exist_ok=True)
    wanted, found = folder / f"{name}.in", folder / f"{name}.txt"
    wanted.write_text("\n".join(asked) + "\n")
    found.unlink(missing_ok=True)
    command = [uv, "pip", "compile", "--quiet", "--upgrade", "--generate-hashes", "--no-header", "--no-annotate", "--no-emit-index-url"]
    command += ["--python-version", IMAGE_PYTHON, "--python-platform", "linux", "--output-file", str(found), str(wanted)]
    command += ["--constraints", str(constraints)] if constraints else []
    environment.run_or_stop(command, f"locks-{name}.log", f"resolving {name}", f"uv could not resolve {name}")
    return "".join(pinned(found.read_text()).values())


def main(arguments: list[str]) -> int:
    """Write the three files."""
    if arguments:
        environment.stop(__doc__ or "")
    with environment.one_at_a_time():
        uv = environment.uv()
        if not uv:
            environment.stop("uv could not be installed (the whole output: .cache/uv.log)", 1)
        sidecar = resolve(uv, "framegate", requirements(*SIDECAR_EXTRAS))
        spark = resolve(uv, "spark", requirements(*SIDECAR_EXTRAS, "spark"), environment.CACHE / "locks" / "framegate.txt")
        build = resolve(uv, "build", build_requirements())
        LOCKS.mkdir(exist_ok=True)
        for name, text in (("framegate", sidecar), ("spark", without(spark, sidecar)), ("build", build)):
            (LOCKS / f"{name}.txt").write_text(HEADER + text)
    return 0


if __name__ == "__main__":
    raise SystemExit(environment.guarded(sys.argv[1:], main))
