"""Part `answers`: large answers to small requests: memory, the time until their first byte, processor time, and the memory of idle connections."""

import statistics
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

import figures
import memory
from fetching import Ask, Fetched, answering, fetch
from figures import Figure, beside_peers
from processes import watched
from report import PEERS, medians, ratio_to_best, short, spread
from shapes import SHAPES, Load, Shape
from stage import Stage, in_turn

HUGE = Ask(100_000_000, connections=4, count=1)
LARGE = Ask(10_000_000, per_second=40, seconds=2.5)
LARGE_TLS = replace(LARGE, per_second=25, seconds=3.0, tls=True)
PLAIN = Ask(1 << 20, connections=4, in_flight=2)
MOST_MIB = 4.0
MOST_FIRST_US = 1000.0
MOST_COST = 0.8
MOST_IDLE = 1.1
FIRST_BYTE_ROUNDS = 2
COST_ROUNDS = 3
IDLE_NAMES = ("haproxy", "framegate")
SETTLE_SECONDS = 0.3


@dataclass(frozen=True, slots=True)
class Above:
    """The most memory above idle, MiB, while answers pass: resident by the kernel's own mark, and proportional by sampling."""

    candidate: str
    protocol: str
    resident: float
    proportional: float
    seconds: float


def run(stage: Stage) -> dict[str, object]:
    """Everything; the raw rounds and the figures."""
    peaks: list[Above] = []
    first: dict[str, list[Fetched]] = {}
    with answering(stage) as place:
        for load in (_load(HUGE), _load(HUGE, tls=True)):
            peaks += _memory(place, load)
        for load in (_load(LARGE), _load(LARGE, tls=True)):
            first[load.protocol] = _first_byte(place, load)
        cost = _cost(place)
    idle = _idle(stage)
    results: dict[str, object] = {"memory": [asdict(row) for row in peaks]}
    results["first_byte"] = {protocol: [asdict(row) for row in rows] for protocol, rows in first.items()}
    results |= {"cost": [asdict(row) for row in cost], "idle": [asdict(row) for row in idle]}
    return figures.add(results, _judged(peaks, first, cost, idle) if "framegate" in stage.names else [])


def _load(ask: Ask, *, tls: bool = False) -> Load:
    """What candidates are set up for."""
    return Load(Shape(f"{ask.answer // 1_000_000}m-answers", ask.answer, ask.in_flight, ask.connections), downstream_tls=tls)


def _memory(stage: Stage, load: Load) -> list[Above]:
    """Answers of 100 MB on four connections at once."""
    rows = []
    with stage.all_started(load) as candidates:
        for candidate in candidates:
            time.sleep(SETTLE_SECONDS)
            idle = candidate.process.total_memory()
            with watched(candidate.process) as peak:
                fetched = fetch(stage, candidate, replace(HUGE, tls=load.downstream_tls))
            rows.append(Above(candidate.name, load.protocol, peak.resident - idle.rss, peak.proportional - idle.pss, fetched.seconds))
    columns = ("candidate", "resident MiB", "proportional MiB", "seconds")
    lines = [(row.candidate, short(row.resident), short(row.proportional), short(row.seconds)) for row in rows]
    stage.table(f"{load.protocol}: {HUGE.connections} answers of 100 MB at once: the most memory above idle", columns, lines)
    return rows


def _first_byte(stage: Stage, load: Load) -> list[Fetched]:
    """Answers of 10 MB, at a rate that overloads no candidate: from the upstream's first byte to the client's."""
    ask = LARGE_TLS if load.downstream_tls else LARGE
    with stage.all_started(load) as candidates:
        rows = in_turn(candidates, FIRST_BYTE_ROUNDS, lambda candidate, number: fetch(stage, candidate, ask))
    middle, late, whole = (medians(rows, key) for key in ("first_p50_us", "first_p99_us", "whole_p50_us"))
    lines = []
    for name in middle:
        mine = [row for row in rows if row.candidate == name]
        longest, count = max(row.first_max_us for row in mine), sum(row.answers for row in mine)
        lines.append((name, short(middle[name]), short(late[name]), short(longest), short(whole[name]), str(count)))
    columns = ("candidate", "first p50 µs", "first p99 µs", "first max µs", "whole p50 µs", "answers")
    stage.table(f"{load.protocol}: answers of 10 MB: upstream's first byte to client's first byte", columns, lines)
    return rows


def _cost(stage: Stage) -> list[Fetched]:
    """Plaintext answers of 1 MB in a closed loop: processor time for each."""
    ask = replace(PLAIN, seconds=stage.generator.seconds, warm_up=stage.generator.warm_up)
    with stage.all_started(_load(PLAIN)) as candidates:
        rows = in_turn(candidates, min(stage.rounds, COST_ROUNDS), lambda candidate, number: fetch(stage, candidate, ask))
    cost = medians(rows, "cpu_us")
    lines = []
    for name, value in cost.items():
        mine = [row for row in rows if row.candidate == name]
        ratios = [ratio_to_best(value, [cost[peer] for peer in peers if peer in cost]) for peers in (PEERS, ("c-relay",))]
        speed = statistics.median(row.answers / row.seconds for row in mine)
        busy = statistics.median(row.busy for row in mine)
        lines.append((name, *spread([row.cpu_us for row in mine]), *ratios, f"{speed:,.0f}", f"{busy:.0%}"))
    columns = ("candidate", "CPU µs", "low – high", "÷ best peer", "÷ C relay", "answers/s", "core busy")
    stage.table("plain: answers of 1 MB: processor time for each", columns, lines)
    return rows


def _idle(stage: Stage) -> list[memory.Idle]:
    """TLS connections after a burst of 1 MB each way; the echo is the usual one."""
    load = Load(SHAPES[0], downstream_tls=True)
    rows = []
    for name in (name for name in stage.names if name in IDLE_NAMES):
        with stage.all_started(load, [name]) as candidates:
            rows += [memory.hold(stage, candidate, load, memory.BURSTING) for candidate in candidates]
    lines = [(row.candidate, f"{row.fresh_kib:.1f}", f"{row.burst_kib:.1f}") for row in rows]
    columns = ("candidate", "KiB each, fresh", "KiB each, after 1 MB each way")
    stage.table(f"tls: {memory.BURSTING:,} idle connections", columns, lines)
    return rows


def _judged(peaks: list[Above], first: Mapping[str, list[Fetched]], cost: list[Fetched], idle: list[memory.Idle]) -> list[Figure]:
    found = []
    for protocol in dict.fromkeys(row.protocol for row in peaks):
        values = {row.candidate: row.resident for row in peaks if row.protocol == protocol}
        mine, peers = values["framegate"], beside_peers(values)
        what = f"100 MB answers on 4 connections, {protocol}: memory above idle"
        met = mine <= MOST_MIB and mine <= min(peers.values(), default=mine)
        found.append(Figure(what, f"≤ {MOST_MIB:.0f} MiB, ≤ best peer", mine, "MiB", peers, met))
    for protocol, rows in first.items():
        values = medians(rows, "first_p99_us")
        mine = values["framegate"]
        what = f"first byte out after first byte in, 10 MB answer, {protocol}, p99"
        found.append(Figure(what, "≤ 1 ms", mine / 1000, "ms", {n: v / 1000 for n, v in beside_peers(values).items()}, mine <= MOST_FIRST_US))
    values = medians(cost, "cpu_us")
    mine, peers = values["framegate"], beside_peers(values)
    met = mine <= MOST_COST * min(peers.values(), default=float("inf"))
    found.append(Figure("plaintext 1 MB answers: CPU for each", f"≤ {MOST_COST} × best peer", mine, "µs", peers, met))
    values = {row.candidate: row.burst_kib for row in idle}
    haproxy = {name: values[name] for name in ("haproxy",) if name in values}
    met = values["framegate"] <= MOST_IDLE * haproxy.get("haproxy", float("inf"))
    goal = f"≤ {MOST_IDLE} × HAProxy's"
    found.append(Figure("idle TLS connection after 1 MB each way: memory", goal, values["framegate"], "KiB", haproxy, met))
    return found
