"""The regression guard: each shape's ratio to its reference, beside the ratios that were committed."""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from report import Summary

__all__ = ["FILE", "Verdict", "compare", "ratios", "read", "save", "words"]

FILE = Path(__file__).resolve().parent / "ratios.json"
TOLERANCE = 1.1
REFERENCES = {"plain": "c-relay", "tls": "haproxy", "tls-both": "haproxy"}


@dataclass(frozen=True, slots=True)
class Verdict:
    """One shape: its ratio now and the one committed (None: there is none)."""

    load: str
    reference: str
    now: float
    committed: float | None

    @property
    def worse(self) -> bool:
        """By more than noise allows."""
        return self.committed is not None and self.now > self.committed * TOLERANCE


def ratios(summaries: Mapping[tuple[str, str, str], Summary]) -> dict[str, float]:
    """framegate's processor time per frame as a multiple of the reference's in the same run, by `protocol shape`."""
    found = {}
    for (protocol, shape, candidate), row in summaries.items():
        reference = summaries.get((protocol, shape, REFERENCES[protocol]))
        if candidate == "framegate" and reference is not None:
            found[f"{protocol} {shape}"] = round(row.cpu_us / reference.cpu_us, 3)
    return found


def machine_class(cpu: str) -> str:
    """What a ratio depends on."""
    return f"{os.cpu_count()} cores, {cpu}"


def read(file: Path = FILE) -> dict[str, object]:
    """What was committed; empty before the first time."""
    found: dict[str, object] = json.loads(file.read_text()) if file.exists() else {}
    return found


def save(now: Mapping[str, float], cpu: str, file: Path = FILE) -> None:
    """Make these the ones to compare with; what was not measured now stays."""
    committed = read(file).get("ratios")
    merged = {**(committed if isinstance(committed, dict) else {}), **now}
    facts = {
        "about": "framegate's CPU per frame ÷ its reference's in the same run (plain: the C relay, else HAProxy); --save-ratios rewrites it",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": machine_class(cpu),
        "ratios": dict(sorted(merged.items())),
    }
    file.write_text(json.dumps(facts, indent=2, ensure_ascii=False) + "\n")


def compare(now: Mapping[str, float], committed: Mapping[str, object]) -> list[Verdict]:
    """Every shape that was measured."""
    before = committed.get("ratios")
    known = before if isinstance(before, dict) else {}
    return [Verdict(load, REFERENCES[load.split()[0]], ratio, known.get(load)) for load, ratio in now.items()]


def words(verdicts: list[Verdict], committed: Mapping[str, object], cpu: str) -> list[str]:
    """What a person reads: first whether anything got worse, then what."""
    if not committed:
        return [f"guard: there is no {FILE.name} yet; --save-ratios makes it"]
    worse = [verdict for verdict in verdicts if verdict.worse]
    lines = []
    if committed.get("machine") != machine_class(cpu):
        lines.append(f"guard: the committed ratios are of another machine ({committed.get('machine')}): read with care")
    unknown = [verdict.load for verdict in verdicts if verdict.committed is None]
    if unknown:
        lines.append(f"guard: nothing committed for {', '.join(unknown)}")
    for verdict in worse:
        assert verdict.committed is not None, "only what was committed can be worse"
        change = verdict.now / verdict.committed - 1
        lines.append(f"guard: WORSE: {verdict.load}: {verdict.now:.2f} × {verdict.reference}, was {verdict.committed:.2f} ({change:+.0%})")
    compared = len(verdicts) - len(unknown)
    if not worse:
        lines.append(f"guard: none of {compared} shapes got worse by more than {TOLERANCE - 1:.0%} since {committed.get('date')}")
    else:
        lines.append(f"guard: {len(worse)} of {compared} shapes got worse by more than {TOLERANCE - 1:.0%} since {committed.get('date')}")
    return lines
