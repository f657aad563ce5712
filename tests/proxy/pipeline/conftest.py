from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from proxy.pipeline.session import local_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    """One session for the whole run: UTC, two partitions."""
    fast_start = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    with local_session("framegate tests", cores=2, memory="1g", settings=fast_start) as session:
        yield session
