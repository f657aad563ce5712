import json

import pytest

from control.doctor.finding import AREAS, FORMAT, LEVELS, Finding, counts, report, sorted_findings, worst

GOOD = Finding("cpu", "a", "ok", "is good")
ODD = Finding("limits", "b", "warning", "is odd", "change it", {"limit": 3})
BAD = Finding("disk", "c", "fault", "is full", "make room")
UNSEEN = Finding("clock", "d", "unknown", "cannot be seen")


def test_the_document_has_the_form_that_programs_read() -> None:
    """Who changes this raises ``FORMAT``."""
    found = report([GOOD, ODD], version="1.2.3", config="/etc/f.yaml", address="unix:/a", now=0.0)
    assert FORMAT == 1
    assert found == {
        "format": 1,
        "version": "1.2.3",
        "time": "1970-01-01T00:00:00Z",
        "config": "/etc/f.yaml",
        "address": "unix:/a",
        "level": "warning",
        "counts": {"fault": 0, "warning": 1, "unknown": 0, "ok": 1},
        "findings": [
            {"area": "limits", "subject": "b", "level": "warning", "found": "is odd", "advice": "change it", "figures": {"limit": 3}},
            {"area": "cpu", "subject": "a", "level": "ok", "found": "is good", "advice": "", "figures": {}},
        ],
    }
    assert json.loads(json.dumps(found)) == found


def test_the_words_are_a_closed_list() -> None:
    assert LEVELS == ("fault", "warning", "unknown", "ok")
    assert AREAS == (
        "configuration", "running", "limits", "memory", "cpu", "certificates", "names", "upstreams", "telemetry", "clock", "disk", "permissions",
        "kernel", "kubernetes",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("findings", "level"),
    [([], "ok"), ([GOOD], "ok"), ([GOOD, UNSEEN], "ok"), ([UNSEEN, ODD], "warning"), ([ODD, BAD, GOOD], "fault")],
)
def test_what_cannot_be_seen_is_neither_good_nor_bad(findings: list[Finding], level: str) -> None:
    assert worst(findings) == level


def test_the_worst_comes_first_and_within_a_level_areas_in_their_order() -> None:
    first, second = Finding("running", "x", "fault", "-", "-"), Finding("disk", "a", "fault", "-", "-")
    assert sorted_findings([GOOD, UNSEEN, ODD, BAD, second, first]) == [first, BAD, second, ODD, UNSEEN, GOOD]
    assert counts([GOOD, GOOD, BAD]) == {"fault": 1, "warning": 0, "unknown": 0, "ok": 2}


@pytest.mark.parametrize("level", ["fault", "warning"])
def test_who_says_that_something_is_wrong_says_what_to_do(level: str) -> None:
    with pytest.raises(AssertionError, match="what is to be done about x"):
        Finding("cpu", "x", level, "is wrong")  # type: ignore[arg-type]
