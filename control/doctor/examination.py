"""All areas: first the configuration, then everything else side by side.

All ends at most ``timeout_s`` and a margin after the begin, whatever hangs. What waits for another look gets a share of the time, so that the rest
is left for itself: the addresses of an upstream for its names, areas of the process for the framegate that runs. Nothing is changed but for a file
without a name in the tap's directory (and what ``framegate check`` tries), and no secret is in the findings.
"""

import dataclasses
import functools
import operator
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from framegate.control.configuration.document import ConfigurationError, Fault, Findings, document_of
from framegate.control.configuration.load import examine, judge
from framegate.control.configuration.machine import IN_USE
from framegate.control.configuration.reading import read_document
from framegate.control.configuration.schema import build
from framegate.control.configuration.tls_rules import EXPOSED
from framegate.control.doctor import certificates, collector, container, disk, machine, names, permissions
from framegate.control.doctor.finding import Area, Deadline, Finding, Level, Probe, judged, look_at_all, unknown
from framegate.control.doctor.names import Lookups, literal_addresses
from framegate.control.doctor.running import Running
from framegate.control.doctor.surroundings import Surroundings
from framegate.control.doctor.upstreams import address_probes
from framegate.proxy.config.model import ProxyConfig

Look = Callable[[Surroundings], Iterator[Finding]]
_AREAS: Final[tuple[tuple[Area, str, Look], ...]] = (
    ("limits", "limits of processes", container.look_at_limits),
    ("memory", "memory", container.look_at_memory),
    ("cpu", "CPUs", container.look_at_cpus),
    ("certificates", "files", certificates.look),
    ("names", "resolver", names.look),
    ("telemetry", "collector", collector.look),
    ("clock", "clock", machine.look_at_clock),
    ("disk", "the tap's disk", disk.look),
    ("permissions", "permissions", permissions.look),
    ("kernel", "settings", machine.look_at_kernel),
    ("kubernetes", "pod", permissions.look_at_pod),
)

_OF_PROCESS: Final = ("limits", "memory", "cpu", "permissions")  # Areas that look at the process of the framegate that runs
_WAITING: Final = 0.5  # the share of the time that is left for what others wait for
_AREAS_OF_KEYS: Final[tuple[tuple[str, Area], ...]] = (
    (".tls", "certificates"),
    (".backlog", "kernel"),
    (".socket.", "kernel"),
    ("memory_pool.", "memory"),
    ("tap.directory", "disk"),
    ("tap.budget", "disk"),
    ("admin.address", "permissions"),
)  # the area of a fault: that of the first part that is in its key
_PARTS: Final = re.compile(r"[^.\[\]]+")


@dataclasses.dataclass(frozen=True, slots=True)
class Examination:
    """All findings, and the address of the control plane that was asked."""

    findings: list[Finding]
    address: str


def examine_all(
    around: Surroundings, path: Path | None, address: str | None, *, default: str, why: Callable[[str], str], version: str
) -> Examination:
    """Look at everything. ``path``: of the configuration file; None: there is none. ``address``: of the control plane; None: the file's, or else
    ``default``.
    """
    read: list[Findings] = []
    deadline = Deadline(around.timeout_s)
    reading_s = round(around.timeout_s * _WAITING, 2)
    early = [] if path is None else look_at_all([Probe("configuration", str(path), lambda: _read(path, read))], reading_s, margin_s=0)
    found = read[0] if read else Findings(None, [], [])
    config = found.model if path is None or not read or found.model is not None else _right_part(path)
    address = address or (default if config is None else config.admin.address)
    around = dataclasses.replace(around, config=config, timeout_s=round(deadline.left(), 2))
    running = Running(dataclasses.replace(around, config=found.model), address, why, version)
    probes = [Probe("running", "control plane", running.look)]
    for area, subject, look in _AREAS:
        probes.append(
            Probe(area, subject, functools.partial(_of_process, around, running, look) if area in _OF_PROCESS else functools.partial(look, around))
        )
    probes += address_probes(around, literal_addresses(around))
    probes.append(Probe("names", "names of upstreams", functools.partial(_named, around)))
    rest = look_at_all(probes, around.timeout_s)
    if running.answered:  # it uses what is in use
        found = found._replace(warnings=[item for item in found.warnings if not item.reason.startswith(IN_USE)])
    of_file = early or list(checked(path, found, is_partly_right=config is not None))
    return Examination(_without_repetition([*of_file, *rest]), address)


def _of_process(around: Surroundings, running: Running, look: Look) -> Iterator[Finding]:
    """Look at what depends on the process of the framegate that runs; if that does not answer, at this one."""
    running.identified.wait(around.timeout_s * _WAITING)
    yield from look(dataclasses.replace(around, pid=running.pid))


def _named(around: Surroundings) -> Iterator[Finding | Probe]:
    """Look up the names of upstreams, then try their addresses."""
    deadline = Deadline(around.timeout_s)
    lookups = Lookups(dataclasses.replace(around, timeout_s=round(around.timeout_s * _WAITING, 2)))
    yield from lookups.look()
    yield from address_probes(dataclasses.replace(around, timeout_s=round(deadline.left(), 2)), lookups.addresses)


def _read(path: Path, read: list[Findings]) -> Iterator[Finding]:
    """Read the file. Yields nothing: its faults depend on which framegate runs."""
    read.append(examine(os.fspath(path), in_use=True))
    yield from ()


def _right_part(path: Path) -> ProxyConfig | None:
    """The model of a faulty file without what is wrong: its values, then entries and sections that cannot be without them. None: nothing is left."""
    try:
        document = read_document(path)
    except ConfigurationError:
        return None
    while (found := judge(document_of(document.data, document.folder), machine=False)).model is None:
        wrong = {_existing(document.data, fault.key) for fault in found.faults} - {()}
        if not wrong:  # of listeners none is right, and there must be one
            rest = document_of({**document.data, "listeners": []}, document.folder)
            return build(rest) if {fault.key for fault in found.faults} == {"listeners"} else None
        for *above, last in sorted(wrong, key=lambda path: [(part if isinstance(part, int) else -1, str(part)) for part in path], reverse=True):
            del functools.reduce(operator.getitem, above, document.data)[last]
    return found.model


def _existing(data: Any, key: str) -> tuple[str | int, ...]:
    """The path of a value; if it is missing, of what must have it."""
    path: list[str | int] = []
    for text in _PARTS.findall(key):
        part = int(text) if isinstance(data, list) and text.isdecimal() else text
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            break
        path.append(part)
    return tuple(path)


def checked(path: Path | None, found: Findings, *, is_partly_right: bool = False) -> Iterator[Finding]:
    """All that ``framegate check`` finds, each in its area, and one line where there is nothing. ``is_partly_right``: the rest is looked at."""
    if path is None:
        words = "none is named and there is none at the usual place: what depends on it is not looked at"
        yield unknown("configuration", "file", words, "name it: framegate doctor --config FILE")
        return
    findings: list[tuple[Level, list[Fault]]] = [("fault", found.faults), ("warning", found.warnings)]
    for level, faults in findings:
        for fault in faults:
            shown = f" = {fault.value}" if fault.value else ""
            where = f"line {fault.line} of {path}" if fault.line else str(path)
            area = "permissions" if fault.reason.startswith(EXPOSED) else area_of(fault.key)
            yield Finding(area, f"{fault.key or 'the document'}{shown}", level, fault.reason, f"correct {where}, or the file it refers to")
    if found.model is None:
        words = f"is faulty: {'only the rest of it is' if is_partly_right else 'what depends on it is not'} looked at"
        yield judged("configuration", str(path), words, fault=f"framegate check --config {path}")
        return
    besides = "" if found.config is not None else ", and this machine does not give what it needs"
    figures = {"listeners": len(found.model.listeners), "upstreams": len(found.model.upstreams)}
    yield judged("configuration", str(path), f"is valid{besides}", figures)


def area_of(key: str) -> Area:
    """The area of a fault of a key."""
    return next((area for part, area in _AREAS_OF_KEYS if part in key), "configuration")


def _without_repetition(findings: list[Finding]) -> list[Finding]:
    """Leave out what two areas found. ``framegate check`` and the validator both report a file that ended; the latter says more. ``framegate check``
    and the trial both report a folder that cannot be written.
    """
    tried = any(item.area == "disk" and item.subject.startswith("tap.directory") for item in findings)
    judged = [item.found for item in findings if item.area == "certificates" and item.level == "fault"]
    return [
        item
        for item in findings
        if not (item.area == "certificates" and item.level == "warning" and any(f" {item.found}" in words for words in judged))
        and not (tried and item.level == "fault" and item.subject.startswith("writing in "))
    ]
