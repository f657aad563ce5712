"""The end of a demo: Ctrl-C and SIGTERM become exceptions, errors become one line and an exit code; the last lines of a whole run."""

import os
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

import grpc
from rich.console import Console

from framegate.control.demo.processes import ChildError, signal_handlers
from framegate.control.demo.stage import Workspace, WorkspaceError
from framegate.control.demo.view import say

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_MISSING: Final = 2
EXIT_INTERRUPTED: Final = 128 + signal.SIGINT
EXIT_TERMINATED: Final = 128 + signal.SIGTERM


class TerminatedError(BaseException):
    """SIGTERM came. Like KeyboardInterrupt it is no Exception, so that no handler of errors catches it."""


def exit_code(perform: Callable[[], int], *errors: type[Exception]) -> int:
    """The exit code of a demo; an error is printed as one line. ``errors``: further exceptions that mean that the demo failed."""
    failures: tuple[type[Exception], ...] = (ChildError, grpc.RpcError, OSError, *errors)
    try:
        with signal_handlers({signal.SIGTERM: _terminate}):
            return perform()
    except WorkspaceError as error:
        return ended(str(error), EXIT_MISSING)
    except failures as error:
        return ended(" ".join(str(error).split()), EXIT_FAILED)
    except KeyboardInterrupt:
        return ended("interrupted", EXIT_INTERRUPTED)
    except TerminatedError:
        return ended("terminated", EXIT_TERMINATED)


def ended(text: str, code: int) -> int:
    """Print one line on standard error; returns the exit code."""
    print(f"framegate demo: {text}", file=sys.stderr)
    return code


def _terminate(_number: int, _frame: FrameType | None) -> NoReturn:
    raise TerminatedError


def conclude(console: Console, place: Workspace, checks: Sequence[tuple[str, bool]], notes: Iterable[str] = ()) -> bool:
    """Print the checks (a text, and whether it is good), the notes and the last lines of a demo; whether every check is good."""
    good = all(fine for _, fine in checks)
    look = f"print(DeltaTable('{place.tables}/frames').to_pandas(columns=['listener', 'direction']).value_counts())"
    lines = [
        *(f"{'ok   ' if fine else 'WRONG'} {text}" for text, fine in checks),
        *notes,
        f"Delta tables:   {place.tables}  (frames, requests, kafka_partitions, groups, connections, gaps, traffic_by_minute, completeness)",
        f'pandas:         {_typed(Path(sys.executable))} -c "from deltalake import DeltaTable; {look}"',
        f"tap's log:      {program()} tap verify {place.tap}    logs of every process: {place.logs}",
        f"try next:       {program()} check --config {place.configuration}",
        "                deploy/examples/framegate.yaml, the manual of every key",
        "RESULT: everything equal, everything seen" if good else "RESULT: NOT everything was equal or seen: see the lines marked WRONG",
    ]
    for line in lines:
        say(console, line)
    return good


def program() -> str:
    """How the user types the command ``framegate``: its name if the user's own PATH finds this very program, else its path."""
    started = Path(sys.argv[0])
    running = started if started.name == "framegate" else Path(sys.executable).with_name("framegate")
    if not running.is_file():
        return f"{_typed(Path(sys.executable))} -m framegate.control.cli"
    # make run puts the environment's programs first on PATH, for itself
    found = shutil.which("framegate", path=os.environ.get("FRAMEGATE_USER_PATH", os.environ.get("PATH", os.defpath)))
    return "framegate" if found is not None and Path(found).samefile(running) else _typed(running)


def _typed(path: Path) -> str:
    """A path as it is typed: relative if it lies below the working directory."""
    absolute, here = path.absolute(), Path.cwd()
    if not absolute.is_relative_to(here):
        return shlex.quote(str(absolute))
    below = str(absolute.relative_to(here))
    return shlex.quote(below if "/" in below else f"./{below}")
