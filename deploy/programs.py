"""Builds programs once, into a cache outside of the checkout: one process at a time, each step with a clock and a log."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import environment

if TYPE_CHECKING:
    import contextlib

OLDEST_GO = (1, 26)
STEP_S = 3600.0


class ProgramError(Exception):
    """A step failed; the message names it and has the last lines of its output."""


def cache_directory(name: str) -> Path:
    """``$XDG_CACHE_HOME/framegate/<name>``, by default below ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "framegate" / name


def go() -> str | None:
    """The path of ``go``, if it is new enough: on PATH, or where Go's archive is unpacked."""
    found = shutil.which("go", path=os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/local/go/bin")))
    if found is None:
        return None
    said = subprocess.run([found, "version"], capture_output=True, text=True, check=False).stdout
    version = re.search(r"go(\d+)\.(\d+)", said)
    return found if version and (int(version[1]), int(version[2])) >= OLDEST_GO else None


class Workshop:
    """A folder of the cache in which programs are built; they are installed into its ``bin``.

    Args:
        folder: created if it does not exist.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir(parents=True, exist_ok=True)
        places = {"GOPATH": folder / "go", "GOCACHE": folder / "gocache", "GOBIN": self.bin}
        options = {"GOFLAGS": "-mod=mod -buildvcs=false -modcacherw", "GOTOOLCHAIN": "local", "CGO_ENABLED": "0"}
        self._go_environment = dict(os.environ, **{name: str(place) for name, place in places.items()}, **options)

    def unmade(self, names: list[str]) -> list[str]:
        """The programs that are not built yet."""
        return [name for name in names if not os.path.exists(self.bin / name)]

    def alone(self) -> contextlib.AbstractContextManager[None]:
        """Let only one process at a time build here; others wait, with a clock."""
        return environment.locked(self.folder / "lock", f"waiting for another process that works in {self.folder}")

    def go(self, words: list[str], text: str, folder: Path | None = None) -> str:
        """Run Go with its modules and results in this folder; returns its standard output. Raises ProgramError: there is no Go, or it failed."""
        return self.go_tool(["go", *words], text, folder)

    def go_tool(self, command: list[str], text: str, folder: Path | None = None) -> str:
        """The same for a program that runs Go."""
        program = go()
        if program is None:
            raise ProgramError(f"{text}: needs Go {OLDEST_GO[0]}.{OLDEST_GO[1]} or newer")
        path = os.path.dirname(program) + os.pathsep + os.environ.get("PATH", os.defpath)
        return self.run(command, text, folder, dict(self._go_environment, PATH=path))

    def run(self, command: list[str], text: str, folder: Path | None = None, variables: dict[str, str] | None = None) -> str:
        """Run one step; returns its standard output. Its standard error is in ``build.log``.

        Args:
            command: program and arguments.
            text: the step, for messages.
            folder: working directory; None: the workshop's folder.
            variables: its environment; None: that of this process.

        Raises ProgramError: it failed, or took longer than an hour.
        """
        started = time.monotonic()
        log, output = self.folder / "build.log", self.folder / "output"
        with log.open("a") as errors, output.open("w") as said:
            begun = errors.tell()
            process = subprocess.Popen(
                command, cwd=folder or self.folder, env=variables, stdin=subprocess.DEVNULL, stdout=said, stderr=errors, start_new_session=True
            )

            def ended(seconds: float) -> bool:
                return environment.ends_within(process, seconds) or time.monotonic() - started > STEP_S

            try:
                environment.wait_with_clock(ended, text)
            finally:
                if process.poll() is None:
                    environment.end_session(process)
        if process.returncode:
            with log.open() as errors:
                errors.seek(begun)
                last = errors.read().splitlines()[-5:] or output.read_text().splitlines()[-5:]
            raise ProgramError(f"{text} failed: {' | '.join(last)}")
        environment.say(f"{text}: {time.monotonic() - started:.0f} s")
        return output.read_text()

    def forget(self, *names: str) -> None:
        """Remove folders that are not needed any more."""
        for name in names:
            shutil.rmtree(self.folder / name, ignore_errors=True)
