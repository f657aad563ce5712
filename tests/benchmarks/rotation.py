"""Part `rotation`: new TLS connections while the certificate that they meet is replaced, again and again: nobody is refused or meets another one."""

from __future__ import annotations

import hashlib
import ssl
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import figures
import native
from driver import VoidRoundError, event, started
from figures import Figure
from mutual import Renewed
from newcomers import SHOWN
from shapes import SHAPES, Load
from stage import Stage, short

__all__ = ["Newcomer", "Swap", "Verdict", "judge", "run"]

CONNECTIONS_PER_SECOND = 200
PROCESSES = 4
SWAPS = 50
QUICK_SWAPS = 5
QUIET_SECONDS = 10.0
PAUSE_SECONDS = 0.2
"""Between a swap and the next: so that there are connections on each certificate."""
LEAST_RATE = 0.95
PROGRAM = Path(__file__).with_name("newcomers.py")
NAME = "framegate-renewed"


@dataclass(frozen=True, slots=True)
class Newcomer:
    """One connection, as `newcomers.py` tells it; ns, 0: it did not come to that."""

    due: int
    began: int
    shaken: int
    back: int
    met: str
    error: str


@dataclass(frozen=True, slots=True)
class Swap:
    """A certificate that took another one's place: its fingerprint, when its files were about to be written, when it was said to be in force; ns."""

    fingerprint: str
    written: int
    acknowledged: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of the connections.

    Attributes:
        connections: all of them.
        per_second: that were served, from when the first was due until the last one's frame was back.
        failed: were refused, reset, or not served to the end; `failures` are the first of their words.
        astray: met a certificate that was not in force at any moment of their handshake.
        quiet_p99_ms, quiet_max_ms: of the time from when one was due to the end of its handshake, of those that no swap touched.
        swap_p99_ms, swap_max_ms: the same of those that one did.
        met: how many certificates were met.
    """

    connections: int
    per_second: float
    failed: int
    failures: tuple[str, ...]
    astray: int
    quiet_p99_ms: float
    quiet_max_ms: float
    swap_p99_ms: float
    swap_max_ms: float
    met: int


def run(stage: Stage) -> dict[str, object]:
    """framegate alone; the swaps and the figures."""
    if "framegate" not in stage.names:
        raise VoidRoundError("this part is framegate's alone, which is not among the candidates")
    folder = stage.place.folder / NAME
    folder.mkdir(mode=0o755)
    authority = native.make_certificate(folder, name="authority")
    first = native.make_certificate(folder, name="server", issuer=authority)
    place = replace(stage.place, certificate=first)
    with replace(stage, place=place).all_started(Load(SHAPES[0], downstream_tls=True), [NAME]) as (candidate,):
        assert isinstance(candidate, Renewed)
        taken = candidate
        swaps = [Swap(_fingerprint(first), 0, 0)]

        def renew() -> Swap:
            written = time.monotonic_ns()
            made = native.make_certificate(folder, name="server", issuer=authority)
            taken.take()
            return Swap(_fingerprint(made), written, time.monotonic_ns())

        with _arriving(stage, candidate.port, authority.certificate) as finish:
            time.sleep(QUIET_SECONDS / (10 if stage.quick else 1))
            for _ in range(QUICK_SWAPS if stage.quick else SWAPS):
                swaps.append(renew())
                time.sleep(PAUSE_SECONDS)
            newcomers = finish()
        candidate.process.check()
    verdict = judge(newcomers, swaps)
    _show(stage, verdict, swaps)
    return figures.add({"verdict": asdict(verdict), "swaps": [asdict(swap) for swap in swaps]}, _judged(verdict, len(swaps) - 1))


@contextmanager
def _arriving(stage: Stage, port: int, authority: Path) -> Iterator[Callable[[], list[Newcomer]]]:
    """Connections from now on; what is given ends them and tells what became of each."""
    command = ["taskset", "-c", str(stage.generator.core), sys.executable, "-I", str(PROGRAM), str(port), str(authority)]
    with ExitStack() as stack:
        processes = [stack.enter_context(started([*command, str(CONNECTIONS_PER_SECOND / PROCESSES)])) for _ in range(PROCESSES)]
        for process in processes:
            event(process, "begun")

        def finish() -> list[Newcomer]:
            for process in processes:
                assert process.stdin is not None
                process.stdin.close()
            return [Newcomer(*row) for process in processes for row in event(process, "done")["rows"]]

        yield finish


def _fingerprint(certificate: native.Certificate) -> str:
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate.certificate.read_text())).hexdigest()[:SHOWN]


def judge(newcomers: Sequence[Newcomer], swaps: Sequence[Swap]) -> Verdict:
    """What became of connections while certificates were swapped; the first of `swaps` is what was in force before.

    A certificate may be met by whose handshake ended after its files were written and began before the next one was acknowledged.
    """
    from_, until = _times(swaps)
    ended = [row for row in newcomers if row.shaken]
    astray = sum(not (row.met in from_ and row.shaken >= from_[row.met] and row.began <= until[row.met]) for row in ended)
    failures = [row.error for row in newcomers if row.error]
    quiet: list[float] = []
    beside: list[float] = []
    for row in ended:
        is_beside = any(row.shaken >= swap.written and row.due <= swap.acknowledged for swap in swaps[1:])
        (beside if is_beside else quiet).append((row.shaken - row.due) / 1e6)
    seconds = (max(row.back for row in newcomers) - min(row.due for row in newcomers)) / 1e9
    return Verdict(
        connections=len(newcomers),
        per_second=sum(not row.error for row in newcomers) / seconds,
        failed=len(failures),
        failures=tuple(dict.fromkeys(failures))[:5],
        astray=astray,
        quiet_p99_ms=_p99(quiet),
        quiet_max_ms=max(quiet, default=0.0),
        swap_p99_ms=_p99(beside),
        swap_max_ms=max(beside, default=0.0),
        met=len({row.met for row in ended}),
    )


def _times(swaps: Sequence[Swap]) -> tuple[dict[str, int], dict[str, int]]:
    """From when on, and until when, each certificate may be met."""
    ends = [swap.acknowledged for swap in swaps[1:]] + [sys.maxsize]
    return {swap.fingerprint: swap.written for swap in swaps}, {swap.fingerprint: end for swap, end in zip(swaps, ends, strict=True)}


def _p99(times: list[float]) -> float:
    return sorted(times)[min(int(len(times) * 0.99), len(times) - 1)] if times else 0.0


def _show(stage: Stage, verdict: Verdict, swaps: Sequence[Swap]) -> None:
    took = sorted((swap.acknowledged - swap.written) / 1e6 for swap in swaps[1:])
    columns = ("swaps", "median ms", "connections", "a second", "failed", "astray", "certificates met")
    line = (str(len(took)), f"{took[len(took) // 2]:,.0f}", f"{verdict.connections:,}", f"{verdict.per_second:.0f}", str(verdict.failed))
    times = [short(value) for value in (verdict.quiet_p99_ms, verdict.quiet_max_ms, verdict.swap_p99_ms, verdict.swap_max_ms)]
    more = ("quiet p99 ms", "max", "within a swap p99 ms", "max")
    stage.table("new TLS connections while certificates are swapped", (*columns, *more), [(*line, str(verdict.astray), str(verdict.met), *times)])
    for words in verdict.failures:
        stage.say(words)


def _judged(verdict: Verdict, swaps: int) -> list[Figure]:
    title = f"{CONNECTIONS_PER_SECOND} new TLS connections/s through {swaps} swaps"
    least = LEAST_RATE * CONNECTIONS_PER_SECOND
    note = f"handshakes' p99 {short(verdict.swap_p99_ms)} ms within a swap, {short(verdict.quiet_p99_ms)} ms without"
    met = verdict.per_second >= least
    return [
        Figure(f"{title}: refused or reset", "0", verdict.failed, "", {}, verdict.failed == 0, "; ".join(verdict.failures)),
        Figure(f"{title}: met a certificate that was not in force", "0", verdict.astray, "", {}, verdict.astray == 0),
        Figure(f"{title}: served a second", f"≥ {least:g}", verdict.per_second, "", {}, met, note),
    ]
