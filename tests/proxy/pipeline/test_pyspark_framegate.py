import importlib.util
import subprocess
import sys
from pathlib import Path
from unittest.mock import MagicMock

import proxy
from proxy.pipeline import pyspark_framegate
from proxy.pipeline.source import FramegateDataSource


def test_spark_finds_the_source_under_its_name() -> None:
    assert pyspark_framegate.DefaultSource is FramegateDataSource
    assert pyspark_framegate.DefaultSource.name() == "framegate"


def test_register_tells_the_session() -> None:
    session = MagicMock()
    pyspark_framegate.register(session)
    session.dataSource.register.assert_called_once_with(FramegateDataSource)


def test_the_import_stays_light() -> None:
    root = Path(proxy.__file__).parents[1]
    program = (
        f"import sys; sys.path.insert(0, {str(root)!r}); import proxy.pipeline.pyspark_framegate; "
        "print([name for name in ('numpy', 'pandas', 'pyarrow', 'proxy.pipeline.decode', 'proxy.tap.writer') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_installed_wheel_has_the_module_at_its_top() -> None:
    installed = Path(proxy.__file__).parents[1]
    if installed.name == "site-packages":
        assert importlib.util.find_spec("pyspark_framegate") is not None
