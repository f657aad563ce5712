"""What the demo shows: lines, rates between readings, what is waited for."""

import io

import pytest
from rich.console import Console

from framegate.control.demo import view as module
from framegate.control.demo.view import Reading, View, Waiting
from tests.fakes.waiting import until


def reading(elapsed_s: float, frames: int, rows: int) -> Reading:
    return Reading(elapsed_s=elapsed_s, connections=32, frames=frames, bytes=frames * 300, rows=rows)


def test_rates_and_lag_come_from_two_readings_and_a_line_comes_every_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    view = View(Console(file=out), 60)
    view.show(reading(1.0, 40_000, 0))
    view.show(reading(2.0, 80_000, 0))
    monkeypatch.setattr(module, "_LINE_EVERY_S", 0.0)
    view.note("something [odd] happened")
    view.show(reading(3.0, 120_000, 80_000))
    assert out.getvalue().splitlines() == [
        "time 1/60 s  connections 32  frames/s 0  MB/s 0.0  frames in Spark's tables 0  lag 40,000 frames",
        "  * something [odd] happened",
        "time 3/60 s  connections 32  frames/s 40,000  MB/s 12.0  frames in Spark's tables 80,000  lag 40,000 frames (1.0 s)",
    ]


def test_a_wait_is_a_line_now_and_then() -> None:
    out = io.StringIO()
    with Waiting(Console(file=out), "asking [Spark]", lambda: "2 of 3", every_s=0.01):
        until(lambda: out.getvalue().count("\n") >= 3)
    assert out.getvalue().splitlines()[:3] == ["asking [Spark]", *["  still asking [Spark], 0 s: 2 of 3"] * 2]
