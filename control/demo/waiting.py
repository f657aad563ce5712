"""What is shown while there is nothing to see: what is waited for, and that time passes."""

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner

__all__ = ["Waiting", "moves"]

_PLAIN_EVERY_S: Final = 10.0


def moves(console: Console, *, plain: bool) -> bool:
    """Whether what is shown may be drawn anew: on a terminal that can, unless lines are asked for."""
    return console.is_terminal and not console.is_dumb_terminal and not plain


class Waiting:
    """For the length of a block, a line that counts the seconds; where nothing can move, a line now and then.

    Args:
        console: where to.
        text: what is waited for.
        detail: how far it is; asked on a thread of its own.
        plain: lines, even on a terminal.
        every_s: between lines.
    """

    def __init__(
        self, console: Console, text: str, detail: Callable[[], str] | None = None, *, plain: bool = False, every_s: float = _PLAIN_EVERY_S
    ) -> None:
        self._console = console
        self._text = text
        self._detail = detail
        self._every_s = every_s
        self._started = time.monotonic()
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        self._spinner = Spinner("dots")
        self._live: Live | None = None
        if moves(console, plain=plain):
            self._live = Live(console=console, refresh_per_second=8, transient=True, get_renderable=self._drawing)

    def __enter__(self) -> "Waiting":
        self._started = time.monotonic()
        if self._live is not None:
            self._live.start()
        else:
            self._print(self._text)
            self._thread = threading.Thread(target=self._repeat, name="waiting", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._done.set()
        if self._live is not None:
            self._live.stop()
            self._print(self._line(""))
        if self._thread is not None:
            self._thread.join()

    def _line(self, detail: str) -> str:
        return f"{self._text}, {time.monotonic() - self._started:.0f} s{f': {detail}' if detail else ''}"

    def _drawing(self) -> Spinner:
        self._spinner.update(text=self._line(self._detail() if self._detail is not None else ""))
        return self._spinner

    def _repeat(self) -> None:
        while not self._done.wait(self._every_s):
            self._print("  still " + self._line(self._detail() if self._detail is not None else ""))

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)
