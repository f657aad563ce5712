"""Asks an output folder's tables in SQL, for callers that have no Spark of their own.

``python -m framegate.proxy.pipeline.query DIR`` reads a JSON object of names and SELECT statements from standard input and writes one of names and
rows, each an object, to standard output. The views are those of ``views.register_views``.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from framegate.proxy.pipeline.session import local_session
from framegate.proxy.pipeline.views import register_views

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ask", "main"]


def ask(spark: "SparkSession", output: Path, statements: Mapping[str, str]) -> dict[str, list[dict[str, Any]]]:
    """The rows of each statement.

    Args:
        spark: any session that can read the folder.
        output: the folder of the tables.
        statements: SQL by name; results must be small, they come to the driver.
    """
    register_views(spark, output)
    return {name: [row.asDict() for row in spark.sql(statement).collect()] for name, statement in statements.items()}


def main(arguments: list[str]) -> int:
    """Answer the statements of standard input."""
    statements = json.load(sys.stdin)
    with local_session("framegate query") as spark:
        print(json.dumps(ask(spark, Path(arguments[0]), statements), default=str))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
