"""Build the wheel ``pyspark-framegate``: only the modules that a Spark job needs to read the tap.

``python deploy/spark_wheel.py [--output DIR]``, in an environment with hatchling (the extra ``dev``). The wheel has ``pyspark_framegate`` and the
modules below ``framegate.proxy`` that it imports: the record, the log's reader, the source, the tables. It needs no gRPC, has nothing compiled and is
for every platform. framegate's own wheel has the same modules, so an environment may have only one of the two.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "deploy"))  # not there with PYTHONSAFEPATH=1

from hatch_build import PACKAGE, imported  # noqa: E402

TOP = "proxy/pipeline/pyspark_framegate.py"
PROJECT = """
[build-system]
requires = ["hatchling>=1.27"]
build-backend = "hatchling.build"

[project]
name = "pyspark-framegate"
version = "{version}"
description = "framegate's tap as a Spark Data Source."
requires-python = "{python}"
license = "Apache-2.0"
license-files = ["LICENSE"]
dependencies = ["isal>=1.8,<2", "numpy>=1.26", "pyarrow>=18"]

[project.optional-dependencies]
spark = ["pyspark[connect]>=4.2,<4.4"]
tables = ["deltalake>=1.6.6,<2"]
ship = ["obstore>=0.12,<0.13"]

[tool.hatch.build.targets.wheel]
only-include = ["framegate", "pyspark_framegate"]
"""


def fill(folder: Path) -> None:
    """Write the project of the wheel into an empty folder."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (folder / "pyproject.toml").write_text(PROJECT.format(version=project["version"], python=project["requires-python"]))
    shutil.copy(ROOT / "LICENSE", folder)
    modules = imported(ROOT, [TOP])
    packages = {parent / name for module in modules for parent in Path(module).parents if parent.parts for name in ("__init__.py", "py.typed")}
    for path in sorted({*map(Path, modules), *packages}):
        if (ROOT / path).exists():
            (folder / PACKAGE / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, folder / PACKAGE / path)
    (folder / PACKAGE / "__init__.py").write_text('"""A part of framegate: what reads the tap."""\n')  # for an import from a zip
    top = folder / Path(TOP).stem
    top.mkdir()
    shutil.copy(ROOT / TOP, top / "__init__.py")
    (top / "py.typed").touch()


def main() -> int:
    """The command line; hatchling prints the wheel's path."""
    parser = argparse.ArgumentParser(prog="deploy/spark_wheel.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="the folder for the wheel (dist)")
    output = parser.parse_args().output.resolve()
    with tempfile.TemporaryDirectory(prefix="framegate-spark-") as folder:
        fill(Path(folder))
        return subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(output)], cwd=folder, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
