"""The figures that framegate's promises are judged by: what every part found, in one table, beside the best peer."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from report import PEERS, short
from rich.console import Console
from rich.table import Table

COLUMNS = ("what", "goal", "framegate", "best peer", "÷ best peer", "")


@dataclass(frozen=True, slots=True)
class Figure:
    """One promise, judged."""

    what: str  # is measured
    goal: str  # in words
    value: float | None  # framegate's, in `unit`; the lower the better. None: there is none, `note` says why.
    unit: str  # of the value
    peers: dict[str, float]  # the others' values, by name, as far as they can do the same
    met: bool  # whether the goal is
    note: str = ""  # what a reader must know besides

    @property
    def best(self) -> tuple[str, float] | None:
        name = min(self.peers, key=lambda name: self.peers[name], default=None)
        return None if name is None else (name, self.peers[name])


def beside_peers(values: Mapping[str, float]) -> dict[str, float]:
    """Those of the peers only, of values by candidate; one without an end has none."""
    return {name: values[name] for name in PEERS if name in values and math.isfinite(values[name])}


def add(results: dict[str, object], figures: Iterable[Figure]) -> dict[str, object]:
    """A part's results with its figures."""
    return {**results, "figures": [asdict(figure) for figure in figures]}


def show(console: Console, parts: Mapping[str, object]) -> None:
    """The table of all parts that have figures; nothing when none has."""
    rows = [Figure(**row) for part in parts.values() for row in _figures(part)]
    if not rows:
        return
    table = Table(title="figures, judged", title_justify="left")
    for number, column in enumerate(COLUMNS):
        table.add_column(column, justify="left" if number in (0, 1, 5) else "right", no_wrap=number > 1)
    for row in rows:
        best = row.best
        beside = f"{best[0]} {short(best[1])}" if best else ""
        ratio = f"{row.value / best[1]:.2f}" if best and best[1] > 0 and row.value is not None else ""
        mine = "failed" if row.value is None else f"{short(row.value)} {row.unit}"
        table.add_row(row.what, row.goal, mine, beside, ratio, "met" if row.met else "MISSED")
    console.print(table)
    for row in rows:
        if row.note:
            console.print(f"{row.what}: {row.note}", highlight=False, soft_wrap=True)


def _figures(part: object) -> list[dict[str, Any]]:
    found = part.get("figures", []) if isinstance(part, dict) else []
    return found if isinstance(found, list) else []
