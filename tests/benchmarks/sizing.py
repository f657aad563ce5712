"""Part `sizing`: framegate in a container of the size that deploy/docs/limits.md computes, under all its load at once, without being killed."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace

import figures
from candidates import Framegate
from cgroup import Group, NoGroupError, limited
from fetching import Ask, answering, asking
from figures import Figure
from hostages import HOSTAGES, SEGMENT, held
from processes import VoidRoundError, watched
from shapes import Load, Shape
from stage import Stage
from variants import CANDIDATES

from framegate.control.configuration.capacity import memory_need, memory_warning
from framegate.control.configuration.load import validate
from framegate.proxy.config.model import ProxyConfig

MIB = 1 << 20
MOST_MIB = 1 << 20
ANNOUNCED = 16 * MIB  # the limit of a frame
IDLE = 1_900
BURST = 1_000_000
BURSTING = 1_000
SECONDS = 10.0
SOCKETS_OF_A_SLOW_PAIR = 5 * MIB // 4
"""The kernel's buffers of a pair whose client does not take what it asked for, its upstream's side included (deploy/docs/limits.md)."""
GOOD = Ask(0, request=100, connections=10, per_second=500, seconds=SECONDS, tls=True, segment=SEGMENT)
LOADS = {
    "answers of 100 MB": Ask(100_000_000, connections=4, seconds=SECONDS, patience=20, tls=True, segment=SEGMENT),
    "requests of 16 MB": Ask(0, request=16_000_000, connections=8, in_flight=2, seconds=SECONDS, patience=20, tls=True, segment=SEGMENT),
    "frames of 100 B": GOOD,
}

SLOW = HOSTAGES * 2 // 5 + sum(ask.connections for ask in LOADS.values())
"""Pairs that may have much in the kernel's buffers at once: two of five kinds of hostages, and those who ask for much."""


@dataclass(frozen=True, slots=True)
class Tried:
    """One run in one group: bytes throughout.

    Attributes:
        limit: of the group, `need` what was computed, `parts` of it.
        resident: the highest resident sizes of all processes, summed.
        charged: the most that was charged to the group, with what the kernel merely remembers of files.
        sockets: in the kernel's socket buffers; `counted` whether they are charged here, as on cgroup v2: then `limit` has room for them.
        killed: processes that the kernel killed for want of memory.
        loads: what became of each; `idle` those of them that nothing came back of, which make the rest say nothing.
    """

    limit: int
    need: int
    parts: dict[str, int]
    resident: int
    charged: int
    sockets: int
    counted: bool
    killed: int
    loads: dict[str, str]
    idle: list[str]


def container(config: ProxyConfig, processors: int) -> int:
    """The smallest limit, in bytes (whole MiB), that `framegate check` does not warn about."""
    low, high = 0, MOST_MIB
    while high - low > 1:
        middle = (low + high) // 2
        if memory_warning(config, processors, middle * MIB) is None:
            high = middle
        else:
            low = middle
    return high * MIB


def run(stage: Stage) -> dict[str, object]:
    """One container; a machine where none can be made says why, and that is all."""
    load = Load(Shape("sized", 16_000_000, 1, 4), downstream_tls=True)
    with answering(stage, SEGMENT) as place:
        on_disk = place.place.folder / "tap-on-disk"  # a file in memory would be charged, and never be given back
        candidate = CANDIDATES["framegate-sized"](replace(place.place, tap_directory=on_disk), load)
        assert isinstance(candidate, Framegate), "framegate-sized"
        config = validate(candidate.configuration())
        need = memory_need(config, candidate.processors)
        try:
            with limited(container(config, candidate.processors), SLOW * SOCKETS_OF_A_SLOW_PAIR) as group:
                tried = _try(place, candidate, group, need.total, dict(need.parts))
        except NoGroupError as why:
            stage.say(f"sizing: left out: {why}")
            return {"left_out": str(why)}
    _show(stage, tried)
    return figures.add(asdict(tried), [_judged(tried)])


def _try(stage: Stage, candidate: Framegate, group: Group, need: int, parts: dict[str, int]) -> Tried:
    """Everything at once: idle connections after a burst, hostages, large answers and requests, and a good client."""
    candidate.group = group
    candidate.start()
    try:
        with watched(candidate.process) as peak:
            loads, idle = _load(stage, candidate)
        sockets = group.sockets()
    finally:
        candidate.stop()
    resident = int(peak.resident * MIB)
    return Tried(group.limit, need, parts, resident, group.highest(), sockets, group.v2, group.killed(), loads, idle)


def _load(stage: Stage, candidate: Framegate) -> tuple[dict[str, str], list[str]]:
    """The result of each load, and the names of those without any answer. Clients of a killed processor lose their connections, which is a result."""
    try:
        with stage.opener.hold(candidate.port, IDLE, tls=True) as idle:
            idle.burst(BURST, BURSTING)
            with held(stage, candidate.port, HOSTAGES, ANNOUNCED, tls=True), ThreadPoolExecutor(len(LOADS)) as threads:
                words = dict(zip(LOADS, threads.map(lambda ask: _one(stage, candidate, ask), LOADS.values()), strict=True))
    except VoidRoundError as error:
        return {"idle connections, hostages": str(error).strip()}, ["idle connections, hostages"]
    return {name: text for name, (text, _) in words.items()}, [name for name, (_, answers) in words.items() if not answers]


def _one(stage: Stage, candidate: Framegate, ask: Ask) -> tuple[str, int]:
    """In words, and the number of answers."""
    try:
        with asking(stage, candidate, ask) as clients:
            fetched = clients.finish()[0]
    except VoidRoundError as error:
        return str(error).strip(), 0
    return f"{fetched.answers:,} answers, {fetched.missing:,} missing, the longest {fetched.whole_max_us / 1000:,.0f} ms", fetched.answers


def _show(stage: Stage, tried: Tried) -> None:
    rows = [(name, f"{size / MIB:.1f}") for name, size in tried.parts.items()]
    rows += [("needed in all", f"{tried.need / MIB:.1f}"), ("the container's limit", f"{tried.limit / MIB:.1f}")]
    rows += [("resident at the peak", f"{tried.resident / MIB:.1f}"), ("charged at the peak, files too", f"{tried.charged / MIB:.1f}")]
    sockets = "socket buffers, charged as well" if tried.counted else "socket buffers, which cgroup v2 would charge"
    rows += [(sockets, f"{tried.sockets / MIB:.1f}"), ("processes killed", str(tried.killed))]
    stage.table(
        f"a container as deploy/docs/limits.md computes it, {IDLE:,} idle connections and {HOSTAGES:,} hostages in it, MiB", ("what", "MiB"), rows
    )
    for name, words in tried.loads.items():
        stage.say(f"{name}: {words}")


def _judged(tried: Tried) -> Figure:
    """No process was killed, and the socket buffers, which v1 does not charge, stay within the page's figure."""
    most = tried.resident + tried.sockets
    room = tried.limit + (0 if tried.counted else SLOW * SOCKETS_OF_A_SLOW_PAIR)
    what = f"a container of {room // MIB} MiB under load: resident and in sockets, none killed"
    faults = [f"{tried.killed} processes were killed"] * bool(tried.killed) + [f"nothing came back of {name}" for name in tried.idle]
    return Figure(what, f"≤ {room / MIB:.0f} MiB", most / MIB, "MiB", {}, not faults and most <= room, ", ".join(faults))
