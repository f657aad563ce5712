"""The wheel for Spark jobs is small, and enough by itself."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
READS = """
import sys
from pyspark_framegate import CHUNK_SCHEMA, TABLE_SCHEMAS, DefaultSource, read_table
assert DefaultSource.name() == "framegate"
files = {name: getattr(module, "__file__", None) for name, module in sys.modules.items() if name.startswith(("framegate", "pyspark_framegate"))}
assert not {name: file for name, file in files.items() if file and sys.argv[1] not in file}
print(sorted({name.partition(".")[0] for name in sys.modules} & {"grpc", "google", "opentelemetry", "cryptography", "click"}))
"""


@pytest.mark.slow
def test_it_is_enough_to_read_the_tap_and_has_nothing_of_the_proxy(tmp_path: Path) -> None:
    command = [sys.executable, "-P", str(ROOT / "deploy" / "spark_wheel.py"), "--output", str(tmp_path)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("pyspark_framegate-*-py3-none-any.whl")
    names = zipfile.ZipFile(wheel).namelist()
    allowed = {"__init__.py", "cause.py", "py.typed", "config", "errors.py", "kafka", "pipeline", "tap"}  # kafka has the names of APIs
    assert {name.split("/")[2] for name in names if name.startswith("framegate/proxy/")} <= allowed
    assert not [name for name in names if name.startswith("framegate/control") or "writer" in name]
    done = subprocess.run(
        [sys.executable, "-P", "-c", READS, str(wheel)], capture_output=True, text=True, env={"PYTHONPATH": str(wheel)}, check=False
    )
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr
