"""What the demo shows: a live table while the load runs, and a clock during a wait; plain lines where standard output is no terminal."""

import threading
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from rich.console import Console, Group
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

_LINE_EVERY_S: Final = 2.0
_WAITING_EVERY_S: Final = 10.0
_NOTES_SHOWN: Final = 8


def say(console: Console, text: str) -> None:
    """Print one line as it is."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _live(console: Console, *, plain: bool, **options: Any) -> Live | None:
    """A live display; None on a terminal that cannot show one, or when plain lines are asked for."""
    return Live(console=console, **options) if console.is_terminal and not console.is_dumb_terminal and not plain else None


class Waiting:
    """Shows a line that counts the seconds for the length of a block; in plain lines, one every ``every_s`` seconds. ``text``: what is waited for.
    ``detail``: gives the progress, on another thread. ``plain``: lines, even on a terminal.
    """

    def __init__(
        self, console: Console, text: str, detail: Callable[[], str] = lambda: "", *, plain: bool = False, every_s: float = _WAITING_EVERY_S
    ) -> None:
        self._console, self._text, self._detail, self._every_s = console, text, detail, every_s
        self._started = time.monotonic()
        self._done = threading.Event()
        self._spinner = Spinner("dots")
        self._live = _live(console, plain=plain, refresh_per_second=8, transient=True, get_renderable=self._drawing)
        self._thread = threading.Thread(target=self._repeat, name="waiting", daemon=True)

    def __enter__(self) -> "Waiting":
        if self._live is not None:
            self._live.start()
        else:
            say(self._console, self._text)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self._live is not None:
            self._live.stop()
            say(self._console, self._line(""))
        else:
            self._thread.join()

    def _line(self, detail: str) -> str:
        return f"{self._text}, {time.monotonic() - self._started:.0f} s{f': {detail}' if detail else ''}"

    def _drawing(self) -> Spinner:
        self._spinner.update(text=self._line(self._detail()))
        return self._spinner

    def _repeat(self) -> None:
        while not self._done.wait(self._every_s):
            say(self._console, "  still " + self._line(self._detail()))


class Reading(NamedTuple):
    """The state at one moment: open connections, frames and bytes sent and answered since the start, frames in Spark's tables."""

    elapsed_s: float
    connections: int
    frames: int
    bytes: int
    rows: int


class View:
    """Shows readings and notes; the last state stays on the screen. ``seconds``: how long the load runs. ``plain``: lines, even on a terminal."""

    def __init__(self, console: Console, seconds: float, *, plain: bool = False) -> None:
        self._console, self._seconds = console, seconds
        self._live = _live(console, plain=plain, refresh_per_second=4)
        self._notes: list[str] = []
        self._last: Reading | None = None
        self._cells: dict[str, str] = {"state": "starting"}
        self._printed_at = 0.0

    def __enter__(self) -> "View":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def note(self, text: str) -> None:
        self._notes.append(text)
        if self._live is None:
            say(self._console, f"  * {text}")
        else:
            self._live.update(self._drawing())

    def show(self, reading: Reading) -> None:
        """Show a new reading, with the rates since the one before."""
        before, self._last = self._last or reading, reading
        passed = reading.elapsed_s - before.elapsed_s
        frames_per_s, bytes_per_s = (
            (now - then) / passed if passed > 0 else 0.0 for now, then in ((reading.frames, before.frames), (reading.bytes, before.bytes))
        )
        lag = max(0, reading.frames - reading.rows)
        self._cells = {
            "time": f"{reading.elapsed_s:.0f}/{self._seconds:.0f} s",
            "connections": f"{reading.connections:,}",
            "frames/s": f"{frames_per_s:,.0f}",
            "MB/s": f"{bytes_per_s / 1e6:,.1f}",
            "frames in Spark's tables": f"{reading.rows:,}",
            "lag": f"{lag:,} frames{f' ({lag / frames_per_s:.1f} s)' if frames_per_s else ''}",
        }
        if self._live is not None:
            self._live.update(self._drawing())
        elif time.monotonic() - self._printed_at >= _LINE_EVERY_S:
            self._printed_at = time.monotonic()
            say(self._console, self.line())

    def line(self) -> str:
        """The last reading in one line."""
        return "  ".join(f"{name} {value}" for name, value in self._cells.items())

    def _drawing(self) -> Group:
        table = Table(title="framegate demo", title_justify="left")
        for name in self._cells:
            table.add_column(name, justify="right")
        table.add_row(*self._cells.values())
        return Group(table, *(Text(f"* {note}", overflow="fold") for note in self._notes[-_NOTES_SHOWN:]))
