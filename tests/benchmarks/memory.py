"""Part `memory`: at start, and per idle connection."""

import time
from dataclasses import asdict, dataclass

from candidates import Candidate
from shapes import SHAPES, Load
from stage import FEWER_CONNECTIONS, MOST_CONNECTIONS, Stage

BURST_BYTES = 1_000_000
BURSTING = 1_000
SETTLE_SECONDS = 1.5
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
    return {"start": start, "idle": [asdict(row) for row in idle]}


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
    """Candidates one after the other, because each has ten thousand connections."""
    rows = []
    for name in stage.names:
        with stage.all_started(load, [name]) as candidates:
            rows += [hold(stage, candidate, load, MOST_CONNECTIONS) for candidate in candidates]
    columns = ("candidate", "at start MiB", "with all of them MiB", "KiB each, fresh", f"KiB each, after {BURST_BYTES // 1_000_000} MB each way")
    lines = [(row.candidate, f"{row.before:.1f}", f"{row.fresh:.1f}", f"{row.fresh_kib:.1f}", f"{row.burst_kib:.1f}") for row in rows]
    stage.table(f"{MOST_CONNECTIONS:,} idle connections, {load.protocol} ({BURSTING:,} of them had the burst){FEWER_CONNECTIONS}", columns, lines)
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
