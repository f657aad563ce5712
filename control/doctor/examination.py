"""All areas, in the order in which one needs the other: the configuration, the framegate that runs, everything else, the upstreams' addresses.

Each step is done after ``timeout_s`` and a margin at the latest. Nothing is changed: what is written is a file without a name in the tap's directory
(and what ``framegate check`` tries), nothing that is secret is in what comes out.
"""

import dataclasses
import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from control.configuration.fault import Findings
from control.configuration.load import examine
from control.configuration.machine import IN_USE
from control.doctor import certificates, clock, collector, configuration, cpu, disk, kernel, kubernetes, limits, memory, names, permissions
from control.doctor.finding import Area, Finding
from control.doctor.lookups import Lookups
from control.doctor.probe import Probe, look_at_all
from control.doctor.running import Running
from control.doctor.surroundings import Surroundings
from control.doctor.upstreams import address_probes

__all__ = ["Examination", "examine_all"]

Look = Callable[[Surroundings], Iterator[Finding]]
_AREAS: Final[tuple[tuple[Area, str, Look], ...]] = (
    ("limits", "limits of processes", limits.look),
    ("memory", "memory", memory.look),
    ("cpu", "CPUs", cpu.look),
    ("certificates", "files", certificates.look),
    ("names", "resolver", names.look),
    ("telemetry", "collector", collector.look),
    ("clock", "clock", clock.look),
    ("disk", "the tap's disk", disk.look),
    ("permissions", "permissions", permissions.look),
    ("kernel", "settings", kernel.look),
    ("kubernetes", "pod", kubernetes.look),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Examination:
    """What came out. ``address``: of the control plane that was asked."""

    findings: list[Finding]
    address: str


def examine_all(
    around: Surroundings, path: Path | None, address: str | None, *, default: str, why: Callable[[str], str], version: str
) -> Examination:
    """Look at everything.

    Args:
        around: without a configuration yet.
        path: of the configuration file; None: there is none.
        address: of the control plane; None: the file's, or else ``default``.
        why: says why nobody answers at an address.
        version: of this program.
    """
    read: list[Findings] = []
    early = [] if path is None else look_at_all([Probe("configuration", str(path), lambda: _read(path, read))], around.timeout_s)
    found = read[0] if read else Findings(None, [], [])
    around = dataclasses.replace(around, config=found.model)
    address = address or (default if found.model is None else found.model.admin.address)
    running = Running(around, address, why, version)
    first = look_at_all([Probe("running", "control plane", running.look)], around.timeout_s)
    around = dataclasses.replace(around, pid=running.pid)
    if running.answered:  # it is what uses them
        found = found._replace(warnings=[item for item in found.warnings if not item.reason.startswith(IN_USE)])
    told = early if early else list(configuration.look(path, found))
    lookups = Lookups(around)
    probes = [Probe(area, subject, functools.partial(look, around)) for area, subject, look in _AREAS]
    second = look_at_all([*probes, Probe("names", "names of upstreams", lookups.look)], around.timeout_s)
    third = look_at_all(address_probes(around, lookups.addresses), around.timeout_s)
    return Examination(_without_repetition([*told, *first, *second, *third]), address)


def _read(path: Path, read: list[Findings]) -> Iterator[Finding]:
    """Yields nothing: what is wrong is told when it is known who runs."""
    read.append(examine(os.fspath(path), in_use=True))
    yield from ()


def _without_repetition(findings: list[Finding]) -> list[Finding]:
    """A file that ended is told by ``framegate check`` in a few words, and by the judge of files in more; a folder that cannot be written by it, and
    by who tries to write there.
    """
    told = any(item.area == "disk" and item.subject.startswith("tap.directory") for item in findings)
    judged = [item.found for item in findings if item.area == "certificates" and item.level == "fault"]
    return [
        item
        for item in findings
        if not (item.area == "certificates" and item.level == "warning" and any(f" {item.found}" in words for words in judged))
        and not (told and item.level == "fault" and item.subject.startswith("writing in "))
    ]
