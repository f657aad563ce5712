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


def test_a_fault_is_said_and_nothing_is_no_proof() -> None:
    verdict = Verdict([ROW], ["a block is damaged"], False)
    assert good(verdict, TABLE) == [False, True]
    assert "a block is damaged" in proof(verdict, [])[0][0]
    assert good(Verdict([], [], True)) == [False, True]


@pytest.mark.parametrize("name", ["windows", "seen", "accounted"])
def test_another_number_in_the_table_is_found(name: str) -> None:
    assert good(Verdict([ROW], [], True), {**TABLE, name: TABLE[name] + 1}) == [True, False]
