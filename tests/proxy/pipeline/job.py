"""Runs the pipeline's job as a process of its own, for the tests of ``run``; with a pause, it stands still where it is told to be killed.

Told by a JSON object: source, output, and perhaps available_now, max_bytes_per_trigger, pause_from (a batch number), pause_at (a place),
marker (a file that says the place was reached) and pause_s. It is the argument; without one, it starts Spark at once (one task slot) and then reads
the object from standard input: the seconds that Spark takes to start pass while the job before is still at work.
"""

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from framegate.proxy.pipeline.run import run_pipeline
from framegate.proxy.pipeline.session import local_session
from framegate.proxy.pipeline.settings import PipelineSettings
from framegate.proxy.pipeline.tables import TableWriter

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

FAST_START = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


class PausingWriter(TableWriter):
    """Stands still at a place of the first batch from ``pause_from`` on."""

    def __init__(self, output: str, pause_from: int, pause_at: str, marker: str, pause_s: float = 120.0) -> None:
        super().__init__(output)
        self._from = pause_from
        self._at = pause_at
        self._marker = Path(marker)
        self._pause_s = pause_s
        self._batch = -1
        tables: Any = self._tables
        commit = tables.commit

        def commit_and_pause(table: str, *facts: Any) -> int:
            self._pause(f"before {table}")
            rows: int = commit(table, *facts)
            self._pause(f"committed {table}")
            return rows

        tables.commit = commit_and_pause
        write_state = tables.write_state

        def write_state_and_pause(*facts: Any) -> None:
            write_state(*facts)
            self._pause("written state")

        tables.write_state = write_state_and_pause

    def __call__(self, results: "DataFrame", batch: int) -> None:
        self._batch = batch
        self._pause("begun")
        super().__call__(results, batch)
        self._pause("published")

    def _of_kafka(self, *facts: Any) -> "dict[str, pa.Table]":
        self._pause("written frames")
        return super()._of_kafka(*facts)

    def _pause(self, place: str) -> None:
        if self._batch >= self._from and place == self._at:
            self._marker.write_text(str(self._batch))
            time.sleep(self._pause_s)


def main(told: dict[str, Any]) -> int:
    """Run the job as told."""
    pause = {key: told.pop(key) for key in ("pause_from", "pause_at", "marker", "pause_s") if key in told}
    settings = PipelineSettings(source=told.pop("source"), output=told.pop("output"), trigger_ms=50, spark=FAST_START, **told)
    if not pause:
        return run_pipeline(settings)
    return run_pipeline(settings, make_writer=lambda output: PausingWriter(output, **pause))


def main_warmed() -> int:
    """Run the job as told later, in the session that is there by then."""
    with local_session("framegate pipeline", cores=1, settings=FAST_START) as spark:
        spark.range(1).count()
        return main({**json.loads(sys.stdin.readline()), "cores": 1})


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])) if len(sys.argv) > 1 else main_warmed())
