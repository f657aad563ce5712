"""The demo's child processes: each has a session of its own, its output is read as JSON lines, and it ends with the demo; and signal handlers."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

JAVA_VERSION: Final = 17  # the oldest Java that runs Spark and a broker
# Linux ends the child when the demo is killed (PR_SET_PDEATHSIG = 1); elsewhere nothing happens. The setting survives the exec.
_BOOTSTRAP: Final = (
    "import ctypes, os, signal, sys\n"
    "prctl = getattr(ctypes.CDLL(None), 'prctl', None)\n"
    "prctl and prctl(1, signal.SIGTERM)\n"
    "os.execvp(sys.argv[1], sys.argv[1:])"
)
_TAIL_LINES: Final = 12


class ChildError(Exception):
    """A child process ended, or did not answer in time."""


def find_java() -> str | None:
    """The path of a Java runtime that is new enough, from ``JAVA_HOME`` if that is set, else from the path; None when there is none."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(os.path.join(home, "bin", "java")) if home else shutil.which("java")
    if java is None:
        return None
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    match = re.search(r'version "(\d+)', said)
    return java if match is not None and int(match[1]) >= JAVA_VERSION else None


def ending_with_us(command: Sequence[str]) -> list[str]:
    """The command, started so that Linux sends it SIGTERM when the process that started it has ended, even by SIGKILL."""
    return [sys.executable, "-I", "-S", "-c", _BOOTSTRAP, *command]


class Child:
    """A process with JSON lines on its standard output, which a thread reads. Other lines, and standard error, go to the file ``log``. ``command``,
    ``environment``: of the process; the environment is added to that of this process. ``on_row``: called on the reading thread with every row that is
    no reply.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        on_row: Callable[[dict[str, Any]], None] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.log = log
        self.rows: list[dict[str, Any]] = []
        self._on_row = on_row
        self._arrived = threading.Condition()
        self._replies: dict[int, dict[str, Any]] = {}
        self._next_id = 0
        self._ended = False
        self._log: IO[bytes] = log.open("ab")
        self._process = subprocess.Popen(
            ending_with_us(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
        self._thread = threading.Thread(target=self._read, name=f"{name}-output", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def wait_for(self, wanted: Callable[[dict[str, Any]], bool], timeout_s: float) -> dict[str, Any]:
        """The first row, past or future, that is wanted. Raises ChildError: the process ended without one, or the time passed."""
        with self._arrived:
            self._arrived.wait_for(lambda: self._ended or any(map(wanted, self.rows)), timeout_s)
            found = next(filter(wanted, self.rows), None)
        if found is None:
            raise ChildError(f"{self.name} {'ended' if self._ended else 'said nothing'}: {self.tail()}")
        return found

    def wait_for_event(self, event: str, timeout_s: float) -> dict[str, Any]:
        return self.wait_for(lambda row: row.get("event") == event, timeout_s)

    def ask(self, do: str, timeout_s: float = 10.0, **fields: Any) -> dict[str, Any]:
        self._next_id += 1
        number = self._next_id
        self.send({"id": number, "do": do, **fields})
        with self._arrived:
            self._arrived.wait_for(lambda: number in self._replies or self._ended, timeout_s)
            if number not in self._replies:
                raise ChildError(f"{self.name} did not answer {do}: {self.tail()}")
            return self._replies.pop(number)

    def send(self, row: dict[str, Any]) -> None:
        assert self._process.stdin is not None, "the pipe is made at start"
        try:
            self._process.stdin.write(json.dumps(row).encode() + b"\n")
            self._process.stdin.flush()
        except (OSError, ValueError) as error:  # ValueError: the pipe was closed on our side
            raise ChildError(f"{self.name} is gone: {self.tail()}") from error

    def close_input(self) -> None:
        """Close the process's standard input, which ends the demo's own processes."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):  # it ended before it read everything
                self._process.stdin.close()

    def terminate(self) -> None:
        if self.running:
            self._process.terminate()

    def wait(self, timeout_s: float) -> int:
        """Wait for the end; after the timeout, kill the process and its session. Returns the exit code; negative for a signal."""
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            code = self._process.wait()
        self._thread.join(5.0)
        self.close_input()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._log.close()
        return code

    def end_at_once(self, patience_s: float = 2.0) -> None:
        """Send SIGTERM, then SIGTERM again, on which framegate's programs stop at once, then SIGKILL."""
        for _ in range(2):
            self.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(patience_s)
                break
        self.wait(patience_s)

    def tail(self) -> str:
        """The last lines of its log."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return " | ".join(lines[-_TAIL_LINES:]) or "no output"

    def _read(self) -> None:
        assert self._process.stdout is not None, "the pipe is made at start"
        for line in self._process.stdout:
            try:
                row = json.loads(line)
            except ValueError:
                row = None
            self._take(row if isinstance(row, dict) else {}, line)
        with self._arrived:
            self._ended = True
            self._arrived.notify_all()

    def _take(self, row: dict[str, Any], line: bytes) -> None:
        event = row.get("event")
        if event not in ("reply", "stats"):  # replies and stats come many times a second
            self._log.write(line)
            self._log.flush()
        with self._arrived:
            if event == "reply":
                self._replies[row["id"]] = row
            elif row and event != "stats":
                self.rows.append(row)
            self._arrived.notify_all()
        if row and event != "reply" and self._on_row is not None:
            self._on_row(row)


@contextlib.contextmanager
def signals_ignored() -> Iterator[None]:
    """Ignore SIGINT and SIGTERM for the length of a block, which must be short: it cleans up."""
    with signal_handlers({signal.SIGINT: signal.SIG_IGN, signal.SIGTERM: signal.SIG_IGN}):
        yield


@contextlib.contextmanager
def signal_handlers(wanted: "dict[signal.Signals, signal._HANDLER]") -> Iterator[None]:
    """Set other handlers for the length of a block; only the main thread can set them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number, handler in wanted.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
