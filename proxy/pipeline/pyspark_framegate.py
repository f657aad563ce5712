"""framegate in Spark: the one module that a job imports.

``spark.readStream.format("framegate").option("path", directory).load()`` gives the tap's log as chunks, with the columns of ``CHUNK_SCHEMA``; the
options are in ``help(pyspark_framegate.DefaultSource)``; with ``rows`` = ``frames`` it gives a row for each frame. The module has:

    register(spark)              make ``format("framegate")`` known, where the wheel is not installed but a checkout is on the path
    CHUNK_SCHEMA                 the columns of a chunk; ``.schema(...)`` with some of them reads those alone
    register_views(spark, dir)   the tables of an output as views
    read_table(spark, dir, name) one of them as a DataFrame
    TABLE_SCHEMAS                their columns, by table
    TableError                   tables whose log is damaged, as the two above raise it

Spark imports every top-level module named ``pyspark_*`` when it starts and registers the Data Source named ``DefaultSource``: that is how it finds
the source by itself, on Spark Connect too. So every Spark application that has framegate installed pays for this import: what needs numpy, pyarrow
or a look at the tables is imported when it is first asked for.
"""

import importlib
from typing import TYPE_CHECKING, Final

from framegate.proxy.pipeline.schema import CHUNK_SCHEMA
from framegate.proxy.pipeline.source import FramegateDataSource as DefaultSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from framegate.proxy.pipeline.columns import TABLE_SCHEMAS
    from framegate.proxy.pipeline.delta import TableError
    from framegate.proxy.pipeline.views import read_table, register_views

__all__ = [
    "CHUNK_SCHEMA",
    "TABLE_SCHEMAS",
    "DefaultSource",
    "TableError",
    "read_table",
    "register",
    "register_views",
]

# Imported when asked for; the imports for type checkers above are the same.
_LAZY: Final = {
    "TABLE_SCHEMAS": "framegate.proxy.pipeline.columns",
    "TableError": "framegate.proxy.pipeline.delta",
    "read_table": "framegate.proxy.pipeline.views",
    "register_views": "framegate.proxy.pipeline.views",
}


def register(spark: "SparkSession") -> None:
    """Make ``format("framegate")`` known to this session."""
    spark.dataSource.register(DefaultSource)


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
