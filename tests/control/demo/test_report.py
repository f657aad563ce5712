"""The proof: equal counts pass, and every single difference is found."""

import copy
import dataclasses
from typing import Any

from framegate.control.demo.report import Evidence, checks, proof
from framegate.control.demo.stage import LogCount
from framegate.control.demo.steering import Metrics
from framegate.proxy.tap.completeness import Verdict, WindowRow
from framegate.proxy.tap.record import DIRECTIONS

FACTS: dict[str, Any] = {
    "generator": {"sent": 101, "answered": 100, "wrong": 0, "lost": 0},
    "upstream": {"frames": 100, "bytes": 5000},
    "cells": {"upstream": 100, "downstream": 100, "rejected": 1},
    "log": {"frames": {"request": 100, "response": 100}, "bytes": {"request": 5000, "response": 5000}, "lost": 0},
    "tables": {
        "frames": [{"direction": direction, "frames": 100, "bytes": 5000} for direction in ("request", "response")],
        "content": [{"direction": direction, "wrong_checksums": 0, "misplaced": 0} for direction in ("request", "response")],
        "sequences": [{"direction": direction, "missing": 0, "doubled": 0} for direction in ("request", "response")],
        "gaps": [{"lost": 0}],
        "completeness": [{"direction": direction, "state": "complete", "windows": 1, "seen": 100, "accounted": 100} for direction in DIRECTIONS],
    },
    "refused": ["frame_too_large"],
}
ROW = WindowRow("s", "demo", "request", 0, seen=3, stored=2, sampled=1, state="complete")
TABLE: dict[str, Any] = {"direction": "request", "state": "complete", "windows": 1, "seen": 3, "accounted": 3}


def evidence(facts: dict[str, Any]) -> Evidence:
    labels = 'network_io_direction="transmit",framegate_listener="demo"'
    text = "".join(f'framegate_frame_count_total{{framegate_side="{side}",{labels}}} {facts["cells"][side]}\n' for side in ("upstream", "downstream"))
    text += f'framegate_frame_rejected_total{{framegate_reason="frame_too_large"}} {facts["cells"]["rejected"]}\n'
    return Evidence(
        generator=facts["generator"],
        upstream=facts["upstream"],
        metrics=Metrics(text),
        log=LogCount(**facts["log"]),
        verdict=Verdict([WindowRow("s", "demo", direction, 0, seen=100, stored=100, state="complete") for direction in DIRECTIONS], [], True),
        tables=facts["tables"],
        refused=facts["refused"],
    )


def numbers(place: Any) -> list[tuple[Any, Any]]:
    """Where each number of the facts is: its container and key."""
    items = list(place.items() if isinstance(place, dict) else enumerate(place) if isinstance(place, list) else ())
    return [(place, key) for key, value in items if isinstance(value, int)] + [found for _, value in items for found in numbers(value)]


def test_equal_counts_pass_and_one_that_is_one_higher_anywhere_is_found() -> None:
    facts = copy.deepcopy(FACTS)
    assert all(check.good for check in checks(evidence(facts)))
    places = numbers(facts)
    assert len(places) == 33
    for place, key in places:
        place[key] += 1
        assert [check for check in checks(evidence(facts)) if not check.good], (place, key)
        place[key] -= 1


def test_a_refusal_without_a_name_and_empty_tables_are_found() -> None:
    facts = {**FACTS, "refused": []}
    assert [check.text for check in checks(evidence(facts)) if not check.good] == ["requests: refused by name: 1 frame_too_large"]
    facts = {**FACTS, "tables": {name: [] if name != "gaps" else [{"lost": 0}] for name in FACTS["tables"]}}
    assert len([check for check in checks(evidence(facts)) if not check.good]) >= 4


def proved(verdict: Verdict, *rows: dict[str, Any]) -> list[bool]:
    return [check.good for check in proof(verdict, {"completeness": rows})]


def test_only_a_complete_log_of_which_the_table_says_the_same_is_proved() -> None:
    assert proved(Verdict([ROW], [], True), TABLE) == [True, True]
    for state in ("open", "cut", "lost", "at_most", "unknown", "missing"):
        verdict = Verdict([dataclasses.replace(ROW, state=state)], [], state in ("open", "cut"))
        assert proved(verdict, {**TABLE, "state": state}) == [False, True]
        assert state in proof(verdict, {"completeness": []})[0].text
    for name in ("windows", "seen", "accounted"):
        assert proved(Verdict([ROW], [], True), {**TABLE, name: TABLE[name] + 1}) == [True, False]
    damaged = Verdict([ROW], ["a block is damaged"], False)
    assert proved(damaged, TABLE) == [False, True]
    assert "a block is damaged" in proof(damaged, {"completeness": []})[0].text
    assert proved(Verdict([], [], True)) == [False, True], "nothing is no proof"


def test_answers_whose_clients_had_left_are_no_hole_when_they_are_all_that_is_lost() -> None:
    for lost, direction, state, faults, fine in (
        (2, "response", "lost", [], True),
        (1, "response", "lost", [], False),
        (3, "response", "lost", [], False),
        (2, "request", "lost", [], False),
        (2, "response", "unknown", [], False),
        (2, "response", "lost", ["a block is damaged"], False),
    ):
        late = dataclasses.replace(ROW, direction=direction, seen=5, stored=5 - lost, sampled=0, lost=lost, state=state)
        check = proof(Verdict([ROW, late], faults, False), {"completeness": []}, unclaimed=2)[0]
        explained = (lost, direction, state) == (2, "response", "lost")
        assert (check.good, "but answers whose clients had left: 2" in check.text) == (fine, explained), (lost, direction, state, faults)
        assert not proof(Verdict([ROW, late], faults, False), {"completeness": []})[0].good, "no client is known to have left"
