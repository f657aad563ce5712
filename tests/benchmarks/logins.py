"""Part `logins`: a good client's round trips beside a storm of SCRAM logins at another listener of the same node, and beside one of PLAIN."""

from __future__ import annotations

import secrets
import statistics
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import figures
import native
from candidates import Framegate
from driver import VoidRoundError, event, started
from fetching import Ask, Fetched, answering, asking
from figures import Figure
from peak import watched
from processes import Process
from shapes import Load, Shape
from stage import Stage, short
from variants import FramegateLogins

from framegate.proxy.cells.metrics import AUTHENTICATION_ERRORS, CAUSES

__all__ = ["Outcomes", "Shares", "run", "storming"]

LOGINS_PER_SECOND = 500
SECONDS = 60.0
QUICK_SECONDS = 6.0
WARM_UP_SECONDS = 1.0
LEAD_SECONDS = 1.0
"""The storm begins so much earlier than the good client, and ends so much later."""
MOST_RATIO = 2.0
MOST_DRIFT = 2.0
"""Between the p99 of the two quiet rounds: where they differ by more, it is the machine that was measured."""
GOOD = Ask(0, request=100, connections=10, per_second=1_000, warm_up=WARM_UP_SECONDS, patience=10)


@dataclass(frozen=True, slots=True)
class Storm:
    """One kind of logins; `judged` where the promise is."""

    mechanism: str
    judged: bool


SCRAM = Storm("SCRAM-SHA-512", judged=True)
PLAIN = Storm("PLAIN", judged=False)
"""Each costs the control process a few milliseconds of hashing: as many as this are more than one core can check, so that some must be refused."""
SETTINGS = ((SCRAM, False), (SCRAM, True), (PLAIN, False))


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What became of the logins that fell due while it was measured; milliseconds from when one was due to its first frame back.

    Attributes:
        through: let in, and its frame echoed.
        refused: told that they are not.
        closed: ended without a word.
        missing: neither, when it was given up.
        late: that could not begin when they were due.
    """

    due: int
    through: int
    refused: int
    closed: int
    missing: int
    late: int
    seconds: float
    p50_ms: float
    p99_ms: float
    max_ms: float

    @property
    def lost(self) -> int:
        """Neither let in nor told that they are not."""
        return self.closed + self.missing


@dataclass(slots=True)
class Shares:
    """How much of a core each process had, and waited for, between two looks."""

    control: float = 0.0
    processors: float = 0.0
    control_waited: float = 0.0
    processors_waited: float = 0.0


@dataclass(slots=True)
class Beside:
    """A storm, and the good client beside it; `quiet` are its rounds without."""

    mechanism: str
    protocol: str
    quiet: list[Fetched]
    good: Fetched
    logins: Outcomes
    shares: Shares
    grown: float
    errors: dict[str, int]
    causes: dict[str, int]

    @property
    def ratio(self) -> float:
        """p99 beside the storm, by that of the quiet rounds."""
        return self.good.whole_p99_us / statistics.mean(row.whole_p99_us for row in self.quiet)

    @property
    def was_quiet(self) -> bool:
        """Whether the quiet rounds agree."""
        times = [row.whole_p99_us for row in self.quiet]
        return max(times) <= MOST_DRIFT * min(times)


def run(stage: Stage) -> dict[str, object]:
    """Every storm in turn; the rows and the figures."""
    if "framegate" not in stage.names:
        raise VoidRoundError("this part is framegate's alone, which is not among the candidates")
    seconds = QUICK_SECONDS if stage.quick else SECONDS
    with answering(stage) as place:
        rows = [_beside(place, storm, tls, seconds) for storm, tls in SETTINGS]
    _show(stage, rows)
    return figures.add({"rows": [asdict(row) for row in rows]}, _judged(rows))


@contextmanager
def storming(stage: Stage, port: int, user: str, password: str, *, mechanism: str, rate: float, seconds: float) -> Iterator[subprocess.Popen[str]]:
    """A storm from now on; its events are `measuring`, `measured` and `done`.

    It is the least of those on its core: what the good client and the upstream wait for is to be the candidate, not the storm's own work.
    """
    program = native.build("logins", stage.place.cache)
    options = {"--connect": f"127.0.0.1:{port}", "--user": user, "--password": password, "--mechanism": mechanism}
    options |= {"--rate": str(rate), "--warm-up": str(LEAD_SECONDS), "--seconds": str(seconds)}
    words = [word for pair in options.items() for word in pair]
    with started(["taskset", "-c", str(stage.generator.core), "nice", "-n", "19", str(program), *words]) as process:
        event(process, "measuring")
        yield process


def _beside(stage: Stage, storm: Storm, tls: bool, seconds: float) -> Beside:
    load = Load(Shape("logins", GOOD.request, 1, GOOD.connections), downstream_tls=tls)
    quiet = replace(GOOD, tls=tls, seconds=seconds / 2)
    user, password = "storm", secrets.token_hex(16)
    FramegateLogins.add_user(stage.place, user, password)
    with stage.all_started(load, ["framegate-logins"]) as (candidate,):
        assert isinstance(candidate, FramegateLogins)
        port = candidate.ports["logins"]
        quiets = [_good(stage, candidate, quiet)]
        before, idle = candidate.metrics(), candidate.process.total_memory()
        length = seconds + WARM_UP_SECONDS + LEAD_SECONDS
        with (
            watched(candidate.process) as peak,
            storming(stage, port, user, password, mechanism=storm.mechanism, rate=LOGINS_PER_SECOND, seconds=length) as process,
        ):
            with sharing(candidate.process) as shares:
                good = _good(stage, candidate, replace(quiet, seconds=seconds))
            measured, done = event(process, "measured"), event(process, "done")
        outcomes = _outcomes(measured)
        errors = _counted(candidate, before, "framegate_authentication_count", "error_type", AUTHENTICATION_ERRORS)
        causes = _counted(candidate, before, "framegate_connection_closed", "framegate_cause", CAUSES)
        if sum(errors.values()) != done["refused"]:
            raise VoidRoundError(f"{done} by the clients, and framegate counted {errors}")
        quiets.append(_good(stage, candidate, quiet))
    return Beside(storm.mechanism, load.protocol, quiets, good, outcomes, shares, peak.resident - idle.rss, errors, causes)


def _good(stage: Stage, candidate: Framegate, ask: Ask) -> Fetched:
    with asking(stage, candidate, ask) as clients:
        return clients.finish()[0]


def _outcomes(row: dict[str, Any]) -> Outcomes:
    return Outcomes(**{key: value for key, value in row.items() if key != "event"})


def _counted(candidate: Framegate, before: str, metric: str, label: str, words: Iterable[str]) -> dict[str, int]:
    """What framegate has counted at the storm's listener since then, by its own word for why; what ended well is not in it."""
    after = candidate.metrics()
    found = {}
    for word in words:
        labels = ('framegate_listener="logins"', f'{label}="{word}"')
        count = candidate.metric(metric, *labels, page=after) - candidate.metric(metric, *labels, page=before)
        if count and word:
            found[word] = int(count)
    return found


@contextmanager
def sharing(process: Process) -> Iterator[Shares]:
    """What the control process (the tree's first) and the others have of a core, and wait for, until the block ends."""
    pids = process.tree()
    before, began = {pid: _scheduled(pid) for pid in pids}, time.monotonic_ns()
    found = Shares()
    yield found
    seconds = time.monotonic_ns() - began
    for pid in pids:
        ran, waited = (new - old for new, old in zip(_scheduled(pid), before[pid], strict=True))
        if pid == process.pid:
            found.control, found.control_waited = ran / seconds, waited / seconds
        else:
            found.processors += ran / seconds
            found.processors_waited += waited / seconds


def _scheduled(pid: int) -> tuple[int, int]:
    """Nanoseconds that a process's threads ran, and that they were ready and did not; those of threads that have ended are not in it."""
    ran = waited = 0
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        words = path.read_text().split()
        ran, waited = ran + int(words[0]), waited + int(words[1])
    return ran, waited


def _show(stage: Stage, rows: list[Beside]) -> None:
    lines = []
    for row in rows:
        title = f"{row.mechanism}, {row.protocol}"
        for number, quiet in enumerate(row.quiet):
            times = [short(getattr(quiet, key) / 1000) for key in ("whole_p50_us", "whole_p99_us", "whole_max_us")]
            lines.append((f"{title}: quiet, {'after' if number else 'before'}", *times, "", *[""] * 7))
        times = [short(getattr(row.good, key) / 1000) for key in ("whole_p50_us", "whole_p99_us", "whole_max_us")]
        logins = row.logins
        shares = [f"{share:.0%}" for share in (row.shares.control, row.shares.processors)]
        counts = [f"{count / logins.seconds:,.0f}" for count in (logins.through, logins.refused)]
        lines.append((f"{title}: storm", *times, f"{row.ratio:.2f}", *counts, short(logins.p50_ms), short(logins.p99_ms), *shares, short(row.grown)))
    columns = ("the good client's round trip", "p50 ms", "p99 ms", "max ms", "p99 ÷ quiet", "through /s", "refused /s", "login p50 ms", "p99 ms")
    title = f"{LOGINS_PER_SECOND} logins a second at another listener of the same node"
    stage.table(title, (*columns, "control", "processor", "MiB more"), lines)
    for row in rows:
        words = ", ".join(f"{word} {count:,}" for word, count in row.errors.items()) or "none"
        waits = f"control waited {row.shares.control_waited:.0%} of the time for its core, the processor {row.shares.processors_waited:.0%}"
        stage.say(f"{row.mechanism}, {row.protocol}: not let in: {words}; lost {row.logins.lost}, late {row.logins.late}; {waits}")
        stage.say(f"    its connections ended: {', '.join(f'{word} {count:,}' for word, count in row.causes.items())}")


def _judged(rows: list[Beside]) -> list[Figure]:
    found = []
    for row in rows:
        title = f"{LOGINS_PER_SECOND} {row.mechanism} logins/s beside, {row.protocol}"
        if row.mechanism == SCRAM.mechanism:
            note = f"p99 {short(row.good.whole_p99_us / 1000)} ms, quiet {', '.join(short(quiet.whole_p99_us / 1000) for quiet in row.quiet)} ms"
            met = row.was_quiet and row.ratio <= MOST_RATIO and row.good.missing == 0
            note += "" if row.was_quiet else ": the machine was not quiet, run again"
            found.append(Figure(f"{title}: good client's p99 ÷ quiet", f"≤ {MOST_RATIO:g}", row.ratio if row.was_quiet else None, "×", {}, met, note))
        what = f"{title}: logins neither let in nor told that they are not"
        met = row.logins.lost == 0 and set(row.errors) <= {"unavailable"}
        found.append(Figure(what, "0", row.logins.lost, "", {}, met))
    return found
