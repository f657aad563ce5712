"""The regression guard: an earlier commit's build takes turns with this one in the same run, so that both have the same machine at the same time."""

import os
import subprocess
import sys
from pathlib import Path

from candidates import Framegate, Place, UnavailableError
from report import Summaries

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".cache" / "bench" / "before"
TOLERANCE = 1.1


class FramegateBefore(Framegate):
    """The build that ``build`` made, with the configuration of the present one."""

    name = "framegate-before"

    @classmethod
    def version(cls, place: Place) -> str:
        return f"{super().version(place)}, {_git('log', '-1', '--format=%h of %cs', folder=FOLDER)}"

    @staticmethod
    def program() -> str:
        program = FOLDER / ".venv" / "bin" / "framegate"
        if not program.exists():
            raise UnavailableError("--before COMMIT builds it")
        return str(program)


def build(commit: str) -> None:
    """Compile a commit in a work tree of its own, unless that was done before: some minutes. Raises CalledProcessError."""
    _git("worktree", "prune")
    if (FOLDER / ".git").exists():  # without it, git would change the work tree around the folder
        _git("checkout", "-q", "--force", "--detach", _git("rev-parse", commit), folder=FOLDER)
    else:
        _git("worktree", "add", "-q", "--force", "--detach", str(FOLDER), commit)
    cache = FOLDER / ".cache"
    cache.mkdir(exist_ok=True)
    for name in ("uv", "uv-cache"):
        if (ROOT / ".cache" / name).exists() and not (cache / name).exists():
            (cache / name).symlink_to(ROOT / ".cache" / name)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FRAMEGATE_", "PYTHON", "VIRTUAL_ENV"))}
    command = [os.path.realpath(sys.executable), "deploy/environment.py", "run", "--wish", "compiler", "--", "true"]
    subprocess.run(command, cwd=FOLDER, env={**kept, "FRAMEGATE_REQUIRE_COMPILED": "1"}, check=True)


def words(summaries: Summaries) -> list[str]:
    """The guard's lines: each load that both builds had, and how many got worse; none if there was no build before."""
    times: dict[str, float] = {}
    for (protocol, shape, candidate), row in summaries.items():
        before = summaries.get((protocol, shape, FramegateBefore.name))
        if candidate == Framegate.name and before is not None:
            times[f"{protocol} {shape}"] = row.cpu_us / before.cpu_us
    worse = [load for load, time in times.items() if time > TOLERANCE]
    lines = [f"guard: {'WORSE: ' if load in worse else ''}{load}: {time:.2f} of the time before" for load, time in times.items()]
    return [*lines, f"guard: {len(worse) or 'none'} of {len(times)} loads got worse by more than {TOLERANCE - 1:.0%}"] if times else []


def _git(*words: str, folder: Path = ROOT) -> str:
    return subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True, text=True).stdout.strip()
