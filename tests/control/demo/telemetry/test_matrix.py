"""Panels by troubles."""

import json
from pathlib import Path
from typing import Any

import pytest

from control.demo.telemetry import matrix
from control.demo.telemetry.panels import Dashboard, Panel, Seen


def seen(*series: tuple[str, float], fault: str | None = None) -> Seen:
    result: list[dict[str, Any]] = [{"metric": {"name": name}, "values": [[1, "0"], [2, str(value)]]} for name, value in series]
    return Seen(answers=[{"refId": "A", "data": {"result": result}}], fault=fault)


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (seen(("a", 15)), "same"),
        (seen(("a", 15.1)), "changed"),
        (seen(("a", 10), ("b", 0)), "changed"),
        (seen(("a", 0)), "same"),
        (seen(), "empty"),
        (seen(("a", 10), fault="A: parse error"), "failed"),
        (seen(("a", float("nan"))), "same"),
    ],
)
def test_what_a_panel_shows_is_held_against_the_calm(now: Seen, expected: str) -> None:
    assert matrix.state(seen(("a", 10)), now) == expected


def test_it_is_written_for_programs_and_for_people(tmp_path: Path) -> None:
    board = Dashboard(slug="healthy", document={}, panels=(Panel(id=7, title="Why?", targets=(), nothing=None, folded=False),))
    phases = {"calm": {"healthy": {7: seen()}}, "full-tap": {"healthy": {7: seen(("a", 1))}}}
    matrix.write(tmp_path / "new", [board], phases, {"series": {"both": 3}})
    written = json.loads((tmp_path / "new" / "panels.json").read_text())
    assert written == {"series": {"both": 3}, "panels": [{"dashboard": "healthy", "panel": "Why?", "calm": "empty", "full-tap": "changed"}]}
    assert (tmp_path / "new" / "panels.md").read_text().splitlines() == [
        "| dashboard | panel | calm | full-tap |",
        "|---|---|---|---|",
        "| healthy | Why? | empty | changed |",
    ]
