"""What the harness computes from its rounds and from its command line, and what the guard says of a run."""

import subprocess
from pathlib import Path

import guard
import pytest
import report
from measure import Round
from report import Summary


def a_round(candidate: str, number: int, cost: float) -> Round:
    return Round(candidate, "plain", "100x1", number, 0.0, 1000, 2.0, cost, 0.9, 10.0, 20.0, 30.0)


def test_a_summary_is_the_median_and_the_extremes_of_the_rounds() -> None:
    rounds = [a_round("framegate", number, cost) for number, cost in enumerate((3.0, 1.0, 2.0))] + [a_round("haproxy", 0, 4.0)]
    summary = report.summarize(rounds)["plain", "100x1", "framegate"]
    assert (summary.rounds, summary.cpu_us, summary.low, summary.high, summary.frames_per_second) == (3, 2.0, 1.0, 3.0, 500.0)


# --- the guard ---


def summary(candidate: str, protocol: str, cost: float) -> Summary:
    return Summary(candidate, protocol, "100x1", 3, cost, cost, cost, 1.0, 1.0, 1.0, 1.0, 1.0)


def table(*rows: Summary) -> dict[tuple[str, str, str], Summary]:
    return {(row.protocol, row.shape, row.candidate): row for row in rows}


def test_more_than_a_tenth_of_the_time_before_is_worse_and_named() -> None:
    rows = table(
        summary("haproxy", "plain", 5.0),
        summary("framegate", "plain", 10.9),
        summary("framegate-before", "plain", 10.0),
        summary("framegate", "tls", 11.1),
        summary("framegate-before", "tls", 10.0),
        summary("framegate", "tls-both", 11.0),
    )
    assert guard.words(rows) == [
        "guard: plain 100x1: 1.09 of the time before",
        "guard: WORSE: tls 100x1: 1.11 of the time before",
        "guard: 1 of 2 loads got worse by more than 10%",
    ]


def test_without_a_build_before_the_guard_says_nothing() -> None:
    assert guard.words(table(summary("framegate", "plain", 10.0))) == []


def test_a_build_before_never_touches_the_work_tree_around_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*words: str, folder: Path = tmp_path) -> str:
        command = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    monkeypatch.setattr(guard, "_git", git)
    monkeypatch.setattr(guard, "FOLDER", tmp_path / "before")
    changed = tmp_path / "file"
    changed.write_text("committed")
    git("init", "-q")
    git("add", "file")
    git("commit", "-qm", "one")
    changed.write_text("not committed")
    (tmp_path / "before").mkdir()
    (tmp_path / "before" / "left").touch()
    with pytest.raises(subprocess.CalledProcessError):
        guard.build("HEAD")
    assert changed.read_text() == "not committed"
