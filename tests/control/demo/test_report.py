"""The proof: equal counts pass, and every single difference is found."""

import copy
from typing import Any

import pytest

from control.demo.metrics import Metrics
from control.demo.report import Evidence, checks, counts
from control.demo.stage import LogCount
from proxy.tap.completeness import Verdict, WindowRow
from proxy.tap.record import DIRECTIONS

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


def test_equal_counts_pass() -> None:
    assert [check.text for check in checks(evidence(FACTS)) if not check.good] == []
    assert {row.who.split(":")[0]: (row.request, row.response) for row in counts(evidence(FACTS))} == {
        "load generator": (101, 100),
        "upstream": (100, 100),
        "proxy's shared cells": (1, 0),
        "reader of the tap's log": (100, 100),
        "Spark SQL over the tables": (100, 100),
    }


@pytest.mark.parametrize(
    "path",
    [
        "generator.sent",
        "generator.answered",
        "generator.wrong",
        "generator.lost",
        "upstream.frames",
        "upstream.bytes",
        "cells.upstream",
        "cells.downstream",
        "cells.rejected",
        "log.frames.request",
        "log.frames.response",
        "log.bytes.request",
        "log.lost",
        "tables.frames.0.frames",
        "tables.frames.1.frames",
        "tables.frames.1.bytes",
        "tables.content.0.wrong_checksums",
        "tables.content.1.misplaced",
        "tables.sequences.0.missing",
        "tables.sequences.1.doubled",
        "tables.gaps.0.lost",
        "tables.completeness.0.windows",
        "tables.completeness.1.seen",
        "tables.completeness.1.accounted",
    ],
)
def test_one_off_anywhere_is_found(path: str) -> None:
    facts = copy.deepcopy(FACTS)
    *parents, last = path.split(".")
    place: Any = facts
    for name in parents:
        place = place[int(name)] if isinstance(place, list) else place[name]
    place[last] += 1
    assert [check for check in checks(evidence(facts)) if not check.good]


def test_a_refusal_that_nobody_named_is_found() -> None:
    facts = {**FACTS, "refused": []}
    assert [check.text for check in checks(evidence(facts)) if not check.good] == ["requests: refused by name: 1 frame_too_large"]


def test_empty_tables_are_no_proof() -> None:
    facts = {**FACTS, "tables": {name: [] if name != "gaps" else [{"lost": 0}] for name in FACTS["tables"]}}
    assert len([check for check in checks(evidence(facts)) if not check.good]) >= 4
