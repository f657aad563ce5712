"""Part `pressure`: more large frames than the pool holds. Requests and answers that must not wait for each other, and slow readers beside others."""

import statistics
from dataclasses import asdict, dataclass

import figures
from candidates import Candidate
from fetching import Ask, answering, asking, attempt
from figures import Figure, beside_peers
from processes import VoidRoundError, watched
from report import short
from shapes import Load, Shape
from stage import Stage

CIRCLE = Ask(0, request=16_000_000, connections=20, in_flight=4, count=4, patience=35)
SLOW = Ask(200_000_000, connections=3, count=1, read_rate=20_000_000, patience=35)
BESIDE = Ask(0, request=1_000_000, connections=20, count=20, per_second=40, patience=35)
TIGHT, WIDE, READERS = "framegate-32m", "framegate-1g", "framegate-slow"
ROUNDS = 3
MOST_RATIO = 1.1
POOL_MIB = 32.0
LARGEST_MIB = {TIGHT: 16.0, WIDE: 16.0, READERS: 2.0}  # the largest frame that the candidate's listener passes whole: its limit
ONE_READ_MIB = 0.25
PIECES = 1.25  # bytes in memory for each byte booked, at most (proxy/network/MEMORY.md)
SLOW_PEERS = ("haproxy",)


@dataclass(frozen=True, slots=True)
class Passed:
    candidate: str  # its name
    seconds: float  # until everything had come back; 0 when it did not, and `failed` says why
    failed: str
    resident: float  # MiB above idle at the peak
    beside_ms: float = 0.0  # the longest round trip of what passed beside; 0 when nothing did


def small_pool_bound(candidate: str) -> float:
    """MiB above idle that a pool of 32 MiB promises: what may be held, and a quarter more for pieces of reads."""
    return PIECES * (POOL_MIB + LARGEST_MIB[candidate] + ONE_READ_MIB)


def run(stage: Stage) -> dict[str, object]:
    """Both cases; the rows and the figures."""
    with answering(stage) as place:
        circle = _circle(place)
        slow = _slow_readers(place)
    found = [*_judged_circle(circle), *_judged_slow(slow)]
    return figures.add({"circle": [asdict(row) for row in circle], "slow_readers": [asdict(row) for row in slow]}, found)


def _names(stage: Stage, mine: tuple[str, ...], peers: tuple[str, ...]) -> list[str]:
    others = [name for name in stage.names if name in peers]
    return [*others, *(mine if "framegate" in stage.names else ())]


def _circle(stage: Stage) -> list[Passed]:
    """Clients pipeline requests of 16 MB to an upstream that reads a whole one and then answers it, with a small pool and with a large one."""
    load = Load(Shape("16m-echo", CIRCLE.request, CIRCLE.in_flight, CIRCLE.connections))
    rows: list[Passed] = []
    with stage.all_started(load, _names(stage, (TIGHT, WIDE), ("c-relay", "haproxy", "nginx", "envoy"))) as candidates:
        idle = {candidate.name: candidate.process.total_memory().rss for candidate in candidates}
        for number in range(ROUNDS):
            for candidate in candidates:
                once = not candidate.name.startswith("framegate")
                if not (number and once) and not any(row.failed for row in rows if row.candidate == candidate.name):
                    rows.append(_pass(stage, candidate, idle[candidate.name]))
    lines = []
    for name in dict.fromkeys(row.candidate for row in rows):
        mine = [row for row in rows if row.candidate == name]
        seconds = ", ".join("failed" if row.failed else short(row.seconds) for row in mine)
        lines.append((name, seconds, short(max(row.resident for row in mine))))
    title = f"{CIRCLE.connections} clients × {CIRCLE.count} requests of 16 MB, each answered with as much once it is whole"
    stage.table(title, ("candidate", "seconds", "MiB above idle"), lines)
    stage.say_failures(rows)
    return rows


def _pass(stage: Stage, candidate: Candidate, idle: float) -> Passed:
    with watched(candidate.process) as peak:
        fetched, failed = attempt(stage, candidate, CIRCLE)
    return Passed(candidate.name, 0.0 if fetched is None else fetched.seconds, failed, peak.resident - idle)


def _slow_readers(stage: Stage) -> list[Passed]:
    """Answers of 200 MB read at 20 MB a second each, and 400 frames of 1 MB echoed meanwhile."""
    load = Load(Shape("200m-answers", SLOW.answer, 1, SLOW.connections))
    rows = []
    with stage.all_started(load, _names(stage, (READERS,), SLOW_PEERS)) as candidates:
        for candidate in candidates:
            failed, seconds, beside_ms, idle = "", 0.0, 0.0, candidate.process.total_memory().rss
            with watched(candidate.process) as peak:
                try:
                    with asking(stage, candidate, SLOW) as readers:
                        with asking(stage, candidate, BESIDE) as clients:
                            beside_ms = clients.finish()[0].whole_max_us / 1000
                        seconds = readers.finish()[0].seconds
                except VoidRoundError as error:
                    candidate.process.check()
                    failed = str(error).strip()
            rows.append(Passed(candidate.name, seconds, failed, peak.resident - idle, beside_ms))
    lines = [(row.candidate, "failed" if row.failed else short(row.seconds), short(row.beside_ms), short(row.resident)) for row in rows]
    columns = ("candidate", "200 MB answers, s", "1 MB echoes, max ms", "MiB above idle")
    stage.table("3 answers of 200 MB read at 20 MB/s, 400 frames of 1 MB beside them", columns, lines)
    stage.say_failures(rows)
    return rows


def _judged_circle(rows: list[Passed]) -> list[Figure]:
    mine = {name: [row for row in rows if row.candidate == name] for name in (TIGHT, WIDE)}
    if not mine[TIGHT]:
        return []
    failed = next((f"{row.candidate}: {row.failed}" for row in rows if row.failed and row.candidate in mine), "")
    tight, wide = (statistics.median(row.seconds for row in mine[name]) for name in (TIGHT, WIDE))
    peers = beside_peers({row.candidate: row.seconds for row in rows if not row.failed})
    goal = f"≤ {MOST_RATIO} × 1 GiB ({short(wide)} s)"
    met = not failed and tight <= MOST_RATIO * wide
    what = "20 × 4 requests of 16 MB, answered when whole, pool 32 MiB"
    return [Figure(what, goal, None if failed else tight, "s", peers, met, failed), _bound_figure(what, mine[TIGHT])]


def _judged_slow(rows: list[Passed]) -> list[Figure]:
    mine = [row for row in rows if row.candidate == READERS]
    if not mine:
        return []
    what = "3 × 200 MB slow readers, 400 × 1 MB frames, pool 32 MiB"
    failed = mine[0].failed
    peers = beside_peers({row.candidate: row.seconds for row in rows if not row.failed})
    delivered = Figure(f"{what}: all delivered", "all", None if failed else mine[0].seconds, "s", peers, not failed, failed)
    return [delivered, _bound_figure(what, mine)]


def _bound_figure(what: str, rows: list[Passed]) -> Figure:
    most, bound = max(row.resident for row in rows), small_pool_bound(rows[0].candidate)
    return Figure(f"{what}: memory above idle", f"≤ {bound:.1f} MiB", most, "MiB", {}, most <= bound)
