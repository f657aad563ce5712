"""Part `control`: how soon a change is in force, how long a list takes, and how both affect the traffic."""

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace

from candidates import Framegate
from measure import Generator, Round
from shapes import Load, Shape
from stage import MOST_CONNECTIONS, Stage
from steered import Control, control

LOAD = Load(Shape("100x1", 100, 1, 50))
FRAMES_PER_SECOND = 2_000
MIB = 1 << 20
IN_FORCE_BOUND_MS = 50.0
LIST_BOUND_MS = 250.0
PAUSE_BOUND_S = 0.0025  # the nearest edge of the loop's own histogram to 2 ms
LATENCY_BOUND = 1.1
LAG = "framegate_event_loop_lag"


@dataclass(frozen=True, slots=True)
class Action:
    """Something that an operator does repeatedly while frames pass."""

    name: str
    act: Callable[[Control, int], None]
    pause_seconds: float
    bound_ms: float


@dataclass(slots=True)
class Outcome:
    """The result of one action: how long each call took, and the traffic meanwhile."""

    action: str
    calls_ms: list[float] = field(default_factory=list)
    traffic: list[Round] = field(default_factory=list)
    long_loops: int = 0  # turns of the processor's loop that took longer than `PAUSE_BOUND_S`, by the processor's own counters


def _limit(plane: Control, number: int) -> None:
    plane.set_limit("idle", (64 + number % 2) * MIB)


def _pool(plane: Control, number: int) -> None:
    plane.set_pool((256 + number % 2) * MIB)


def _mute(plane: Control, number: int) -> None:
    count = plane.mute("idle", muted=number % 2 == 0)
    assert count == MOST_CONNECTIONS, f"{count} channels were muted or unmuted"


def _list(plane: Control, number: int) -> None:
    count = plane.list("idle")
    assert count == MOST_CONNECTIONS, f"{count} channels were listed"


NOTHING = Action("nothing", lambda plane, number: None, 1.0, 0.0)
ACTIONS = (
    NOTHING,
    Action("limit", _limit, 0.02, IN_FORCE_BOUND_MS),
    Action("pool", _pool, 0.02, IN_FORCE_BOUND_MS),
    Action("mute and unmute", _mute, 0.1, IN_FORCE_BOUND_MS),
    Action("list", _list, 0.05, LIST_BOUND_MS),
)


def run(stage: Stage) -> dict[str, object]:
    """One framegate with thousands of idle channels on one listener and traffic on the other. It may use every core, as it does in a pod."""
    wide = stage.on_all_cores()
    with (
        wide.framegate(LOAD, "framegate-steered") as candidate,
        stage.opener.hold(candidate.ports["idle"], MOST_CONNECTIONS),
        control(candidate) as plane,
    ):
        outcomes = {action.name: Outcome(action.name) for action in ACTIONS}
        for number in range(min(stage.rounds, 3)):
            for action in ACTIONS:
                _round(wide, candidate, plane, action, outcomes[action.name], number)
    _show(stage, list(outcomes.values()))
    return {"idle_channels": MOST_CONNECTIONS, "outcomes": [asdict(outcome) for outcome in outcomes.values()]}


def _round(stage: Stage, candidate: Framegate, plane: Control, action: Action, outcome: Outcome, number: int) -> None:
    """Frames at a steady rate while the action is repeated."""
    generator: Generator = replace(stage.generator, warm_up=0.3)
    before = _long_loops(candidate)
    with _repeated(plane, action, outcome):
        outcome.traffic.append(generator.run(candidate, LOAD, number, FRAMES_PER_SECOND))
    outcome.long_loops += _long_loops(candidate) - before


@contextmanager
def _repeated(plane: Control, action: Action, outcome: Outcome) -> Iterator[None]:
    """Repeat the action in a thread until the block ends; an even number of times, so that channels are unmuted in the end."""
    stop, failure = threading.Event(), []

    def repeat() -> None:
        number = 0
        try:
            while number % 2 or not stop.is_set():
                start = time.perf_counter_ns()
                action.act(plane, number)
                outcome.calls_ms.append((time.perf_counter_ns() - start) / 1e6)
                number += 1
                stop.wait(action.pause_seconds)
        except Exception as error:
            failure.append(error)

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    if failure:
        raise failure[0]


def _long_loops(candidate: Framegate) -> int:
    time.sleep(0.15)  # the cells are published before that
    page = candidate.metrics()
    within, total = (candidate.metric(f"{LAG}_seconds_bucket", f'le="{edge}"', page=page) for edge in (PAUSE_BOUND_S, "+Inf"))
    return int(total - within)


def _show(stage: Stage, outcomes: list[Outcome]) -> None:
    quiet = outcomes[0]
    quiet_p99 = statistics.median(row.p99_us for row in quiet.traffic)
    lines = []
    for action, outcome in zip(ACTIONS, outcomes, strict=True):
        p99 = statistics.median(row.p99_us for row in outcome.traffic)
        times = outcome.calls_ms
        calls = ("", "", "") if action is NOTHING else (str(len(times)), f"{statistics.median(times):.1f}", f"{max(times):.1f}")
        within = "≤" if statistics.median(outcome.calls_ms) <= action.bound_ms else "ABOVE"
        judged = "" if action is NOTHING else f"{within} {action.bound_ms:g} ms"
        slowest = max(row.max_us for row in outcome.traffic)
        lines.append((action.name, *calls, judged, f"{p99:,.0f}", f"{p99 / quiet_p99:.2f}", f"{slowest:,.0f}", str(outcome.long_loops)))
    columns = ("meanwhile", "calls", "median ms", "slowest ms", "bound", "p99 µs", "÷ quiet", "longest gap µs", "loops > 2.5 ms")
    words = f"{FRAMES_PER_SECOND:,} frames/s on 50 connections beside {MOST_CONNECTIONS:,} idle channels that are steered"
    stage.table(words, columns, lines)
    stage.say(f"in force ≤ {IN_FORCE_BOUND_MS:.0f} ms, a whole list ≤ {LIST_BOUND_MS:.0f} ms, p99 ≤ {LATENCY_BOUND} × quiet, no loop over 2 ms")
