"""What verify shows."""

import collections
import dataclasses
import io
import json
import sys

import pytest

from framegate.control.cli import tap_verdict
from framegate.control.cli.tap_verdict import EXIT_LOST, Progress, exit_code, print_verdict
from framegate.proxy.tap.acceptance import Accepted
from framegate.proxy.tap.completeness import Verdict, WindowRow
from tests.fakes.cases import each_of
from tests.fakes.tap_log import START_NS

NOTHING = Accepted({}, {})


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def verdict(*states: str, faults: tuple[str, ...] = ()) -> Verdict:
    rows = [WindowRow("s", "main", "request", START_NS + index * 60_000_000_000, seen=index, state=state) for index, state in enumerate(states)]
    return Verdict(rows, list(faults), not faults and bool(states) and set(states) <= {"complete", "open", "cut"})


def test_faults_come_first_and_the_conclusion_last(capsys: pytest.CaptureFixture[str]) -> None:
    print_verdict(verdict("complete", "lost", "complete", faults=("s is \x1b gone",)), None, "table", NOTHING)
    fault, head, *rows, last = capsys.readouterr().out.splitlines()
    assert fault == "fault: s is \\x1b gone"
    assert head.split()[:4] == ["STREAM", "LISTENER", "DIRECTION", "WINDOW"]
    assert [row.split()[-1] for row in rows] == ["complete", "lost", "complete"]
    assert rows[1].split()[:6] == ["s", "main", "request", "2023-11-14", "22:14", "1"]
    assert last == "not complete: 1 fault; windows: 2 complete, 1 lost"


@pytest.mark.parametrize("ends", [{}, {"disk_full": 1}, {"queue_full": 2000, "disk_full": 5}])
def test_ends_of_connections_that_are_lost_are_a_line_and_change_no_verdict(capsys: pytest.CaptureFixture[str], ends: dict[str, int]) -> None:
    given = dataclasses.replace(verdict("complete"), lost_ends=collections.Counter(ends))
    print_verdict(given, True, "table", NOTHING)
    *shown, last = capsys.readouterr().out.splitlines()
    number = "2,005 (disk_full 5, queue_full 2,000)" if len(ends) > 1 else "1 (disk_full 1)"
    assert shown == ([f"ends of connections that are not in the log: {number}"] if ends else [])
    assert (last, exit_code(given, NOTHING)) == ("complete: windows: 1 complete", 0)
    print_verdict(given, True, "json", NOTHING)
    assert json.loads(capsys.readouterr().out)["lost_ends"] == ends


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (verdict("complete", "open"), "complete: windows: 1 complete, 1 open"),
        (verdict(), "not complete: windows: none, so completeness is not proved"),
        (verdict("complete", "cut"), "complete except for data that retention deleted: windows: 1 complete, 1 cut"),
        (verdict("lost", "cut"), "frames are lost, and the log says exactly how many: windows: 1 cut, 1 lost"),
        (verdict(faults=("a", "b")), "not complete: 2 faults; windows: none, so completeness is not proved"),
        (verdict(*["complete"] * 1234), "complete: windows: 1,234 complete"),
    ],
)
def test_the_conclusion_says_what_it_comes_to(capsys: pytest.CaptureFixture[str], given: Verdict, text: str) -> None:
    print_verdict(given, True, "table", NOTHING)
    assert capsys.readouterr().out.splitlines()[-1] == text


def test_json_has_all_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    given = verdict("complete", "missing", faults=("f",))
    given.rows[1].listener = None
    print_verdict(given, True, "json", NOTHING)
    shown = json.loads(capsys.readouterr().out)
    assert (shown["complete"], shown["faults"]) == (False, ["f"])
    assert [row["state"] for row in shown["windows"]] == ["complete", "missing"]
    assert shown["windows"][1] == {
        "stream": "s", "listener": None, "direction": "request", "window": "2023-11-14T22:14:20.000000Z", "seen": 1, "stored": 0, "withheld": 0,
        "sampled": 0, "lost": 0, "at_most": 0, "unknown": 0, "shared": 0, "missing": 0, "state": "missing", "cut": False, "windows": 1,
        "reasons": [],
        "accepted": "",
    }  # fmt: skip


def test_progress_is_shown_on_a_terminal_and_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    err = Terminal()
    monkeypatch.setattr(sys, "stderr", err)
    now = [100.0]
    monkeypatch.setattr(tap_verdict.time, "monotonic", lambda: now[0])
    progress = Progress(4 << 30)
    progress(1 << 30)
    assert err.getvalue() == ""
    now[0] += 1
    progress(1 << 30)
    assert "read 2 GiB of 4 GiB, 50 %" in err.getvalue()
    before = len(err.getvalue())
    progress(1 << 30)
    assert len(err.getvalue()) == before, "not for every block"
    progress.end()
    assert err.getvalue().endswith("\r\x1b[K")


@each_of(
    ("given", "code"),
    [
        (verdict("complete", "open", "cut"), 0),
        (verdict("complete", "lost", "open", "cut"), EXIT_LOST),
        (verdict("lost", "at_most"), 1),
        (verdict("lost", "unknown"), 1),
        (verdict("lost", "missing"), 1),
        (verdict("lost", faults=("f",)), 1),
        (verdict("complete", faults=("f",)), 1),
        (verdict(), 1),
    ],
)
def test_what_is_lost_and_counted_is_another_exit_code_than_what_is_missing_and_what_was_accepted_is_none(given: Verdict, code: int) -> None:
    assert exit_code(given, NOTHING) == code
    rows = [row for row in given.rows if row.state not in ("complete", "open", "cut")]
    known = Accepted(dict.fromkeys(given.faults, "why"), {(row.stream, row.listener, row.direction, row.window_ns): ([0] * 5, "why") for row in rows})
    assert exit_code(given, known) == (0 if given.rows or given.faults else 1)
