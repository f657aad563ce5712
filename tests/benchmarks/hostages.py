"""Part `hostages`: a good client's round trips while a thousand others hold memory and never release it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace

import figures
import native
from fetching import Ask, Fetched, answering, attempt
from figures import Figure, beside_peers
from processes import event, load_command, started, watched
from report import PEERS, short
from shapes import Load, Shape
from stage import Stage

MIB = 1 << 20
HOSTAGES = 1_000
SEGMENT = 1_460
"""Bytes of a TCP segment between hostages, candidate and upstream: as on a network. With loopback's 64 KiB the kernel alone buffers 2.6 MB for each
socket that is not read, which is gigabytes for a thousand."""
STANDING_SECONDS = 2.0
PATIENCE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Siege:
    framegate: str  # the variant of framegate
    words: str  # for tables
    announce: int  # bytes of the frames that hostages begin: framegate's limit
    good: Ask  # what the good client does
    peers: tuple[str, ...]  # who is measured beside
    goal: str  # in words; `most_ms` of the percentile `key` (of Fetched) is the bound
    key: str
    most_ms: float
    tls: bool = False  # towards clients


GOOD = Ask(0, request=100, connections=10, per_second=1_000, warm_up=1, seconds=10, patience=PATIENCE_SECONDS)
LARGE = replace(GOOD, request=65_532, per_second=500)
SIEGES = (
    Siege("framegate-64m", "pool 64 MiB, 100 B, plain", 60 * MIB, GOOD, PEERS, "p99 ≤ 5 ms", "whole_p99_us", 5.0),
    Siege("framegate-64m", "pool 64 MiB, 100 B, tls", 60 * MIB, GOOD, ("haproxy",), "p99 ≤ 5 ms", "whole_p99_us", 5.0, tls=True),
    Siege("framegate-4m", "pool 4 MiB, 64 KiB, plain", 3 * MIB, LARGE, ("haproxy",), "max ≤ 100 ms", "whole_max_us", 100.0),
)


@dataclass(slots=True)
class Hostages:
    """The number that the candidate closed and that connected again, by kind; `standing` at the end; `refused` at the beginning."""

    standing: int = 0
    refused: int = 0
    closed: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Besieged:
    """The result of the good client of one candidate; `failed` says why there is none."""

    candidate: str
    setting: str
    good: Fetched | None
    failed: str
    resident: float
    hostages: Hostages

    def milliseconds(self, key: str) -> float:
        """One of its times; infinite when it has none."""
        return float("inf") if self.good is None else float(getattr(self.good, key)) / 1000


def run(stage: Stage) -> dict[str, object]:
    """Every setting in turn, one candidate at a time; the rows and the figures."""
    rows: list[Besieged] = []
    found: list[Figure] = []
    with answering(stage, SEGMENT) as place:
        for siege in SIEGES:
            names = [siege.framegate if name == "framegate" else name for name in stage.names if name == "framegate" or name in siege.peers]
            here = [row for name in names for row in _besiege(place, siege, name)]
            _show(stage, siege, here)
            rows += here
            found += _judged(siege, here)
    return figures.add({"rows": [asdict(row) for row in rows]}, found)


@contextmanager
def held(stage: Stage, port: int, count: int, announce: int, *, tls: bool = False) -> Iterator[Hostages]:
    """Hold so many hostages during the block; the result is complete after it."""
    program = native.build("hostages", stage.place.cache)
    options = {"count": count, "announce": announce, "answer": 60 * MIB, "segment": SEGMENT}
    result = Hostages()
    with started(load_command(program, stage.generator.core, port, options, *["--tls"] * tls)) as process:
        event(process, "open")
        yield result
        assert process.stdin is not None
        process.stdin.close()
        done = event(process, "done")
        result.standing, result.refused = int(done["standing"]), int(done["refused"])
        result.closed = {key: int(value) for key, value in done.items() if key not in ("event", "standing", "refused")}


def _besiege(stage: Stage, siege: Siege, name: str) -> list[Besieged]:
    load = Load(Shape("hostages", siege.good.request, 1, siege.good.connections), downstream_tls=siege.tls)
    rows = []
    with stage.all_started(load, [name]) as candidates:
        for candidate in candidates:
            idle = candidate.process.total_memory()
            with watched(candidate.process) as peak, held(stage, candidate.port, HOSTAGES, siege.announce, tls=siege.tls) as hostages:
                time.sleep(STANDING_SECONDS)
                good, failed = attempt(stage, candidate, replace(siege.good, tls=siege.tls))
            rows.append(Besieged(candidate.name, siege.words, good, failed, peak.resident - idle.rss, hostages))
    return rows


def _show(stage: Stage, siege: Siege, rows: list[Besieged]) -> None:
    lines = []
    for row in rows:
        times = [short(row.milliseconds(key)) for key in ("whole_p50_us", "whole_p99_us", "whole_max_us")]
        missing = "failed" if row.good is None else f"{row.good.missing:,} of {row.good.answers + row.good.missing:,}"
        opening = "" if row.good is None else short(row.good.opening_ms)
        closed = ", ".join(f"{kind} {count}" for kind, count in row.hostages.closed.items() if count)
        lines.append((row.candidate, *times, missing, opening, short(row.resident), closed or "none"))
    columns = ("candidate", "p50 ms", "p99 ms", "max ms", "missing", "10 opened in ms", "MiB above idle", "hostages closed")
    stage.table(f"{HOSTAGES:,} hostages, {siege.words}: the good client's round trip", columns, lines)
    stage.say_failures(rows)


def _judged(siege: Siege, rows: list[Besieged]) -> list[Figure]:
    values = {row.candidate: row.milliseconds(siege.key) for row in rows}
    found = []
    for row in rows:
        if row.candidate != siege.framegate:
            continue
        mine = values[row.candidate]
        met = row.good is not None and row.good.missing == 0 and mine <= siege.most_ms
        note = row.failed or (f"{row.good.missing:,} frames never came back" if row.good is not None and row.good.missing else "")
        what = f"{HOSTAGES:,} hostages, {siege.words}: good client"
        found.append(Figure(what, siege.goal, None if row.good is None else mine, "ms", beside_peers(values), met, note))
    return found
