"""Findings about an incomplete log that an operator accepted, with the reason.

They are lines of ``_accepted.jsonl`` beside the ledger, in the ledger's line format: time, user, reason, faults as text, and windows with their
counts. A window stays accepted while its counts are not larger than they were. Lines are only added; a damaged line is ignored.
"""

import dataclasses
import os
from collections.abc import Iterator
from typing import Any, Final

from framegate.proxy.tap.completeness import Verdict
from framegate.proxy.tap.ledger import DamageError, decode, encode
from framegate.proxy.tap.record import FILE_MODE
from framegate.proxy.tap.store import is_url
from framegate.proxy.tap.stream_totals import WindowRow

ACCEPTED_NAME: Final = "_accepted.jsonl"
_COUNTS: Final = ("lost", "at_most", "unknown", "shared", "missing")
_GOOD: Final = ("complete", "cut", "open")


@dataclasses.dataclass(frozen=True, slots=True)
class Accepted:
    """Everything that was accepted for a log."""

    faults: dict[str, str]  # the reason for each fault
    # by stream, listener, direction and start: the counts in the order of ``_COUNTS``, and the reason
    windows: dict[tuple[str, str | None, str, int], tuple[list[int], str]]

    def reason(self, row: WindowRow) -> str:
        """Why a window that is not complete was accepted; empty when it was not, or when its counts are larger now."""
        counts, reason = self.windows.get(_key(row), ([], ""))
        return reason if counts and all(now <= then for now, then in zip(_counts(row), counts, strict=True)) else ""

    def covers(self, verdict: Verdict) -> bool:
        bad = [row for row in verdict.rows if row.state not in _GOOD]
        return bool(bad or verdict.faults) and all(map(self.reason, bad)) and all(fault in self.faults for fault in verdict.faults)


def accept(directory: str, verdict: Verdict, reason: str, who: str, now_ns: int) -> int:
    """Record that an operator accepts all findings of a verdict. Returns the number of faults and windows; when it is 0, nothing is written. Raises
    OSError: the file cannot be written.
    """
    windows = [[*_key(row), _counts(row)] for row in verdict.rows if row.state not in _GOOD]
    if not windows and not verdict.faults:
        return 0
    line = encode({"event": "accepted", "ns": now_ns, "who": who, "reason": reason, "faults": verdict.faults, "windows": windows})
    fd = os.open(os.path.join(directory, ACCEPTED_NAME), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
    try:
        os.write(fd, line)
        os.fsync(fd)
    finally:
        os.close(fd)
    return len(windows) + len(verdict.faults)


def read_accepted(directory: str) -> Accepted:
    """The accepted findings of a tap directory; none of a log in a store. Raises OSError: the file exists and cannot be read."""
    found = Accepted({}, {})
    if is_url(directory):
        return found
    for record in _records(directory):
        reason = str(record.get("reason", ""))
        found.faults.update(dict.fromkeys(record.get("faults", ()), reason))
        for *key, counts in record.get("windows", ()):
            stream, listener, direction, window_ns = key
            found.windows[stream, listener, direction, window_ns] = (counts, reason)
    return found


def _records(directory: str) -> Iterator[dict[str, Any]]:
    try:
        with open(os.path.join(directory, ACCEPTED_NAME), "rb") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        return
    for line in lines:
        try:
            record = decode(line)
        except DamageError:
            continue
        if record["event"] == "accepted":
            yield record


def _key(row: WindowRow) -> tuple[str, str | None, str, int]:
    return row.stream, row.listener, row.direction, row.window_ns


def _counts(row: WindowRow) -> list[int]:
    return [abs(getattr(row, name)) for name in _COUNTS]
