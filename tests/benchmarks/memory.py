"""Part `memory`: at start, per idle connection, and under frames of 100 MB."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass

from candidates import Candidate
from peak import watched
from shapes import SHAPES, Load, Shape
from stage import MOST_CONNECTIONS, Stage

__all__ = ["BURSTING", "Idle", "hold", "run"]

BURST_BYTES = 1_000_000
BURSTING = 1_000
SETTLE_SECONDS = 1.5
HUGE = Shape("100m", 100_000_000, 1, 2)
KIB = 1024


@dataclass(frozen=True, slots=True)
class Idle:
    """One candidate with idle connections: MiB of all its processes (PSS), and how many connections there were."""

    candidate: str
    protocol: str
    connections: int
    before: float
    fresh: float
    bursting: int
    after_burst: float

    @property
    def fresh_kib(self) -> float:
        """Per connection that has had one small frame echoed."""
        return (self.fresh - self.before) * KIB / self.connections

    @property
    def burst_kib(self) -> float:
        """Per connection that has had a large frame echoed, too."""
        return self.fresh_kib + (self.after_burst - self.fresh) * KIB / self.bursting


def run(stage: Stage) -> dict[str, object]:
    """Everything; MiB throughout."""
    idle = []
    start = _at_start(stage)
    for tls in (False, True):
        idle += _idle(stage, Load(SHAPES[0], downstream_tls=tls))
    return {"start": start, "idle": [asdict(row) for row in idle], "huge": _huge(stage)}


def _at_start(stage: Stage) -> dict[str, dict[str, dict[str, float]]]:
    """Before any connection, process by process."""
    found, lines = {}, []
    with stage.all_started(Load(SHAPES[0])) as candidates:
        time.sleep(SETTLE_SECONDS)
        for candidate in candidates:
            memory = candidate.process.memory()
            found[candidate.name] = {name: size._asdict() for name, size in memory.items()}
            lines += [(candidate.name, name, f"{size.rss:.1f}", f"{size.pss:.1f}") for name, size in memory.items()]
            total = candidate.process.total_memory()
            lines.append((candidate.name, "all", f"{total.rss:.1f}", f"{total.pss:.1f}"))
    stage.table("memory at start, MiB", ("candidate", "process", "resident", "proportional"), lines)
    return found


def _idle(stage: Stage, load: Load) -> list[Idle]:
    """Candidates one after the other: ten thousand connections each are enough for one machine at a time."""
    rows = []
    for name in stage.names:
        with stage.all_started(load, [name]) as candidates:
            rows += [hold(stage, candidate, load, MOST_CONNECTIONS) for candidate in candidates]
    columns = ("candidate", "at start MiB", "with all of them MiB", "KiB each, fresh", f"KiB each, after {BURST_BYTES // 1_000_000} MB each way")
    lines = [(row.candidate, f"{row.before:.1f}", f"{row.fresh:.1f}", f"{row.fresh_kib:.1f}", f"{row.burst_kib:.1f}") for row in rows]
    words = f"{MOST_CONNECTIONS:,} idle connections, {load.protocol} ({BURSTING:,} of them had the burst)"
    if MOST_CONNECTIONS < 10_000:
        words += ": as many as the limit of descriptors allows here"
    stage.table(words, columns, lines)
    return rows


def hold(stage: Stage, candidate: Candidate, load: Load, connections: int) -> Idle:
    """Idle connections of one candidate, before and after a burst on the first thousand of them."""
    before = _settled(candidate)
    with stage.opener.hold(candidate.port, connections, tls=load.downstream_tls) as held:
        fresh = _settled(candidate)
        bursting = min(BURSTING, held.count)
        held.burst(BURST_BYTES, bursting)
        after = _settled(candidate)
    return Idle(candidate.name, load.protocol, held.count, before, fresh, bursting, after)


def _settled(candidate: Candidate) -> float:
    time.sleep(SETTLE_SECONDS)
    return candidate.process.total_memory().pss


def _huge(stage: Stage) -> list[dict[str, object]]:
    """The peak while frames of 100 MB pass: framegate keeps them whole, within its pool; the others pass bytes on."""
    rows: list[dict[str, object]] = []
    with stage.all_started(Load(HUGE)) as candidates:
        for candidate in candidates:
            before = candidate.process.total_memory().pss
            with watched(candidate.process) as peak:
                measured = stage.generator.run(candidate, Load(HUGE), 0)
            facts = {"before": before, "peak": peak.proportional, "after": _settled(candidate), "frames_per_second": measured.frames_per_second}
            rows.append({"candidate": candidate.name, **facts, "cpu_us": measured.cpu_us_per_frame})
    lines = [(str(row["candidate"]), *(f"{row[key]:.1f}" for key in ("before", "peak", "after", "frames_per_second"))) for row in rows]
    columns = ("candidate", "before MiB", "peak MiB", "after MiB", "frames/s")
    stage.table(f"memory under frames of 100 MB, {HUGE.connections} connections, one in flight each", columns, lines)
    return rows
