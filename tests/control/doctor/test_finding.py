import json

from framegate.control.doctor.finding import AREAS, FORMAT, LEVELS, Finding, report

GOOD = Finding("cpu", "a", "ok", "is good")
ODD = Finding("limits", "b", "warning", "is odd", "change it", {"limit": 3})


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
