"""The last lines of a demo: the verdict, where things lie, what to try next."""

from rich.console import Console

from control.demo.program import program, python
from control.demo.stage import Stage

__all__ = ["print_closing"]


def print_closing(console: Console, stage: Stage, *, good: bool, again: str) -> None:
    """Print them.

    Args:
        console: where to.
        stage: of the demo that ended.
        good: whether everything was equal and seen.
        again: options of another demo to try.
    """
    place = stage.workspace
    look = f"SparkSession.builder.getOrCreate().read.parquet('{place.tables}/frames').groupBy('listener', 'direction').count().show()"
    lines = [
        f"Parquet tables: {place.tables}  (frames, requests, gaps, traffic_by_minute, completeness)",
        f'PySpark:        {python()} -c "from pyspark.sql import SparkSession; {look}"',
        f"tap's log:      {program()} tap verify {place.tap}    logs of every process: {place.logs}",
        f"try next:       {program()} demo {again}",
        f"                {program()} check --config {place.configuration}",
        "                deploy/examples/framegate.yaml, the manual of every key",
        "RESULT: everything equal, everything seen" if good else "RESULT: NOT everything was equal or seen: see the lines marked WRONG",
    ]
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
