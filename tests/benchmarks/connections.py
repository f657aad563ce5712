"""Connections: opened and closed one after the other (churn), or held open by the thousand."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from candidates import Candidate
from measure import compare_counters
from native import Certificate
from processes import VoidRoundError, event, load_command, measured, started


@dataclass(frozen=True, slots=True)
class Churn:
    """One round of opening and closing."""

    # candidate, kind: names; the kind is that of the handshake
    candidate: str
    kind: str
    number: int  # of the round, from 0
    connections: int  # opened, used for one frame, and closed on both sides while it was measured
    seconds: float  # how long it was measured
    cpu_us: float  # processor time of every process of the candidate, per connection
    busy: float  # share of its core that the candidate used
    # p50_us, p99_us, max_us: of the time from connect to the first byte back
    p50_us: float
    p99_us: float
    max_us: float
    resumed: float  # share of the handshakes offered for resumption that were resumed


class Held:
    """Connections that are open and idle."""

    def __init__(self, process: subprocess.Popen[str], count: int) -> None:
        self._process = process
        self.count = count

    def burst(self, size: int, count: int) -> None:
        """Have one frame of this body size echoed on the first `count` of them."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"burst {size} {count}\n")
        self._process.stdin.flush()
        event(self._process, "burst")


@dataclass(frozen=True, slots=True)
class Opener:
    """The program that opens connections."""

    program: Path  # compiled
    core: int  # where it runs
    # warm_up, seconds: of a round of churn
    warm_up: float
    seconds: float

    def churn(self, candidate: Candidate, kind: str, number: int, *, tls: bool = False, resume: bool = False) -> Churn:
        """One round of opening and closing.

        Args:
            candidate: that is driven.
            kind: for the result.
            number: of the round.
            tls: with a TLS 1.3 handshake; `resume`: that offers the ticket of the one before.

        Raises VoidRoundError: a frame came back changed or not at all, a connection was not ended, or was not counted.
        """
        options, flags = {"warm_up": self.warm_up, "seconds": self.seconds, "slots": 32}, ["--tls"] * tls + ["--resume"] * resume
        before = candidate.frames()
        row, done, busy = measured(candidate.process, load_command(self.program, self.core, candidate.port, options, *flags))
        compare_counters(candidate, before, int(done["opened"]))
        count, seconds = int(row["connections"]), float(row["seconds"])
        if not count:
            raise VoidRoundError(f"{candidate.name}: no connection was closed in {seconds} s")
        resumed = done["resumed"] / max(done["resumed"] + done["not_resumed"], 1)
        times = (row["p50_us"], row["p99_us"], row["max_us"])
        return Churn(candidate.name, kind, number, count, seconds, busy * seconds * 1e6 / count, busy, *times, resumed)

    @contextmanager
    def hold(self, port: int, count: int, *, tls: bool = False, certificate: Certificate | None = None) -> Iterator[Held]:
        """Open so many, one echoed frame each, and keep them until the block ends; with TLS they may show a certificate."""
        shown = {} if certificate is None else {"certificate": certificate.certificate, "key": certificate.key}
        with started(load_command(self.program, self.core, port, {"hold": count, **shown}, *["--tls"] * tls)) as process:
            event(process, "open")
            yield Held(process, count)
