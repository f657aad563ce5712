"""The upstream that answers as it is asked, and clients that ask it through a candidate and compare every byte that comes back."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace

import native
from candidates import Candidate
from measure import compare_counters
from processes import Process, VoidRoundError, event, load_command, started
from stage import Stage


@dataclass(frozen=True, slots=True)
class Ask:
    answer: int  # bytes of an answer's body; 0: the request comes back
    # connections, in_flight: of the latter on each of the former
    connections: int = 1
    in_flight: int = 1
    request: int = 24  # bytes of a request's body
    count: int = 0  # answers on each connection; 0: as many as there are in `seconds`, after `warm_up`
    warm_up: float = 0.4
    seconds: float = 1.5
    read_rate: float = 0  # bytes per second and connection that are read; 0: all that comes
    per_second: float = 0  # requests that fall due each second, whether answers came or not; 0: the next one goes when an answer came
    patience: float = 20  # seconds without a byte (open loop: after the end) until the clients give up
    tls: bool = False  # towards the candidate
    segment: int = 0  # bytes of a TCP segment; 0: loopback's own


@dataclass(frozen=True, slots=True)
class Fetched:
    candidate: str  # its name
    answers: int  # whole ones, compared, in the time that was measured
    missing: int  # requests of an open loop that were due and had no answer when the clients gave up; they are in the times below
    seconds: float  # that were measured
    cpu_us: float  # processor time of every process of the candidate, per answer
    busy: float  # share of its core that the candidate used
    # first_p50_us, first_p99_us, first_max_us: from the upstream's first byte of an answer to the client's
    first_p50_us: float
    first_p99_us: float
    first_max_us: float
    # whole_p50_us, whole_p99_us, whole_max_us: from a request's start (open loop: when it was due) to the last byte of its answer
    whole_p50_us: float
    whole_p99_us: float
    whole_max_us: float
    opening_ms: float  # until all connections were open, handshakes included


@contextmanager
def answering(stage: Stage, segment: int = 0) -> Iterator[Stage]:
    """The stage with the upstream `native/asked.c` behind the candidates; `segment` bounds the bytes of a TCP segment."""
    program = native.build("asked", stage.place.cache)
    command = [str(program), "--listen", "127.0.0.1:0", "--segment", str(segment)]
    process = Process("asked", command, [stage.echo_core], stage.place.folder)
    try:
        port = int(process.wait_for_row("port")["port"])
        yield replace(stage, place=replace(stage.place, echo_port=port))
        process.check()
    finally:
        process.stop()


class Asking:
    """Clients at work."""

    def __init__(self, candidate: Candidate, process: subprocess.Popen[str]) -> None:
        self._candidate = candidate
        self._process = process
        self._opening_ms = float(event(process, "measuring")["opening_ms"])
        self._cpu_ns, self._wall_ns = candidate.process.cpu_ns(), time.monotonic_ns()

    def finish(self) -> tuple[Fetched, int]:
        """Wait for the rest: what came, and how many requests went. Raises VoidRoundError: an answer came changed or not at all, or a connection was
        closed.
        """
        measured = event(self._process, "measured")
        cpu_ns, wall_ns = self._candidate.process.cpu_ns() - self._cpu_ns, time.monotonic_ns() - self._wall_ns
        done = event(self._process, "done")
        self._candidate.process.check()
        times = {key: float(measured[key]) for key in Fetched.__slots__ if key.startswith(("first_", "whole_"))}
        answers, seconds = int(measured["answers"]), float(measured["seconds"])
        fetched = Fetched(
            candidate=self._candidate.name,
            answers=answers,
            missing=int(measured["missing"]),
            seconds=seconds,
            cpu_us=cpu_ns / 1000 / max(answers, 1),
            busy=cpu_ns / wall_ns,
            opening_ms=self._opening_ms,
            **times,
        )
        return fetched, int(done["sent"])


@contextmanager
def asking(stage: Stage, candidate: Candidate, ask: Ask) -> Iterator[Asking]:
    program = native.build("fetch", stage.place.cache)
    options = asdict(ask)
    flags = ["--tls"] * bool(options.pop("tls"))
    with started(load_command(program, stage.generator.core, candidate.port, options, *flags)) as process:
        yield Asking(candidate, process)


def attempt(stage: Stage, candidate: Candidate, ask: Ask) -> tuple[Fetched | None, str]:
    """What came; or None, and why the round is void."""
    try:
        with asking(stage, candidate, ask) as clients:
            return clients.finish()[0], ""
    except VoidRoundError as error:
        candidate.process.check()
        return None, str(error).strip()


def fetch(stage: Stage, candidate: Candidate, ask: Ask) -> Fetched:
    """Run clients that are the only ones of a candidate, so that its own counters must agree with what they sent. Raises VoidRoundError: an answer
    came changed or not at all, a connection was closed, or a frame was not counted.
    """
    before = candidate.frames()
    with asking(stage, candidate, ask) as clients:
        fetched, sent = clients.finish()
    compare_counters(candidate, before, sent)
    if not fetched.answers:
        raise VoidRoundError(f"{candidate.name}: no answer came in {fetched.seconds} s")
    return fetched
