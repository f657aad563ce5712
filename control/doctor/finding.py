"""What is said of one thing that was looked at, and the document of all of it, whose form is kept: programs read it.

``report`` gives, and ``FORMAT`` numbers: ``format``, ``version`` (of framegate), ``time`` (UTC), ``config`` (the file; null: none), ``address``
(of the control plane that was asked), ``level`` (the worst: fault, warning, else ok), ``counts`` by level, and ``findings``. Each of those has
``area``, ``subject`` (what was looked at), ``level``, ``found`` (a sentence), ``advice`` (what to do; empty where there is nothing), ``figures``
(numbers and texts by name; units end the name: ``_bytes``, ``_s``, ``_ms``, ``_percent``). Fields and figures may be added, none is renamed or
removed under the same ``FORMAT``.
"""

import collections
import dataclasses
import datetime
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

__all__ = ["AREAS", "FORMAT", "LEVELS", "Area", "Figure", "Finding", "counts", "report", "sorted_findings", "told", "unknown", "worst"]

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


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One of them. ``advice`` is there for every fault and warning."""

    area: Area
    subject: str
    level: Level
    found: str
    advice: str = ""
    figures: Mapping[str, Figure] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        assert self.advice or self.level in ("ok", "unknown"), f"what is to be done about {self.subject}?"


def told(
    area: Area, subject: str, found: str, figures: Mapping[str, Figure] | None = None, *, fault: str | None = None, warning: str | None = None
) -> Finding:
    """A finding of which the level follows from the advice: of a fault or a warning when there is one, else ``ok``."""
    level: Level = "fault" if fault else "warning" if warning else "ok"
    return Finding(area, subject, level, found, fault or warning or "", figures or {})


def unknown(area: Area, subject: str, found: str, advice: str = "", figures: Mapping[str, Figure] | None = None) -> Finding:
    """A finding of what cannot be seen from here."""
    return Finding(area, subject, "unknown", found, advice, figures or {})


def counts(findings: Iterable[Finding]) -> dict[Level, int]:
    """How many there are of each level, of all levels."""
    found = collections.Counter(finding.level for finding in findings)
    return {level: found[level] for level in LEVELS}


def worst(findings: Iterable[Finding]) -> Level:
    """The worst level; ``ok`` where nothing is known to be wrong."""
    found = counts(findings)
    return "fault" if found["fault"] else "warning" if found["warning"] else "ok"


def sorted_findings(findings: Iterable[Finding]) -> list[Finding]:
    """By level, the worst first, then by area; within one as they came."""
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
