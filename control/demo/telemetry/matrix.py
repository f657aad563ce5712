"""Panels by troubles: which panel showed something in which phase, as JSON for programs and Markdown for people."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from control.demo.telemetry.panels import Dashboard, Seen

__all__ = ["state", "write"]

_ENOUGH: Final = 1.5
"""A panel has changed when its largest value is so many times that of the calm, or there are other series."""


def state(calm: Seen, now: Seen) -> str:
    """How a panel differs from what it showed in calm: ``changed``, ``same``, ``empty`` or ``failed``."""
    if now.fault is not None:
        return "failed"
    if now.empty:
        return "empty"
    before, after = _peaks(calm), _peaks(now)
    if after.keys() - before.keys():
        return "changed"
    return "changed" if any(value > _ENOUGH * before[key] + 1e-9 for key, value in after.items()) else "same"


def _peaks(seen: Seen) -> dict[tuple[tuple[str, str], ...], float]:
    """The largest value of each series."""
    found = {}
    for answer in seen.answers:
        for series in answer["data"]["result"]:
            points = series.get("values") or [series["value"]]
            values = [float(value) for _, value in points if not math.isnan(float(value))]
            if values:
                found[tuple(sorted(series["metric"].items()))] = max(values)
    return found


def write(folder: Path, dashboards: Sequence[Dashboard], phases: Mapping[str, Mapping[str, Mapping[int, Seen]]], heads: Mapping[str, Any]) -> None:
    """Write ``panels.json`` and ``panels.md``.

    Args:
        folder: made when it is not there.
        dashboards: in order.
        phases: by name, ``calm`` first: what was seen, by dashboard and panel.
        heads: more that the JSON has, beside the rows.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        {
            "dashboard": board.slug,
            "panel": panel.title,
            "calm": "failed" if calm.fault else ("empty" if calm.empty else "data"),
            **{name: state(calm, seen[board.slug][panel.id]) for name, seen in phases.items() if name != "calm"},
        }
        for board in dashboards
        for panel in board.panels
        for calm in [phases["calm"][board.slug][panel.id]]
    ]
    (folder / "panels.json").write_text(json.dumps({**heads, "panels": rows}, indent=1) + "\n")
    names = list(phases)
    lines = ["| dashboard | panel | " + " | ".join(names) + " |", "|---" * (2 + len(names)) + "|"]
    lines += ["| " + " | ".join([str(row["dashboard"]), str(row["panel"]), *(str(row[name]) for name in names)]) + " |" for row in rows]
    (folder / "panels.md").write_text("\n".join(lines) + "\n")
