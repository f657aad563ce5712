"""Part `handshakes`: connections opened and closed, plaintext and with full and resumed TLS 1.3 handshakes."""

import statistics
from dataclasses import asdict, dataclass, replace

from candidates import Candidate
from connections import Churn
from report import PEERS, medians, ratio_to_best, short, spread
from shapes import SHAPES, Load
from stage import Stage, in_turn


@dataclass(frozen=True, slots=True)
class Kind:
    """One way to open a connection."""

    name: str
    tls: bool = True
    rsa: bool = False
    resume: bool = False


KINDS = (
    Kind("plain", tls=False),
    Kind("ECDSA P-256, full"),
    Kind("ECDSA P-256, resumed", resume=True),
    Kind("RSA-2048, full", rsa=True),
    Kind("RSA-2048, resumed", rsa=True, resume=True),
)
COLUMNS = (
    *("candidate", "CPU µs", "low – high", "per s and core", "÷ HAProxy"),
    *("÷ best peer", "TLS alone µs", "resumed", "core busy", "p99 1st byte µs"),
)


def run(stage: Stage) -> dict[str, object]:
    """Every kind in turn; the raw rounds."""
    rows: list[Churn] = []
    with_rsa = replace(stage, place=replace(stage.place, certificate=stage.rsa))
    for place, rsa, tls in ((stage, False, False), (stage, False, True), (with_rsa, True, True)):
        with place.all_started(Load(SHAPES[0], downstream_tls=tls)) as candidates:
            for kind in (kind for kind in KINDS if (kind.rsa, kind.tls) == (rsa, tls)):

                def measure(candidate: Candidate, number: int, kind: Kind = kind) -> Churn:
                    return stage.opener.churn(candidate, kind.name, number, tls=kind.tls, resume=kind.resume)

                rows += in_turn(candidates, min(stage.rounds, 3), measure)
                _show(stage, kind, rows)
    return {"rounds": [asdict(row) for row in rows]}


def _show(stage: Stage, kind: Kind, rows: list[Churn]) -> None:
    """A table of one kind. `TLS alone` is the cost less that of the same candidate's plaintext connection."""
    cost, plain = (medians([row for row in rows if row.kind == name], "cpu_us") for name in (kind.name, "plain"))
    lines = []
    for name in cost:
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
