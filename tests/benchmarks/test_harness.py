"""What the harness computes from its rounds and from its command line, and what the guard says of a run."""

from pathlib import Path

import guard
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


def test_plaintext_is_judged_by_the_c_relay_and_tls_by_haproxy() -> None:
    rows = table(
        summary("c-relay", "plain", 10.0),
        summary("haproxy", "plain", 5.0),
        summary("framegate", "plain", 11.0),
        summary("haproxy", "tls", 20.0),
        summary("framegate", "tls", 10.0),
    )
    assert guard.ratios(rows) == {"plain 100x1": 1.1, "tls 100x1": 0.5}


def test_a_shape_without_its_reference_is_left_out() -> None:
    assert guard.ratios(table(summary("framegate", "plain", 11.0))) == {}


def test_more_than_a_tenth_is_worse_and_named() -> None:
    committed = {"date": "2026-01-01", "machine": guard.machine_class("cpu"), "ratios": {"plain 100x1": 1.0, "tls 100x1": 0.5}}
    assert guard.words({"plain 100x1": 1.09, "tls 100x1": 0.56}, committed, "cpu") == [
        "guard: WORSE: tls 100x1: 0.56 × haproxy, was 0.50 (+12%)",
        "guard: 1 of 2 shapes got worse by more than 10% since 2026-01-01",
    ]


def test_another_machine_and_an_unknown_shape_are_said() -> None:
    committed = {"date": "2026-01-01", "machine": "elsewhere", "ratios": {}}
    lines = guard.words({"plain 1k": 1.0}, committed, "cpu")
    assert "another machine (elsewhere)" in lines[0]
    assert "nothing committed for plain 1k" in lines[1]
    assert "none of 0 shapes" in lines[2]


def test_saving_keeps_what_was_not_measured(tmp_path: Path) -> None:
    file = tmp_path / "ratios.json"
    assert guard.read(file) == {}
    guard.save({"plain 100x1": 1.0, "tls 1m": 2.0}, "cpu", file)
    guard.save({"plain 100x1": 0.9}, "cpu", file)
    assert guard.read(file)["ratios"] == {"plain 100x1": 0.9, "tls 1m": 2.0}
