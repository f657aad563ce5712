"""Part `features`: what tap, pairing and active mutes cost, each beside framegate without it, in the same run."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict

import report
import steered
from candidates import Candidate
from measure import Round
from shapes import SHAPES, Load
from stage import Stage, in_turn, short, spread
from tapcost import BUDGET, floor_ns_per_byte
from variants import FramegateSteered, FramegateTap

__all__ = ["run"]

TAPS = ("framegate-tap", "framegate-tap-mute")
TAP_SHAPES = ("100x64", "1k", "64k")
PAIRING_BOUND = 1.2
FILL_BYTES = BUDGET + (BUDGET >> 2)
MUTED_NEIGHBOURS = 1_000


def run(stage: Stage) -> dict[str, object]:
    """Every feature; the raw rounds."""
    rounds, floors = [], {}
    for load in (Load(shape) for shape in SHAPES if shape.name in TAP_SHAPES):
        rows, floor = tap(stage, load, ("framegate", "framegate-idle-rule", *TAPS))
        rounds += rows
        floors[load.title] = floor
        for name in TAPS:
            report.show_tap(stage.console, load, rows, statistics.median(floor), "framegate", name)
        _show(stage, load, rows, "framegate-idle-rule", "a rule that matches nothing")
    rounds += _beside(stage, "100x64", "framegate-kafka", "pairing requests with answers (protocol: kafka)", PAIRING_BOUND)
    rounds += _beside(stage, "1m", "framegate-small-pool", "a pool that mutes for memory all the time")
    rounds += _muted_neighbours(stage)
    stage.say("limits, counters, memory pool, stall and idle times cannot be turned off: they are in every figure of framegate")
    return {"rounds": [asdict(row) for row in rounds], "tap_floor_ns_per_byte": floors}


def tap(stage: Stage, load: Load, names: Sequence[str]) -> tuple[list[Round], list[float]]:
    """Rounds of the tap's variants, and in each round the floor that the bound is made of."""
    floors: list[float] = []

    def measure(candidate: Candidate, number: int) -> Round:
        if len(floors) == number:
            floors.append(floor_ns_per_byte(stage.place.cores[0], stage.place.tap_directory / "floor", stage.generator.seconds))
        return stage.generator.run(candidate, load, number)

    with stage.all_started(load, names) as candidates:
        for candidate in candidates:
            if isinstance(candidate, FramegateTap):
                _fill(stage, candidate, load)
        rows = in_turn(candidates, stage.rounds, measure)
    report.show_throughput(stage.console, load, report.summarize(rows))
    return rows, floors


def _fill(stage: Stage, candidate: FramegateTap, load: Load) -> None:
    """Let a tap write until it deletes, so that it is measured as it goes on."""
    while candidate.metric("framegate_tap_io_bytes") < FILL_BYTES:
        stage.generator.run(candidate, load, -1)


def _beside(stage: Stage, shape: str, name: str, words: str, bound: float = 0.0) -> list[Round]:
    """One variant of framegate beside the plain one."""
    load = next(Load(item) for item in SHAPES if item.name == shape)
    with stage.all_started(load, ("framegate", name)) as candidates:
        before = {candidate.name: _facts(candidate) for candidate in candidates}
        rows = in_turn(candidates, stage.rounds, lambda candidate, number: stage.generator.run(candidate, load, number))
        after = {candidate.name: _facts(candidate) for candidate in candidates}
    changes = {key: value - before[name][key] for key, value in after[name].items()}
    _show(stage, load, rows, name, words, bound)
    if name == "framegate-kafka":
        stage.say(f"  paired answers: {changes['answered']:,.0f}, pairing lost: {changes['lost']:.0f} (must be 0)")
    else:
        stage.say(f"  mutes for memory: {changes['memory_mutes']:,.0f}")
    return rows


def _facts(candidate: Candidate) -> dict[str, float]:
    """Counters that show that a feature was at work."""
    assert isinstance(candidate, steered.Framegate), "only framegate has these features"
    return {
        "answered": candidate.metric("framegate_kafka_request_duration_seconds_count"),
        "lost": candidate.metric("framegate_kafka_pairing_lost"),
        "memory_mutes": candidate.metric("framegate_channel_mute_count", 'framegate_mute_cause="memory"'),
    }


def _muted_neighbours(stage: Stage) -> list[Round]:
    """Fifty connections at work beside a thousand that an operator muted, and beside the same thousand not muted."""
    load = Load(SHAPES[0])
    rows: list[Round] = []
    with stage.all_started(load, (FramegateSteered.name,)) as candidates:
        candidate = candidates[0]
        assert isinstance(candidate, FramegateSteered), "that is what was asked for"
        with stage.opener.hold(candidate.ports["idle"], MUTED_NEIGHBOURS), steered.control(candidate) as control:
            for number in range(stage.rounds):
                for name, state in (("framegate", nullcontext()), ("framegate-muted-neighbours", _muted(control))):
                    with state:
                        measured = stage.generator.run(candidate, load, number)
                    measured.candidate = name
                    rows.append(measured)
    _show(stage, load, rows, "framegate-muted-neighbours", f"{MUTED_NEIGHBOURS:,} muted connections beside the busy ones")
    return rows


@contextmanager
def _muted(control: steered.Control) -> Iterator[None]:
    control.mute("idle")
    try:
        yield
    finally:
        control.unmute("idle")


def _show(stage: Stage, load: Load, rows: list[Round], name: str, words: str, bound: float = 0.0) -> None:
    cost = {key: [row.cpu_us_per_frame for row in rows if row.candidate == key] for key in ("framegate", name)}
    ratio = statistics.median(cost[name]) / statistics.median(cost["framegate"])
    judged = f", bound {bound - 1:+.0%}: {'within' if ratio <= bound else 'ABOVE'}" if bound else ""
    without = short(statistics.median(cost["framegate"]))
    middle, extremes = spread(cost[name])
    stage.say(f"{load.title}: {words}: {middle} µs/frame ({extremes}), without {without}: {ratio - 1:+.1%}{judged}")
