"""A finding, the document of all findings (a form that programs read), and probes, which run in parallel.

``report`` gives the document. ``FORMAT`` numbers its form: ``format``, ``version`` (of framegate), ``time`` (UTC), ``config`` (the file; null: none),
``address`` (of the control plane that was asked), ``level`` (the worst: fault, warning, else ok), ``counts`` by level, and ``findings``. Each of
those has ``area``, ``subject`` (what was looked at), ``level``, ``found`` (a sentence), ``advice`` (what to do; may be empty), ``figures`` (numbers
and texts by name; units end the name: ``_bytes``, ``_s``, ``_ms``, ``_percent``). Under the same ``FORMAT`` fields and figures may be added, but none
is renamed or removed.
"""

import collections
import dataclasses
import datetime
import queue
import threading
import time
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple

FORMAT: Final = 1
Level = Literal["fault", "warning", "unknown", "ok"]
Area = Literal[
    "configuration",
    "running",
    "limits",
    "memory",
    "cpu",
    "certificates",
    "names",
    "upstreams",
    "telemetry",
    "clock",
    "disk",
    "permissions",
    "kernel",
    "kubernetes",
]
Figure = int | float | str
LEVELS: Final[tuple[Level, ...]] = typing.get_args(Level)
"""The worst first. ``unknown``: it cannot be looked at from here, which is neither good nor bad."""
AREAS: Final[tuple[Area, ...]] = typing.get_args(Area)
MARGIN_S: Final = 0.2  # a probe bounds its own time; so much later it is left behind
_SLICE_S: Final = 0.2  # of waiting: a signal that comes just before a wait does not interrupt it, so Ctrl-C is handled between two slices


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One finding. Every fault and warning has ``advice``."""

    area: Area
    subject: str
    level: Level
    found: str
    advice: str = ""
    figures: Mapping[str, Figure] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        assert self.advice or self.level in ("ok", "unknown"), f"what is to be done about {self.subject}?"


def judged(
    area: Area, subject: str, found: str, figures: Mapping[str, Figure] | None = None, *, fault: str | None = None, warning: str | None = None
) -> Finding:
    """A finding with the level of the advice that is given: fault, warning, or without advice ``ok``."""
    level: Level = "fault" if fault else "warning" if warning else "ok"
    return Finding(area, subject, level, found, fault or warning or "", figures or {})


def unknown(area: Area, subject: str, found: str, advice: str = "", figures: Mapping[str, Figure] | None = None) -> Finding:
    """A finding about what cannot be looked at from here."""
    return Finding(area, subject, "unknown", found, advice, figures or {})


def counts(findings: Iterable[Finding]) -> dict[Level, int]:
    """The number of findings of each level."""
    found = collections.Counter(finding.level for finding in findings)
    return {level: found[level] for level in LEVELS}


def worst(findings: Iterable[Finding]) -> Level:
    """The worst level; ``ok`` where nothing is known to be wrong."""
    found = counts(findings)
    return "fault" if found["fault"] else "warning" if found["warning"] else "ok"


def sorted_findings(findings: Iterable[Finding]) -> list[Finding]:
    """By level, the worst first, then by area, then as they came."""
    return sorted(findings, key=lambda finding: (LEVELS.index(finding.level), AREAS.index(finding.area)))


def report(findings: Iterable[Finding], *, version: str, config: str | None, address: str, now: float) -> dict[str, Any]:
    """The document; ``now``: seconds since 1970."""
    rows = sorted_findings(findings)
    return {
        "format": FORMAT,
        "version": version,
        "time": datetime.datetime.fromtimestamp(now, datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        "config": config,
        "address": address,
        "level": worst(rows),
        "counts": counts(rows),
        "findings": [{**dataclasses.asdict(row), "figures": dict(row.figures)} for row in rows],
    }


class Deadline:
    """The moment when a timeout passes. ``clock``: seconds that only grow."""

    def __init__(self, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock: Final = clock
        self._end: Final = clock() + timeout_s

    def left(self) -> float:
        """Seconds until then. Raises TimeoutError when there are none."""
        left = self._end - self._clock()
        if left <= 0:
            raise TimeoutError("timed out")
        return left


class Probe(NamedTuple):
    """What is looked at, and the function that looks."""

    area: Area
    subject: str
    look: "Callable[[], Iterable[Finding | Probe]]"


def look_at_all(probes: Iterable[Probe], timeout_s: float, margin_s: float = MARGIN_S) -> list[Finding]:
    """Run each probe on a thread of its own; all findings, in the order of the probes, at most ``timeout_s`` and ``margin_s`` later. A probe may give
    further probes, which are started at once. A probe that hangs is left behind with a fault of its own; what it found before is kept. Its thread
    does not keep the process alive.
    """
    deadline = Deadline(timeout_s + margin_s)
    results: queue.SimpleQueue[tuple[int, Finding | Probe | None]] = queue.SimpleQueue()
    started: list[Probe] = []
    found: list[list[Finding]] = []
    open_: set[int] = set()

    def start(probe: Probe) -> None:
        number = len(started)
        started.append(probe)
        found.append([])
        try:
            threading.Thread(target=_look, args=(number, probe, results), name=f"framegate-{probe.area}", daemon=True).start()
            open_.add(number)
        except RuntimeError as error:
            found[number].append(Finding(probe.area, probe.subject, "unknown", f"could not be looked at: {error}"))

    for probe in probes:
        start(probe)
    while open_:
        try:
            number, result = results.get(timeout=min(deadline.left(), _SLICE_S))
        except queue.Empty:
            continue
        except TimeoutError:
            break
        if result is None:
            open_.discard(number)
        elif isinstance(result, Probe):
            start(result)
        else:
            found[number].append(result)
    for number in open_:
        probe = started[number]
        advice = "what hangs here would hold up framegate as well: find out why, or give it longer with --timeout"
        found[number].append(Finding(probe.area, probe.subject, "fault", f"did not answer within {timeout_s:g} s", advice))
    return [finding for each in found for finding in each]


def _look(number: int, probe: Probe, results: "queue.SimpleQueue[tuple[int, Finding | Probe | None]]") -> None:
    try:
        for result in probe.look():
            results.put((number, result))
    except Exception as error:  # of one probe; the others continue
        words = (
            f"{error.strerror or error}" if isinstance(error, OSError) else f"{type(error).__name__} (a fault of `framegate doctor` itself): {error}"
        )
        results.put((number, Finding(probe.area, probe.subject, "unknown", f"could not be looked at: {words}")))
    results.put((number, None))
