"""Part `features`: the cost of taps, pairing, re-framing, rates and mutes, each beside framegate without it; and how exact rates are."""

import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass

import steered
from candidates import Candidate, Framegate
from cpu import show_throughput
from figures import Figure, add
from measure import Round
from report import medians, short, spread
from shapes import SHAPES, Load, Shape
from stage import Stage, in_turn
from tapcost import FILL_BYTES, floor_ns_per_byte
from variants import CANDIDATES

TAPS = ("framegate-tap", "framegate-tap-mute")
TAP_SHAPES = ("100x64", "1k", "64k")
TAP_FACTOR = 1.3
TAP_US_PER_CHUNK = 1.5
MUTED_NEIGHBOURS = 1_000
EXACT = 0.05
LIMITED = ("framegate-limited", "framegate-limited-two", "framegate-limited-frames")
LIMITED_LOADS = tuple(Load(shape) for shape in (Shape("1k", 1000, 8, 50), Shape("100x64", 100, 64, 50), Shape("16k", 16 * 1024, 2, 10)))


@dataclass(frozen=True, slots=True)
class Beside:
    """A variant of framegate that is compared with the plain one: `bounds` by shape, None is shown and not judged."""

    name: str
    words: str
    bounds: dict[str, float | None]


BESIDE = (
    Beside("framegate-kafka", "pairing requests with answers (protocol: kafka)", {"100x64": 1.2}),
    Beside("framegate-small-pool", "a pool that mutes for memory all the time", {"1m": None}),
    Beside("framegate-varint", "re-framed twice, int32 → varint and back", {"100x1": None, "100x64": 1.6, "1k": None, "64k": 1.1}),
    Beside("framegate-unreached", "rates that are not reached", {"100x1": 1.03, "100x64": 1.03, "64k": 1.03}),
)


def run(stage: Stage) -> dict[str, object]:
    """Every feature; the raw rounds, and the figures."""
    rounds: list[Round] = []
    figures: list[Figure] = []
    floors = {}
    for load in _loads(TAP_SHAPES):
        rows, floor = _tap(stage, load)
        rounds += rows
        floors[load.title] = floor
        for name in TAPS:
            stage.say(judge_tap(load, rows, statistics.median(floor), name))
        _show(stage, load, rows, "framegate-idle-rule", "a rule that matches nothing")
    for beside in BESIDE:
        for load in _loads(beside.bounds):
            rows, ratio = _beside(stage, load, beside)
            rounds += rows
            bound = beside.bounds[load.shape.name]
            if bound is not None:
                figures.append(Figure(f"{load.title}: {beside.words}", f"≤ {bound} × without", ratio, "×", {}, ratio <= bound))
    rounds += _muted_neighbours(stage)
    for load in LIMITED_LOADS:
        rows = stage.on_all_cores().rounds_of(load, LIMITED)
        rounds += rows
        figures += _exactness(load, rows)
    stage.say("limits, counters, memory pool, stall and idle times cannot be turned off: they are in every figure of framegate")
    return add({"rounds": [asdict(row) for row in rounds], "tap_floor_ns_per_byte": floors}, figures)


def _loads(names: Sequence[str] | dict[str, float | None]) -> list[Load]:
    return [Load(shape) for shape in SHAPES if shape.name in names]


def _tap(stage: Stage, load: Load) -> tuple[list[Round], list[float]]:
    """Rounds of the tap's variants, and the floor of each round, from which the bound is made."""
    floors: list[float] = []

    def measure(candidate: Candidate, number: int) -> Round:
        if len(floors) == number:
            floors.append(floor_ns_per_byte(stage.place.cores[0], stage.place.tap_directory / "floor", stage.generator.seconds))
        return stage.generator.run(candidate, load, number)

    with stage.all_started(load, ("framegate", "framegate-idle-rule", *TAPS)) as candidates:
        for candidate in candidates:
            # let a tap write until it deletes, so that its steady state is measured
            while candidate.name in TAPS and isinstance(candidate, Framegate) and candidate.metric("framegate_tap_io_bytes") < FILL_BYTES:
                stage.generator.run(candidate, load, -1)
        rows = in_turn(candidates, stage.rounds, measure)
    show_throughput(stage, load, rows)
    return rows, floors


def judge_tap(load: Load, rounds: Sequence[Round], floor_ns: float, tapped: str) -> str:
    """What a tap adds, beside its bound: 1.3 × the floor of writing the bytes, and 1.5 µs for each chunk (a chunk is at most one read)."""
    rows = [row for row in rounds if row.candidate == tapped]
    costs = medians(rounds, "cpu_us_per_frame")
    without, cost = costs["framegate"], costs[tapped]
    extra = {key: statistics.median(row.extra[key] for row in rows) for key in rows[0].extra}
    chunks = min(extra["reads"], 2.0)
    floor_us = floor_ns * extra["tap_bytes"] / 1000
    added, allowed = cost - without, TAP_FACTOR * floor_us + TAP_US_PER_CHUNK * chunks
    dropped = statistics.mean(row.extra["tap_dropped"] for row in rows)
    verdict = f"full capture, {'within' if added <= allowed else 'ABOVE'}: adds {added / allowed:.2f} of what it may"
    if dropped > 0:
        verdict = f"NOT FULL CAPTURE: {dropped:.3f} of 2 frames per echo were dropped"
    return (
        f"{load.title}: {tapped} {short(cost)} µs/frame, framegate {short(without)}, may add {short(allowed)}"
        f" (floor {short(floor_us)} at {floor_ns:.2f} ns a byte, at most {chunks:.3f} chunks, {extra['tap_bytes']:.0f} B): {verdict}"
    )


def _beside(stage: Stage, load: Load, beside: Beside) -> tuple[list[Round], float]:
    """One variant beside the plain framegate, with the counters that show that the feature was at work."""
    with stage.all_started(load, ("framegate", beside.name)) as candidates:
        rows = in_turn(candidates, stage.rounds, lambda candidate, number: stage.generator.run(candidate, load, number))
        variant = candidates[-1]
        assert isinstance(variant, Framegate), beside.name
        mutes = variant.metric("framegate_channel_mute_count", 'framegate_mute_cause="memory"')
        answered, lost = (variant.metric(f"framegate_kafka_{name}") for name in ("request_duration_seconds_count", "pairing_lost"))
    ratio = _show(stage, load, rows, beside.name, beside.words)
    if variant.protocol == "kafka":
        stage.say(f"  paired answers: {answered:,.0f}, pairing lost: {lost:.0f} (must be 0)")
    if beside.name == "framegate-small-pool":
        stage.say(f"  mutes for memory: {mutes:,.0f}")
    return rows, ratio


def _muted_neighbours(stage: Stage) -> list[Round]:
    """Fifty connections at work beside a thousand that an operator muted, and beside the same thousand not muted."""
    load = Load(SHAPES[0])
    rows: list[Round] = []
    with (
        stage.framegate(load, "framegate-steered") as candidate,
        stage.opener.hold(candidate.ports["idle"], MUTED_NEIGHBOURS),
        steered.control(candidate) as control,
    ):
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
        control.mute("idle", muted=False)


def _show(stage: Stage, load: Load, rows: list[Round], name: str, words: str) -> float:
    """A line for a variant; the ratio of its cost to that of the plain framegate."""
    costs = medians(rows, "cpu_us_per_frame")
    without = costs["framegate"]
    ratio = costs[name] / without
    middle, extremes = spread([row.cpu_us_per_frame for row in rows if row.candidate == name])
    stage.say(f"{load.title}: {words}: {middle} µs/frame ({extremes}), without {short(without)}: {ratio - 1:+.1%}")
    return ratio


def _exactness(load: Load, rows: list[Round]) -> Iterator[Figure]:
    """The largest deviation of a round from the rate."""
    for name in LIMITED:
        candidate = CANDIDATES[name]
        assert issubclass(candidate, Framegate), name
        ((kind, rate),) = candidate.rates.items()
        unit = 1 if kind == "request_frames_rate" else load.shape.size + 4
        off = [abs(row.frames_per_second * unit / rate - 1) for row in rows if row.candidate == name]
        note = f"median {statistics.median(off):.2%}"
        yield Figure(f"{load.title}: {name} is off by", f"≤ {EXACT:.0%}", max(off), "", {}, max(off) <= EXACT, note)
