"""What is shown while there is nothing to see: a line that moves, or lines."""

import io
import threading

import pytest
from rich.console import Console

from control.demo.waiting import Waiting, moves


class Output(io.StringIO):
    """Says when it holds so many lines."""

    def __init__(self, wanted: int) -> None:
        super().__init__()
        self.there = threading.Event()
        self._wanted = wanted

    def write(self, text: str) -> int:
        written = super().write(text)
        if self.getvalue().count("\n") >= self._wanted:
            self.there.set()
        return written


def test_where_nothing_moves_there_is_a_line_now_and_then() -> None:
    out = Output(3)
    with Waiting(Console(file=out), "asking [Spark]", lambda: "2 of 3", every_s=0.01):
        assert out.there.wait(10)
    lines = out.getvalue().splitlines()
    assert lines[0] == "asking [Spark]"
    assert lines[1:3] == ["  still asking [Spark], 0 s: 2 of 3"] * 2


def test_what_is_short_is_one_line() -> None:
    out = io.StringIO()
    with Waiting(Console(file=out), "asking"):
        pass
    assert out.getvalue() == "asking\n"


def test_a_terminal_counts_the_seconds_and_keeps_the_last() -> None:
    asked = threading.Event()

    def detail() -> str:
        asked.set()
        return "2 of 3"

    out = io.StringIO()
    with Waiting(Console(file=out, force_terminal=True, width=80, _environ={"TERM": "xterm"}), "asking", detail):
        assert asked.wait(10)
    assert "asking, 0 s: 2 of 3" in out.getvalue()
    assert out.getvalue().endswith("asking, 0 s\n")


@pytest.mark.parametrize(
    ("terminal", "term", "plain", "moving"),
    [(True, "xterm", False, True), (True, "xterm", True, False), (True, "dumb", False, False), (False, "xterm", False, False)],
)
def test_only_a_terminal_that_can_move_moves(terminal: bool, term: str, plain: bool, moving: bool) -> None:
    console = Console(file=io.StringIO(), force_terminal=terminal, _environ={"TERM": term})
    assert moves(console, plain=plain) is moving
