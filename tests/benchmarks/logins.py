"""Part `logins`: a good client's round trips beside many SCRAM logins at another listener of the same node, and beside PLAIN ones."""

import secrets
import statistics
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace

import figures
import native
from candidates import Framegate
from fetching import Ask, Fetched, answering, asking
from figures import Figure
from processes import VoidRoundError, event, load_command, started
from report import short
from shapes import Load, Shape
from stage import Stage
from variants import FramegateLogins

from framegate.proxy.cells.metrics import AUTHENTICATION_ERRORS

LOGINS_PER_SECOND = 500
SECONDS = 60.0
QUICK_SECONDS = 6.0
WARM_UP_SECONDS = 1.0
LEAD_SECONDS = 1.0  # the storm begins so much earlier than the good client, and ends so much later
MOST_RATIO = 2.0
MOST_DRIFT = 2.0  # between the p99 of the two quiet rounds: where they differ by more, it is the machine that was measured
GOOD = Ask(0, request=100, connections=10, per_second=1_000, warm_up=WARM_UP_SECONDS, patience=10)


SCRAM = "SCRAM-SHA-512"
SETTINGS = ((SCRAM, False), (SCRAM, True), ("PLAIN", False))
"""Mechanism, and TLS of the good client. PLAIN costs control a few milliseconds of hashing for each login: one core cannot check so many, and some
must be refused; its p99 is not judged."""


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The logins that fell due in the measured time; milliseconds from when one was due to its first frame back."""

    due: int
    through: int  # accepted, and the frame echoed
    refused: int  # with an answer
    closed: int  # without an answer
    missing: int  # neither, when the program gave up
    late: int  # that could not begin when they were due
    seconds: float
    p50_ms: float
    p99_ms: float
    max_ms: float

    @property
    def lost(self) -> int:
        """Neither accepted nor refused with an answer."""
        return self.closed + self.missing


@dataclass(slots=True)
class Beside:
    """A storm of logins, and the good client beside it; `quiet` are its rounds without."""

    mechanism: str
    protocol: str
    quiet: list[Fetched]
    good: Fetched
    logins: Outcomes
    errors: dict[str, int]

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
        rows = [_beside(place, mechanism, tls, seconds) for mechanism, tls in SETTINGS]
    _show(stage, rows)
    return figures.add({"rows": [asdict(row) for row in rows]}, _judged(rows))


@contextmanager
def storming(stage: Stage, port: int, user: str, password: str, *, mechanism: str, rate: float, seconds: float) -> Iterator[subprocess.Popen[str]]:
    """A storm of logins from now on; its events are `measuring`, `measured` and `done`. It has the lowest priority on its core, so that good client
    and upstream wait for the candidate, not for the storm's own work.
    """
    program = native.build("logins", stage.place.cache)
    options: dict[str, object] = {"user": user, "password": password, "mechanism": mechanism}
    options |= {"rate": rate, "warm_up": LEAD_SECONDS, "seconds": seconds}
    with started(["nice", "-n", "19", *load_command(program, stage.generator.core, port, options)]) as process:
        event(process, "measuring")
        yield process


def _beside(stage: Stage, mechanism: str, tls: bool, seconds: float) -> Beside:
    load = Load(Shape("logins", GOOD.request, 1, GOOD.connections), downstream_tls=tls)
    quiet = replace(GOOD, tls=tls, seconds=seconds / 2)
    user, password = "storm", secrets.token_hex(16)
    FramegateLogins.add_user(stage.place, user, password)
    with stage.framegate(load, FramegateLogins.name) as candidate:
        port = candidate.ports["logins"]
        quiets = [_good(stage, candidate, quiet)]
        before = candidate.metrics()
        length = seconds + WARM_UP_SECONDS + LEAD_SECONDS
        with storming(stage, port, user, password, mechanism=mechanism, rate=LOGINS_PER_SECOND, seconds=length) as process:
            good = _good(stage, candidate, replace(quiet, seconds=seconds))
            measured, done = event(process, "measured"), event(process, "done")
        outcomes = Outcomes(**{key: value for key, value in measured.items() if key != "event"})
        errors = _refused(candidate, before)
        if sum(errors.values()) != done["refused"]:
            raise VoidRoundError(f"{done} by the clients, and framegate counted {errors}")
        quiets.append(_good(stage, candidate, quiet))
    return Beside(mechanism, load.protocol, quiets, good, outcomes, errors)


def _good(stage: Stage, candidate: Framegate, ask: Ask) -> Fetched:
    with asking(stage, candidate, ask) as clients:
        return clients.finish()[0]


def _refused(candidate: Framegate, before: str) -> dict[str, int]:
    """The logins that framegate has counted as refused since then, by its word for the reason."""
    after = candidate.metrics()
    found = {}
    for word in filter(None, AUTHENTICATION_ERRORS):
        labels = ('framegate_listener="logins"', f'error_type="{word}"')
        now, then = (candidate.metric("framegate_authentication_count", *labels, page=page) for page in (after, before))
        if now > then:
            found[word] = int(now - then)
    return found


def _show(stage: Stage, rows: list[Beside]) -> None:
    lines = []
    for row in rows:
        title = f"{row.mechanism}, {row.protocol}"
        for number, quiet in enumerate(row.quiet):
            times = [short(getattr(quiet, key) / 1000) for key in ("whole_p50_us", "whole_p99_us", "whole_max_us")]
            lines.append((f"{title}: quiet, {'after' if number else 'before'}", *times, "", *[""] * 4))
        times = [short(getattr(row.good, key) / 1000) for key in ("whole_p50_us", "whole_p99_us", "whole_max_us")]
        logins = row.logins
        counts = [f"{count / logins.seconds:,.0f}" for count in (logins.through, logins.refused)]
        lines.append((f"{title}: storm", *times, f"{row.ratio:.2f}", *counts, short(logins.p50_ms), short(logins.p99_ms)))
    columns = ("the good client's round trip", "p50 ms", "p99 ms", "max ms", "p99 ÷ quiet", "through /s", "refused /s", "login p50 ms", "p99 ms")
    title = f"{LOGINS_PER_SECOND} logins a second at another listener of the same node"
    stage.table(title, columns, lines)
    for row in rows:
        words = ", ".join(f"{word} {count:,}" for word, count in row.errors.items()) or "none"
        stage.say(f"{row.mechanism}, {row.protocol}: not let in: {words}; lost {row.logins.lost}, late {row.logins.late}")


def _judged(rows: list[Beside]) -> list[Figure]:
    found = []
    for row in rows:
        title = f"{LOGINS_PER_SECOND} {row.mechanism} logins/s beside, {row.protocol}"
        if row.mechanism == SCRAM:
            note = f"p99 {short(row.good.whole_p99_us / 1000)} ms, quiet {', '.join(short(quiet.whole_p99_us / 1000) for quiet in row.quiet)} ms"
            met = row.was_quiet and row.ratio <= MOST_RATIO and row.good.missing == 0
            note += "" if row.was_quiet else ": the machine was not quiet, run again"
            found.append(Figure(f"{title}: good client's p99 ÷ quiet", f"≤ {MOST_RATIO:g}", row.ratio if row.was_quiet else None, "×", {}, met, note))
        what = f"{title}: logins neither let in nor told that they are not"
        met = row.logins.lost == 0 and set(row.errors) <= {"unavailable"}
        found.append(Figure(what, "0", row.logins.lost, "", {}, met))
    return found
