"""The live view: lines or a table, with rates between readings."""

import io

import pytest
from rich.console import Console

from control.demo.view import Reading, View


def reading(elapsed_s: float, frames: int, rows: int) -> Reading:
    return Reading(elapsed_s=elapsed_s, connections=32, frames=frames, bytes=frames * 300, rows=rows)


def test_rates_and_lag_come_from_two_readings() -> None:
    view = View(Console(file=io.StringIO()), 60)
    assert view.line() == "state starting"
    with view:
        view.show(reading(1.0, 40_000, 0))
        view.show(reading(3.0, 120_000, 80_000))
    assert view.line() == ("time 3/60 s  connections 32  frames/s 40,000  MB/s 12.0  frames in Spark's tables 80,000  lag 40,000 frames (1.0 s)")


def test_no_terminal_gets_plain_lines() -> None:
    out = io.StringIO()
    with View(Console(file=out), 60) as view:
        view.show(reading(1.0, 0, 0))
        view.show(reading(1.1, 0, 0))
        view.note("something [odd] happened")
    assert out.getvalue().splitlines() == [
        "time 1/60 s  connections 32  frames/s 0  MB/s 0.0  frames in Spark's tables 0  lag 0 frames",
        "  * something [odd] happened",
    ]


def test_a_terminal_gets_a_table_and_the_last_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    out = io.StringIO()
    with View(Console(file=out, force_terminal=True, width=120), 60) as view:
        for number in range(20):
            view.note(f"note {number}")
        view.show(reading(1.0, 0, 0))
    text = out.getvalue()
    assert "framegate demo" in text
    assert "note 19" in text.rpartition("framegate demo")[2]
    assert "note 5" not in text.rpartition("framegate demo")[2]


def test_plain_holds_on_a_terminal_too() -> None:
    out = io.StringIO()
    with View(Console(file=out, force_terminal=True), 60, plain=True) as view:
        view.note("here")
    assert out.getvalue() == "  * here\n"
