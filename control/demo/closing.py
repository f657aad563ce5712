"""The last lines of a demo: the checks, where files are, what to type next, the result."""

import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console

from framegate.control.demo.view import say
from framegate.control.demo.workspace import Workspace

__all__ = ["conclude", "program"]


def conclude(console: Console, place: Workspace, checks: Sequence[tuple[str, bool]], notes: Iterable[str] = ()) -> bool:
    """Print them; whether every check is good.

    Args:
        console: where to.
        place: of the demo that ended.
        checks: a text, and whether it is good.
        notes: lines between checks and result.
    """
    good = all(fine for _, fine in checks)
    look = f"SparkSession.builder.getOrCreate().read.parquet('{place.tables}/frames').groupBy('listener', 'direction').count().show()"
    lines = [
        *(f"{'ok   ' if fine else 'WRONG'} {text}" for text, fine in checks),
        *notes,
        f"Parquet tables: {place.tables}  (frames, requests, gaps, traffic_by_minute, completeness)",
        f'PySpark:        {_typed(Path(sys.executable))} -c "from pyspark.sql import SparkSession; {look}"',
        f"tap's log:      {program()} tap verify {place.tap}    logs of every process: {place.logs}",
        f"try next:       {program()} check --config {place.configuration}",
        "                deploy/examples/framegate.yaml, the manual of every key",
        "RESULT: everything equal, everything seen" if good else "RESULT: NOT everything was equal or seen: see the lines marked WRONG",
    ]
    for line in lines:
        say(console, line)
    return good


def program() -> str:
    """The command ``framegate``: by name where the user's own PATH finds this very program under it, else by its path."""
    started = Path(sys.argv[0])
    running = started if started.name == "framegate" else Path(sys.executable).with_name("framegate")
    if not running.is_file():
        return f"{_typed(Path(sys.executable))} -m framegate.control.cli"
    # make run puts the environment's programs first on PATH, for itself
    found = shutil.which("framegate", path=os.environ.get("FRAMEGATE_USER_PATH", os.environ.get("PATH", os.defpath)))
    return "framegate" if found is not None and Path(found).samefile(running) else _typed(running)


def _typed(path: Path) -> str:
    """A path as it is typed: from the working directory when it lies below that."""
    absolute, here = path.absolute(), Path.cwd()
    if not absolute.is_relative_to(here):
        return shlex.quote(str(absolute))
    below = str(absolute.relative_to(here))
    return shlex.quote(below if "/" in below else f"./{below}")
