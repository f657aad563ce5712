"""What ``framegate check`` finds, each in the area that it is of: it is found there, and nowhere a second time."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from control.configuration.fault import Fault, Findings
from control.doctor.finding import Area, Finding, Level

__all__ = ["area_of", "look"]

_AREAS: Final[tuple[tuple[str, Area], ...]] = (
    (".tls", "certificates"),
    (".backlog", "kernel"),
    (".socket.", "kernel"),
    ("memory_pool.", "memory"),
    ("tap.directory", "disk"),
    ("tap.budget", "disk"),
    ("admin.address", "permissions"),
)
"""The first that is in a key."""


def look(path: Path | None, found: Findings) -> Iterator[Finding]:
    """All of it, and one line where there is nothing."""
    if path is None:
        yield Finding(
            "configuration", "file", "unknown", "none is named and there is none at the usual place: what depends on it is not looked at",
            "name it: framegate doctor --config FILE",
        )  # fmt: skip
        return
    yield from _told("fault", found.faults, path)
    yield from _told("warning", found.warnings, path)
    if found.model is None:
        words = "is faulty: what depends on it is not looked at"
        yield Finding("configuration", str(path), "fault", words, f"framegate check --config {path}")
        return
    figures = {"listeners": len(found.model.listeners), "upstreams": len(found.model.upstreams)}
    besides = "" if found.config is not None else ", and this machine does not give what it needs"
    yield Finding("configuration", str(path), "ok", f"is valid{besides}", figures=figures)


def area_of(key: str) -> Area:
    """Where a fault of a key belongs."""
    return next((area for part, area in _AREAS if part in key), "configuration")


def _told(level: Level, faults: Iterable[Fault], path: Path) -> Iterator[Finding]:
    for fault in faults:
        shown = f" = {fault.value}" if fault.value else ""
        where = f"line {fault.line} of {path}" if fault.line else str(path)
        yield Finding(area_of(fault.key), f"{fault.key or 'the document'}{shown}", level, fault.reason, f"change {where}, or what it names")
