"""What Spark finds by itself: it imports every top-level module named ``pyspark_*`` and registers the Data Source named ``DefaultSource``.

The wheel installs this module at its top, so ``spark.readStream.format("framegate")`` needs no further word, on Spark Connect too. Where a
checkout is on the path instead of the wheel, call ``register(spark)`` once. Kept light: every Spark application that has framegate installed
pays for this import.
"""

from typing import TYPE_CHECKING

from proxy.pipeline.source import FramegateDataSource as DefaultSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["DefaultSource", "register"]


def register(spark: "SparkSession") -> None:
    """Make ``format("framegate")`` known to this session."""
    spark.dataSource.register(DefaultSource)
