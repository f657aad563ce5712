"""What the demo shows, in lines: the state while the load runs, and what is waited for."""

import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from rich.console import Console

_LINE_EVERY_S: Final = 2.0
_WAITING_EVERY_S: Final = 10.0


def say(console: Console, text: str) -> None:
    """Print one line as it is."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


class Waiting:
    """Prints what is waited for during a block, and again every ``every_s`` seconds. ``detail``: gives the progress, on another thread."""

    def __init__(self, console: Console, text: str, detail: Callable[[], str] = lambda: "", *, every_s: float = _WAITING_EVERY_S) -> None:
        self._console, self._text, self._detail, self._every_s = console, text, detail, every_s
        self._started = time.monotonic()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._repeat, name="waiting", daemon=True)

    def __enter__(self) -> "Waiting":
        say(self._console, self._text)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _repeat(self) -> None:
        while not self._done.wait(self._every_s):
            detail = self._detail()
            say(self._console, f"  still {self._text}, {time.monotonic() - self._started:.0f} s{f': {detail}' if detail else ''}")


class Reading(NamedTuple):
    """The state at one moment: open connections, frames and bytes sent and answered since the start, frames in Spark's tables."""

    elapsed_s: float
    connections: int
    frames: int
    bytes: int
    rows: int


class View:
    """Prints readings, one every two seconds. ``seconds``: how long the load runs."""

    def __init__(self, console: Console, seconds: float) -> None:
        self._console, self._seconds = console, seconds
        self._last: Reading | None = None
        self._printed_at = 0.0

    def note(self, text: str) -> None:
        say(self._console, f"  * {text}")

    def show(self, reading: Reading) -> None:
        """Print a new reading, with the rates since the one printed before."""
        if time.monotonic() - self._printed_at < _LINE_EVERY_S:
            return
        before, self._last, self._printed_at = self._last or reading, reading, time.monotonic()
        passed = reading.elapsed_s - before.elapsed_s
        frames_per_s, bytes_per_s = (
            (now - then) / passed if passed > 0 else 0.0 for now, then in ((reading.frames, before.frames), (reading.bytes, before.bytes))
        )
        lag = max(0, reading.frames - reading.rows)
        cells = {
            "time": f"{reading.elapsed_s:.0f}/{self._seconds:.0f} s",
            "connections": f"{reading.connections:,}",
            "frames/s": f"{frames_per_s:,.0f}",
            "MB/s": f"{bytes_per_s / 1e6:,.1f}",
            "frames in Spark's tables": f"{reading.rows:,}",
            "lag": f"{lag:,} frames{f' ({lag / frames_per_s:.1f} s)' if frames_per_s else ''}",
        }
        say(self._console, "  ".join(f"{name} {value}" for name, value in cells.items()))
