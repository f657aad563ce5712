"""What the demo shows: plain lines or something that moves, rates between readings, a clock during a wait."""

import io
import time
from collections.abc import Callable

from rich.console import Console

from framegate.control.demo.view import Reading, View, Waiting

XTERM = {"TERM": "xterm"}


def reading(elapsed_s: float, frames: int, rows: int) -> Reading:
    return Reading(elapsed_s=elapsed_s, connections=32, frames=frames, bytes=frames * 300, rows=rows)


def until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_rates_and_lag_come_from_two_readings_in_plain_lines() -> None:
    out = io.StringIO()
    with View(Console(file=out), 60) as view:
        assert view.line() == "state starting"
        view.show(reading(1.0, 40_000, 0))
        view.show(reading(3.0, 120_000, 80_000))
        view.note("something [odd] happened")
    assert view.line() == ("time 3/60 s  connections 32  frames/s 40,000  MB/s 12.0  frames in Spark's tables 80,000  lag 40,000 frames (1.0 s)")
    assert out.getvalue().splitlines() == [
        "time 1/60 s  connections 32  frames/s 0  MB/s 0.0  frames in Spark's tables 0  lag 40,000 frames",
        "  * something [odd] happened",
    ]


def test_a_terminal_gets_a_table_and_the_last_notes() -> None:
    out = io.StringIO()
    with View(Console(file=out, force_terminal=True, width=120, _environ=XTERM), 60) as view:
        for number in range(20):
            view.note(f"note {number}")
        view.show(reading(1.0, 0, 0))
    last = out.getvalue().rpartition("framegate demo")[2]
    assert ("note 19" in last, "note 5" in last) == (True, False)


def test_only_a_terminal_that_can_be_drawn_on_is_drawn_on() -> None:
    for terminal, environment, plain, moving in (
        (True, XTERM, False, True),
        (True, XTERM, True, False),
        (True, {"TERM": "dumb"}, False, False),
        (False, XTERM, False, False),
    ):
        out = io.StringIO()
        with View(Console(file=out, force_terminal=terminal, _environ=environment), 60, plain=plain) as view:
            view.note("here")
        assert ("  * here\n" not in out.getvalue()) == moving, (terminal, environment, plain)


def test_a_wait_is_a_line_now_and_then_and_on_a_terminal_a_clock() -> None:
    out = io.StringIO()
    with Waiting(Console(file=out), "asking [Spark]", lambda: "2 of 3", every_s=0.01):
        until(lambda: out.getvalue().count("\n") >= 3)
    assert out.getvalue().splitlines()[:3] == ["asking [Spark]", *["  still asking [Spark], 0 s: 2 of 3"] * 2]
    out = io.StringIO()
    with Waiting(Console(file=out, force_terminal=True, width=80, _environ=XTERM), "asking", lambda: "2 of 3"):
        until(lambda: "asking, 0 s: 2 of 3" in out.getvalue())
    assert out.getvalue().endswith("asking, 0 s\n")
