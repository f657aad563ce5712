"""The pipeline's job as a process of its own, and its tables as they are read without Spark."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from framegate import proxy
from framegate.proxy.pipeline.place import place_of

JOB = Path(__file__).parents[1] / "proxy" / "pipeline" / "job.py"
WAIT_S = 120


def until(ready: Callable[[], Any], what: str, job: "subprocess.Popen[str] | None" = None) -> Any:
    """What ``ready`` gives, as soon as it is true; a job that ended meanwhile is a failure."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        found = ready()
        if found:
            return found
        assert job is None or job.poll() is None, f"the job ended while waiting for {what}: {job.stderr.read() if job.stderr else ''}"
        time.sleep(0.02)
    raise AssertionError(f"no {what} within {WAIT_S} s")


def environment() -> dict[str, str]:
    """Of a process that runs the same build."""
    return {**os.environ, "PYTHONPATH": str(Path(proxy.__file__).parents[2])}


@contextlib.contextmanager
def running(**told: Any) -> Iterator["subprocess.Popen[str]"]:
    """The job in a process group of its own, which is killed whole in the end. Told nothing, it starts Spark and waits for ``tell``."""
    job = subprocess.Popen(
        [sys.executable, str(JOB), *([json.dumps(told)] if told else [])],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        with job:
            try:
                yield job
            finally:
                if job.returncode != -signal.SIGKILL:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(job.pid, signal.SIGKILL)
    finally:
        job.wait(10)


def tell(job: "subprocess.Popen[str]", **told: Any) -> None:
    assert job.stdin is not None
    job.stdin.write(json.dumps(told) + "\n")
    job.stdin.flush()


def table(output: Path | str, name: str, *columns: str) -> list[dict[str, Any]]:
    """Some columns of a table, or all, read without Spark."""
    rows: list[dict[str, Any]] = DeltaTable(place_of(output).address(name)).to_pyarrow_table(columns=list(columns) or None).to_pylist()
    return rows
