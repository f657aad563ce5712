import json
import threading
import time
from collections.abc import Iterator

import pytest

from framegate.control.doctor.finding import AREAS, FORMAT, LEVELS, MARGIN_S, Finding, Probe, look_at_all, report
from tests.fakes.surroundings import levels

GOOD = Finding("cpu", "a", "ok", "is good")
ODD = Finding("limits", "b", "warning", "is odd", "change it", {"limit": 3})


def test_the_document_has_the_form_that_programs_read() -> None:
    """A change of this form raises ``FORMAT``."""
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


SHORT_S = 0.05


def good(subject: str) -> Finding:
    return Finding("cpu", subject, "ok", "is good")


def test_probes_run_in_parallel_and_report_in_their_order() -> None:
    """Each probe waits for all others, so they end only if they run in parallel."""
    barrier = threading.Barrier(8)

    def look(number: int) -> Iterator[Finding]:
        barrier.wait(10)
        yield good(str(number))
        yield good(f"{number} again")

    probes = [Probe("cpu", str(number), lambda number=number: look(number)) for number in range(8)]
    assert [item.subject for item in look_at_all(probes, 10)] == [text for number in range(8) for text in (str(number), f"{number} again")]


def test_probes_that_a_probe_gives_are_started_while_it_runs() -> None:
    met = threading.Event()

    def look() -> Iterator[Finding | Probe]:
        yield Probe("cpu", "second", lambda: [good("second" if met.set() is None else "")])
        assert met.wait(10)
        yield good("first")

    assert [item.subject for item in look_at_all([Probe("cpu", "first", look)], 10)] == ["first", "second"]


def test_a_probe_that_hangs_is_a_fault_and_keeps_its_earlier_findings() -> None:
    never = threading.Event()

    def hang() -> Iterator[Finding]:
        yield good("first")
        never.wait(30)

    begun = time.monotonic()
    found = look_at_all([Probe("disk", "hangs", hang), Probe("cpu", "other", lambda: [good("other")])], SHORT_S)
    assert time.monotonic() - begun < SHORT_S + MARGIN_S + 2
    never.set()
    assert [(item.subject, item.level) for item in found] == [("first", "ok"), ("hangs", "fault"), ("other", "ok")]
    assert found[1].found == "did not answer within 0.05 s"


def test_a_probe_that_fails_is_unknown_and_the_others_continue() -> None:
    def refuse() -> Iterator[Finding]:
        yield good("first")
        raise PermissionError(13, "Permission denied")

    def break_() -> Iterator[Finding]:
        raise KeyError("x")
        yield good("never")

    found = look_at_all([Probe("disk", "refused", refuse), Probe("cpu", "broken", break_), Probe("cpu", "other", lambda: [good("other")])], 10)
    assert levels(found) == ["ok", "unknown", "unknown", "ok"]
    assert found[1].found == "could not be looked at: Permission denied"
    assert "a fault of `framegate doctor` itself" in found[2].found


def test_a_probe_without_a_thread_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    (found,) = look_at_all([Probe("cpu", "x", lambda: [good("never")])], 10)
    assert (found.level, found.found) == ("unknown", "could not be looked at: can't start new thread")
