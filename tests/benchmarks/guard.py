"""The regression guard: each shape's ratio to its reference, beside the ratios that were committed."""

import datetime
import json
import os
from collections.abc import Mapping
from pathlib import Path

from report import Summaries

FILE = Path(__file__).resolve().parent / "ratios.json"
TOLERANCE = 1.1
REFERENCES = {"plain": "c-relay", "tls": "haproxy", "tls-both": "haproxy"}


def ratios(summaries: Summaries) -> dict[str, float]:
    """framegate's processor time per frame as a multiple of the reference's in the same run, by `protocol shape`."""
    found = {}
    for (protocol, shape, candidate), row in summaries.items():
        reference = summaries.get((protocol, shape, REFERENCES[protocol]))
        if candidate == "framegate" and reference is not None:
            found[f"{protocol} {shape}"] = round(row.cpu_us / reference.cpu_us, 3)
    return found


def machine_class(cpu: str) -> str:
    """The properties of a machine on which a ratio depends."""
    return f"{os.cpu_count()} cores, {cpu}"


def read(file: Path = FILE) -> dict[str, object]:
    """The committed file; empty before the first time."""
    found: dict[str, object] = json.loads(file.read_text()) if file.exists() else {}
    return found


def _ratios_in(committed: Mapping[str, object]) -> dict[str, float]:
    found = committed.get("ratios")
    return found if isinstance(found, dict) else {}


def save(now: Mapping[str, float], cpu: str, file: Path = FILE) -> None:
    """Write these ratios to the file; shapes that were not measured keep theirs."""
    facts = {
        "about": "framegate's CPU per frame ÷ its reference's in the same run (plain: the C relay, else HAProxy); --save-ratios rewrites it",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": machine_class(cpu),
        "ratios": dict(sorted({**_ratios_in(read(file)), **now}.items())),
    }
    file.write_text(json.dumps(facts, indent=2, ensure_ascii=False) + "\n")


def words(now: Mapping[str, float], committed: Mapping[str, object], cpu: str) -> list[str]:
    """The guard's lines: warnings, then the shapes that got worse, then their number."""
    if not committed:
        return [f"guard: there is no {FILE.name} yet; --save-ratios makes it"]
    before = _ratios_in(committed)
    known = [load for load in now if load in before]
    lines = []
    if committed.get("machine") != machine_class(cpu):
        lines.append(f"guard: the committed ratios are of another machine ({committed.get('machine')}): read with care")
    if len(known) < len(now):
        lines.append(f"guard: nothing committed for {', '.join(load for load in now if load not in before)}")
    worse = [load for load in known if now[load] > before[load] * TOLERANCE]
    for load in worse:
        change, reference = now[load] / before[load] - 1, REFERENCES[load.split()[0]]
        lines.append(f"guard: WORSE: {load}: {now[load]:.2f} × {reference}, was {before[load]:.2f} ({change:+.0%})")
    lines.append(f"guard: {len(worse) or 'none'} of {len(known)} shapes got worse by more than {TOLERANCE - 1:.0%} since {committed.get('date')}")
    return lines
