import ast
import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from framegate import proxy
from framegate.proxy.pipeline import pyspark_framegate
from framegate.proxy.pipeline.source import FramegateDataSource

SOURCE = Path(str(pyspark_framegate.__file__))
# What a data engineer writes: the module's name in the wheel, and nothing else of framegate.
SCRIPT = """
import sys
from pathlib import Path

import pyspark.sql.datasource, pyspark.sql.streaming.datasource  # what any Data Source imports

before = set(sys.modules)
import pyspark_framegate

added = set(sys.modules) - before
heavy = sorted(name for name in added if name.partition(".")[0] in ("pyspark", "pyarrow", "numpy", "pandas"))
late = {"pipeline.decode", "pipeline.tables", "pipeline.views", "tap.writer"}
lazy = sorted(added & {f"framegate.proxy.{name}" for name in late})
print(heavy, lazy, set(pyspark_framegate.__all__) <= set(dir(pyspark_framegate)))

from pyspark_framegate import *
from pyspark_framegate import read_table, register

print(register.__module__, read_table.__module__, read_table is pyspark_framegate.read_table, len(CHUNK_SCHEMA) > 20)
print(sorted(TABLE_SCHEMAS), issubclass(TableError, Exception), callable(register_views), callable(read_table))
"""


def test_spark_finds_the_source_under_its_name_and_register_tells_the_session() -> None:
    assert pyspark_framegate.DefaultSource is FramegateDataSource
    assert pyspark_framegate.DefaultSource.name() == "framegate"
    session = MagicMock()
    pyspark_framegate.register(session)
    session.dataSource.register.assert_called_once_with(FramegateDataSource)


def test_what_is_imported_when_asked_for_is_what_type_checkers_see() -> None:
    checked: dict[str, str] = {}
    for node in ast.parse(SOURCE.read_text()).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            imports = [line for line in node.body if isinstance(line, ast.ImportFrom) and str(line.module).startswith("framegate.proxy.")]
            checked.update((alias.name, str(line.module)) for line in imports for alias in line.names)
    assert checked == pyspark_framegate._LAZY
    assert set(pyspark_framegate.__all__) == {*checked, "CHUNK_SCHEMA", "DefaultSource", "register"}
    for name, module in checked.items():
        assert getattr(pyspark_framegate, name) is getattr(importlib.import_module(module), name)


def test_every_name_is_documented() -> None:
    assert [name for name in pyspark_framegate.__all__ if name not in str(pyspark_framegate.__doc__)] == []


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'explode'"):
        _ = pyspark_framegate.explode


def run_user_script(folder: Path, script: str) -> list[str]:
    """The lines that a script prints in a fresh interpreter that has the module at its top, as the wheel installs it."""
    top = folder / "top"
    (top / "pyspark_framegate").mkdir(parents=True)
    shutil.copy(SOURCE, top / "pyspark_framegate" / "__init__.py")
    path = os.pathsep.join([str(top), str(Path(proxy.__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, cwd=folder, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_a_users_script_imports_one_light_module(tmp_path: Path) -> None:
    assert run_user_script(tmp_path, SCRIPT) == [
        "[] [] True",
        "pyspark_framegate framegate.proxy.pipeline.views True True",
        "['completeness', 'connections', 'frames', 'gaps', 'groups', 'kafka_partitions', 'nodes', 'requests', 'traffic_by_minute'] True True True",
    ]


def test_an_installed_wheel_has_the_module_at_its_top() -> None:
    installed = Path(proxy.__file__).parents[2]
    if installed.name == "site-packages":
        assert importlib.util.find_spec("pyspark_framegate") is not None
