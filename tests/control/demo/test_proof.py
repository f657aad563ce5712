"""The last word is good only when all of it is."""

import dataclasses
from typing import Any

import pytest

from control.demo.proof import proof
from proxy.tap.completeness import Verdict, WindowRow

ROW = WindowRow("s", "demo", "request", 0, seen=3, stored=2, sampled=1, state="complete")
TABLE: dict[str, Any] = {"direction": "request", "state": "complete", "windows": 1, "seen": 3, "accounted": 3}


def good(verdict: Verdict, *rows: dict[str, Any]) -> list[bool]:
    return [fine for _, fine in proof(verdict, rows)]


def test_a_complete_log_of_which_the_table_says_the_same() -> None:
    assert good(Verdict([ROW], [], True), TABLE) == [True, True]


@pytest.mark.parametrize("state", ["open", "cut", "lost", "at_most", "unknown", "missing"])
def test_any_other_state_is_no_proof(state: str) -> None:
    verdict = Verdict([dataclasses.replace(ROW, state=state)], [], state in ("open", "cut"))
    assert good(verdict, {**TABLE, "state": state}) == [False, True]
    assert state in proof(verdict, [])[0][0]


@pytest.mark.parametrize(
    ("lost", "direction", "state", "faults", "fine"),
    [
        (2, "response", "lost", [], True),
        (1, "response", "lost", [], False),
        (3, "response", "lost", [], False),
        (2, "request", "lost", [], False),
        (2, "response", "unknown", [], False),
        (2, "response", "lost", ["a block is damaged"], False),
    ],
)
def test_answers_whose_clients_had_left_are_no_hole_when_they_are_all_that_is_lost(
    lost: int, direction: str, state: str, faults: list[str], fine: bool
) -> None:
    late = dataclasses.replace(ROW, direction=direction, seen=5, stored=5 - lost, sampled=0, lost=lost, state=state)
    (text, good), _ = proof(Verdict([ROW, late], faults, False), [], unclaimed=2)
    assert (good, "but answers whose clients had left: 2" in text) == (fine, (lost, direction, state) == (2, "response", "lost"))
    assert not proof(Verdict([ROW, late], faults, False), [])[0][1], "nobody said that a client had left"


def test_a_fault_is_said_and_nothing_is_no_proof() -> None:
    verdict = Verdict([ROW], ["a block is damaged"], False)
    assert good(verdict, TABLE) == [False, True]
    assert "a block is damaged" in proof(verdict, [])[0][0]
    assert good(Verdict([], [], True)) == [False, True]


@pytest.mark.parametrize("name", ["windows", "seen", "accounted"])
def test_another_number_in_the_table_is_found(name: str) -> None:
    assert good(Verdict([ROW], [], True), {**TABLE, name: TABLE[name] + 1}) == [True, False]
