"""Part `handshakes`: connections opened and closed, plaintext and with full and resumed TLS 1.3 handshakes."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass

from candidates import Candidate
from connections import Churn
from shapes import SHAPES, Load
from stage import PEERS, Stage, in_turn, ratio_to_best, short, spread

__all__ = ["KINDS", "run"]


@dataclass(frozen=True, slots=True)
class Kind:
    """One way to open a connection; ``word`` names it on the command line."""

    name: str
    word: str
    tls: bool = True
    rsa: bool = False
    resume: bool = False


KINDS = (
    Kind("plain", "plain", tls=False),
    Kind("ECDSA P-256, full", "ecdsa"),
    Kind("ECDSA P-256, resumed", "ecdsa-resumed", resume=True),
    Kind("RSA-2048, full", "rsa", rsa=True),
    Kind("RSA-2048, resumed", "rsa-resumed", rsa=True, resume=True),
)
COLUMNS = (
    "candidate",
    "CPU µs",
    "low – high",
    "per s and core",
    "÷ HAProxy",
    "÷ best peer",
    "TLS alone µs",
    "resumed",
    "core busy",
    "p99 1st byte µs",
)


def run(stage: Stage) -> dict[str, object]:
    """Every kind in turn; the raw rounds."""
    rows: list[Churn] = []
    for rsa in (False, True):
        place = stage.with_rsa() if rsa else stage
        for tls in (False, True):
            kinds = [kind for kind in KINDS if (kind.rsa, kind.tls) == (rsa, tls) and kind.word in stage.kinds]
            if not kinds:
                continue
            with place.all_started(Load(SHAPES[0], downstream_tls=tls)) as candidates:
                for kind in kinds:
                    rows += _rounds(place, candidates, kind)
                    _show(stage, kind, rows)
    return {"rounds": [asdict(row) for row in rows]}


def _rounds(stage: Stage, candidates: list[Candidate], kind: Kind) -> list[Churn]:
    def measure(candidate: Candidate, number: int) -> Churn:
        return stage.opener.churn(candidate, kind.name, number, tls=kind.tls, resume=kind.resume)

    return in_turn(candidates, min(stage.rounds, 3), measure)


def _medians(rows: list[Churn], kind: str) -> dict[str, float]:
    """The processor time of each candidate that was measured with a kind."""
    names = {row.candidate for row in rows if row.kind == kind}
    return {name: statistics.median(row.cpu_us for row in rows if (row.candidate, row.kind) == (name, kind)) for name in names}


def _show(stage: Stage, kind: Kind, rows: list[Churn]) -> None:
    """A table of one kind. `TLS alone` is what is left when the same candidate's plaintext connection is taken off."""
    names = list(dict.fromkeys(row.candidate for row in rows if row.kind == kind.name))
    cost = _medians(rows, kind.name)
    plain = _medians(rows, "plain")
    lines = []
    for name in names:
        mine = [row for row in rows if (row.candidate, row.kind) == (name, kind.name)]
        lines.append(
            (
                name,
                *spread([row.cpu_us for row in mine]),
                f"{1e6 / cost[name]:,.0f}",
                ratio_to_best(cost[name], [cost[peer] for peer in ("haproxy",) if peer in cost]),
                ratio_to_best(cost[name], [cost[peer] for peer in PEERS if peer in cost]),
                short(max(cost[name] - plain[name], 0.0)) if kind.tls and name in plain else "",
                f"{statistics.median(row.resumed for row in mine):.0%}" if kind.resume else "",
                f"{statistics.median(row.busy for row in mine):.0%}",
                f"{statistics.median(row.p99_us for row in mine):,.0f}",
            )
        )
    stage.table(f"connections opened, used for one frame and closed: {kind.name}", COLUMNS, lines)
