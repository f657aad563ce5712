"""What to type for this very program, in the shell of whoever started it."""

import os
import shlex
import shutil
import sys
from pathlib import Path

__all__ = ["program", "python"]


def program() -> str:
    """The command ``framegate``: by name where the user's own PATH finds this very program under it, else by its path."""
    started = Path(sys.argv[0])
    running = started if started.name == "framegate" else Path(sys.executable).with_name("framegate")
    if not running.is_file():
        return f"{python()} -m control.cli"
    # make run puts the environment's programs first on PATH, for itself
    found = shutil.which("framegate", path=os.environ.get("FRAMEGATE_USER_PATH", os.environ.get("PATH", os.defpath)))
    return "framegate" if found is not None and Path(found).samefile(running) else _typed(running)


def python() -> str:
    """The interpreter that has our packages, by its path."""
    return _typed(Path(sys.executable))


def _typed(path: Path) -> str:
    """A path as it is typed: from the working directory when it lies below that."""
    absolute, here = path.absolute(), Path.cwd()
    if not absolute.is_relative_to(here):
        return shlex.quote(str(absolute))
    below = str(absolute.relative_to(here))
    return shlex.quote(below if "/" in below else f"./{below}")
