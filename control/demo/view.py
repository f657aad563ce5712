"""The demo's live view: a small table that is drawn anew on a terminal, plain lines elsewhere."""

import dataclasses
import time
from types import TracebackType
from typing import Any, Final

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from control.demo.waiting import moves

__all__ = ["Reading", "View"]

_PLAIN_EVERY_S: Final = 2.0
_NOTES_SHOWN: Final = 8


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What there is to see at one moment.

    Attributes:
        elapsed_s: since the load began.
        connections: open through the proxy.
        frames: sent and answered since the start.
        bytes: of those.
        rows: frames in Spark's tables.
    """

    elapsed_s: float
    connections: int
    frames: int
    bytes: int
    rows: int


@dataclasses.dataclass(frozen=True, slots=True)
class _Figures:
    """A reading and the rates since the one before."""

    reading: Reading
    frames_per_s: float
    bytes_per_s: float

    @property
    def lag_text(self) -> str:
        lag = max(0, self.reading.frames - self.reading.rows)
        seconds = f" ({lag / self.frames_per_s:.1f} s)" if self.frames_per_s else ""
        return f"{lag:,} frames{seconds}"


class View:
    """Shows readings and notes; leaving the context leaves the last state on the screen.

    Args:
        console: where to.
        seconds: how long the load runs.
        plain: lines, even on a terminal.
    """

    def __init__(self, console: Console, seconds: float, *, plain: bool = False) -> None:
        self._console = console
        self._seconds = seconds
        self._live = Live(console=console, refresh_per_second=4) if moves(console, plain=plain) else None
        self._notes: list[str] = []
        self._figures: _Figures | None = None
        self._printed_at = 0.0

    def __enter__(self) -> "View":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def note(self, text: str) -> None:
        """Something happened."""
        self._notes.append(text)
        if self._live is None:
            self._console.print(f"  * {text}", markup=False, highlight=False, soft_wrap=True)
        else:
            self._live.update(self._drawing())

    def show(self, reading: Reading) -> None:
        """A new reading."""
        self._figures = self._figures_of(reading)
        if self._live is not None:
            self._live.update(self._drawing())
        elif time.monotonic() - self._printed_at >= _PLAIN_EVERY_S:
            self._printed_at = time.monotonic()
            self._console.print(self.line(), markup=False, highlight=False, soft_wrap=True)

    def line(self) -> str:
        """The last reading in one line."""
        return "  ".join(f"{name} {value}" for name, value in self._cells())

    def _figures_of(self, reading: Reading) -> _Figures:
        before = self._figures.reading if self._figures is not None else None
        passed = 0.0 if before is None else reading.elapsed_s - before.elapsed_s
        if before is None or passed <= 0:
            return _Figures(reading, 0.0, 0.0)
        return _Figures(reading, (reading.frames - before.frames) / passed, (reading.bytes - before.bytes) / passed)

    def _cells(self) -> list[tuple[str, str]]:
        figures = self._figures
        if figures is None:
            return [("state", "starting")]
        reading = figures.reading
        return [
            ("time", f"{reading.elapsed_s:.0f}/{self._seconds:.0f} s"),
            ("connections", f"{reading.connections:,}"),
            ("frames/s", f"{figures.frames_per_s:,.0f}"),
            ("MB/s", f"{figures.bytes_per_s / 1e6:,.1f}"),
            ("frames in Spark's tables", f"{reading.rows:,}"),
            ("lag", figures.lag_text),
        ]

    def _drawing(self) -> Any:
        cells = self._cells()
        table = Table(title="framegate demo", title_justify="left")
        for name, _ in cells:
            table.add_column(name, justify="right")
        table.add_row(*(value for _, value in cells))
        return Group(table, *(Text(f"* {note}", overflow="fold") for note in self._notes[-_NOTES_SHOWN:]))
