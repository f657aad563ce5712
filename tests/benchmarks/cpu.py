"""Part `cpu`: processor time per echoed frame, throughput, and latency at half load."""

from collections.abc import Sequence

import report
from candidates import Candidate
from measure import Round
from processes import VoidRoundError
from report import PEERS, ratio_to_best, short
from shapes import Load
from stage import Stage, in_turn

LARGE = 1 << 20
ROUNDS_OF_LARGE = 7
LATENCY_ROUNDS = 3
CALIBRATIONS = 6
HALF_LOAD = 0.5
REFERENCE = "c-relay"


def run(stage: Stage, loads: Sequence[Load], rounds: list[Round], *, latency: bool) -> None:
    """Measure every load in turn; the rounds are added to `rounds`. Raises VoidRoundError: a round of some load was void; the other loads were
    measured all the same.
    """
    failures = []
    for load in loads:
        try:
            _measure(stage, load, rounds, latency=latency)
        except VoidRoundError as error:
            stage.say(f"{load.title}: VOID: {error}")
            failures.append(f"{load.title}: {error}")
    if failures:
        raise VoidRoundError("; ".join(failures))


def _measure(stage: Stage, load: Load, rounds: list[Round], *, latency: bool) -> None:
    count = max(stage.rounds, ROUNDS_OF_LARGE) if load.shape.size >= LARGE and stage.rounds > LATENCY_ROUNDS else stage.rounds
    with stage.all_started(load) as candidates:
        rows = in_turn(candidates, count, lambda candidate, number: stage.generator.run(candidate, load, number))
        rounds += rows
        show_throughput(stage, load, rows)
        if latency and candidates and load.protocol != "tls-both":
            rate = _half_load(stage, load, candidates, rows)
            count = min(stage.rounds, LATENCY_ROUNDS)
            rows = in_turn(candidates, count, lambda candidate, number: stage.generator.run(candidate, load, number, rate))
            rounds += rows
            _show_latency(stage, load, rows)


def _half_load(stage: Stage, load: Load, candidates: Sequence[Candidate], rows: Sequence[Round]) -> float:
    """Frames per second that keep the slowest candidate's core half busy. Half of its rate in the closed loop would be too much where that loop keeps
    several frames in flight: there they travel together, and in the open loop one by one, each with its own system calls.
    """
    summaries = report.summarize(rows)
    speed = {candidate: summaries[load.protocol, load.shape.name, candidate.name].frames_per_second for candidate in candidates}
    slowest = min(candidates, key=lambda candidate: speed[candidate])
    rate = 0.5 * speed[slowest]
    for _ in range(CALIBRATIONS):
        try:
            busy = stage.generator.run(slowest, load, 0, rate).busy
        except VoidRoundError:  # so far behind that nothing came back in time
            busy = 1.0
        if busy <= HALF_LOAD + 0.1:
            break
        rate *= HALF_LOAD / busy
    return rate


def show_throughput(stage: Stage, load: Load, rounds: Sequence[Round]) -> None:
    """The closed loop: the cost of each candidate at its highest throughput."""
    rows = report.summarize(rounds).values()
    cost = {row.candidate: row.cpu_us for row in rows}
    lines = []
    for row in rows:
        ratios = [ratio_to_best(row.cpu_us, [cost[name] for name in names if name in cost]) for names in (("haproxy",), PEERS, (REFERENCE,))]
        megabytes = row.frames_per_second * (load.shape.size + 4) / 1e6
        speed = (f"{row.frames_per_second:,.0f}", f"{megabytes:,.0f}", f"{row.busy:.0%}", f"{row.p50_us:,.0f}", f"{row.p99_us:,.0f}")
        lines.append((row.candidate, short(row.cpu_us), f"{short(row.low)} – {short(row.high)}", *ratios, *speed))
    columns = ("candidate", "CPU µs/frame", "low – high", "÷ HAProxy", "÷ best peer", "÷ C relay")
    stage.table(f"{load.title}: processor time per echoed frame", (*columns, "frames/s", "MB/s", "core busy", "p50 µs", "p99 µs"), lines)


def _show_latency(stage: Stage, load: Load, rounds: Sequence[Round]) -> None:
    """The open loop at the rate that keeps the slowest candidate half busy: the same for all."""
    summaries = list(report.summarize(rounds).values())
    lines = []
    for row in summaries:
        best = ratio_to_best(row.p99_us, [peer.p99_us for peer in summaries if peer.candidate in PEERS])
        lines.append((row.candidate, f"{row.p50_us:,.0f}", f"{row.p99_us:,.0f}", best, f"{row.p999_us:,.0f}", short(row.cpu_us), f"{row.busy:.0%}"))
    columns = ("candidate", "p50 µs", "p99 µs", "÷ best peer", "p99.9 µs", "CPU µs/frame", "core busy")
    stage.table(f"{load.title}: latency at {summaries[0].frames_per_second:,.0f} frames/s (open loop)", columns, lines)
