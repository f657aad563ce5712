"""What was accepted of an incomplete log."""

import json
import stat
from pathlib import Path

import pytest

from framegate.proxy.tap.acceptance import ACCEPTED_NAME, Accepted, accept, read_accepted
from framegate.proxy.tap.completeness import Verdict
from framegate.proxy.tap.stream_totals import WindowRow
from tests.fakes.tap_files import flip


def row(window_ns: int, state: str, **counts: int) -> WindowRow:
    return WindowRow("s", "main", "request", window_ns, state=state, **counts)  # type: ignore[arg-type]


def test_who_accepts_what_and_why_is_a_line_and_comes_back(tmp_path: Path, no_umask: None) -> None:
    directory = str(tmp_path)
    assert read_accepted(directory) == Accepted({}, {})
    verdict = Verdict([row(1, "lost", lost=3), row(2, "complete"), row(3, "missing", missing=-2)], ["a fault"], complete=False)
    assert not read_accepted(directory).covers(verdict)
    assert accept(directory, verdict, "known", "ann", 7) == 3
    path = tmp_path / ACCEPTED_NAME
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert {"ns": 7, "who": "ann", "reason": "known", "faults": ["a fault"]}.items() <= json.loads(path.read_bytes()[9:]).items()
    found = read_accepted(directory)
    assert found.covers(verdict)
    assert [found.reason(item) for item in verdict.rows] == ["known", "", "known"]


@pytest.mark.parametrize(
    ("rows", "faults", "covered"),
    [
        ([row(1, "lost", lost=2)], [], True),
        ([row(1, "lost", lost=3), row(9, "open")], ["a fault"], True),
        ([row(1, "lost", lost=4)], [], False),
        ([row(1, "unknown", lost=3, unknown=1)], [], False),
        ([row(4, "lost", lost=1)], [], False),
        ([], ["another"], False),
        ([], [], False),
    ],
)
def test_only_what_is_no_worse_than_then_is_accepted(tmp_path: Path, rows: list[WindowRow], faults: list[str], covered: bool) -> None:
    accept(str(tmp_path), Verdict([row(1, "lost", lost=3)], ["a fault"], complete=False), "known", "ann", 7)
    assert read_accepted(str(tmp_path)).covers(Verdict(rows, faults, complete=False)) is covered


def test_with_nothing_to_accept_nothing_is_written_and_a_damaged_line_accepts_nothing(tmp_path: Path) -> None:
    assert accept(str(tmp_path), Verdict([row(1, "complete")], [], complete=True), "why", "ann", 7) == 0
    assert not (tmp_path / ACCEPTED_NAME).exists()
    for reason in ("one", "two"):
        accept(str(tmp_path), Verdict([], [reason], complete=False), reason, "ann", 7)
    flip(tmp_path / ACCEPTED_NAME, 20)
    assert read_accepted(str(tmp_path)) == Accepted({"two": "two"}, {})
