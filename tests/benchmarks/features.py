"""Part `features`: the cost of taps, pairing, re-framing and rates, each beside framegate without it; and how exact rates are."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from candidates import Framegate
from figures import Figure, add
from measure import Round
from report import medians, short, spread
from shapes import SHAPES, Load, Shape
from stage import Stage, in_turn
from variants import CANDIDATES

TAP_SHAPES = ("100x64", "1k", "64k")
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
    Beside("framegate-idle-rule", "a tap rule that matches nothing", dict.fromkeys(TAP_SHAPES)),
    Beside("framegate-tap", "a tap of all frames that drops when the log is slower", dict.fromkeys(TAP_SHAPES)),
    Beside("framegate-tap-mute", "a tap of all frames that makes traffic wait", dict.fromkeys(TAP_SHAPES)),
    Beside("framegate-kafka", "pairing requests with answers (protocol: kafka)", {"100x64": 1.2}),
    Beside("framegate-small-pool", "a pool that mutes for memory all the time", {"1m": None}),
    Beside("framegate-varint", "re-framed twice, int32 → varint and back", {"100x1": None, "100x64": 1.6, "1k": None, "64k": 1.1}),
    Beside("framegate-unreached", "rates that are not reached", {"100x1": 1.03, "100x64": 1.03, "64k": 1.03}),
)


def run(stage: Stage) -> dict[str, object]:
    """Every feature; the raw rounds, and the figures."""
    rounds: list[Round] = []
    figures: list[Figure] = []
    for beside in BESIDE:
        for load in _loads(beside.bounds):
            rows, ratio = _beside(stage, load, beside)
            rounds += rows
            bound = beside.bounds[load.shape.name]
            if bound is not None:
                figures.append(Figure(f"{load.title}: {beside.words}", f"≤ {bound} × without", ratio, "×", {}, ratio <= bound))
    for load in LIMITED_LOADS:
        rows = stage.on_all_cores().rounds_of(load, LIMITED)
        rounds += rows
        figures += _exactness(load, rows)
    stage.say("limits, counters, memory pool, stall and idle times cannot be turned off: they are in every figure of framegate")
    return add({"rounds": [asdict(row) for row in rounds]}, figures)


def _loads(names: Sequence[str] | dict[str, float | None]) -> list[Load]:
    return [Load(shape) for shape in SHAPES if shape.name in names]


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
    if variant.tap_rules:
        dropped = statistics.mean(row.extra["tap_dropped"] for row in rows if row.candidate == beside.name)
        stage.say(f"  of the two frames of an echo the tap dropped {dropped:.3f}")
    if beside.name == "framegate-small-pool":
        stage.say(f"  mutes for memory: {mutes:,.0f}")
    return rows, ratio


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
