"""The output of ``framegate tap verify``."""

import collections
import dataclasses
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import click

from framegate.control.cli.output import counted, print_json, print_line, print_note, print_table, size_text
from framegate.control.cli.tap_records import moment_text
from framegate.proxy.tap.log_reader import LogError, segments, streams
from framegate.proxy.tap.record import FormatError

if TYPE_CHECKING:
    from framegate.proxy.tap.acceptance import Accepted
    from framegate.proxy.tap.completeness import Verdict, WindowRow
    from framegate.proxy.tap.ledger import Span

EXIT_LOST: Final = 6  # Frames are lost, and the log says exactly how many, and why

MANY_ROWS: Final = 50
_EVERY_S: Final = 0.25
_COLUMNS: Final = (
    "STREAM", "LISTENER", "DIRECTION", "WINDOW", "SEEN", "STORED", "WITHHELD", "SAMPLED", "LOST", "AT MOST", "UNKNOWN", "SHARED", "MISSING", "STATE",
)  # fmt: skip


class Progress:
    """Shows on a terminal how much of the log was read."""

    def __init__(self, size: int) -> None:
        """``size``: bytes to read."""
        self._size = size
        self._read = 0
        self._shown_at = time.monotonic()
        self._shown = False
        self._terminal = sys.stderr is not None and sys.stderr.isatty()

    def __call__(self, size: int) -> None:
        """Count bytes as read."""
        self._read += size
        now = time.monotonic()
        if self._terminal and now - self._shown_at >= _EVERY_S:
            self._shown_at, self._shown = now, True
            percent = min(100, 100 * self._read // max(1, self._size))
            click.echo(f"\rframegate: read {size_text(self._read)} of {size_text(self._size)}, {percent} %\x1b[K", nl=False, err=True)

    def end(self) -> None:
        """Clear the line."""
        if self._shown:
            click.echo("\r\x1b[K", nl=False, err=True)


def check(directory: str, within: "Span") -> "Verdict | None":
    """Verify a log. ``within``: as for ``verify``. Returns None, after a message, when it cannot be read."""
    from framegate.proxy.tap.completeness import verify

    try:
        progress = Progress(sum(segment.size for stream in streams(directory) for segment in segments(directory, stream)))
        try:
            return verify(directory, progress, within=within)
        finally:
            progress.end()
    except (OSError, LogError, FormatError) as error:
        print_note(f"{directory} cannot be read: {error}")
        return None


def exit_code(verdict: "Verdict", accepted: "Accepted") -> int:
    """0 when the log is complete or all findings are accepted; ``EXIT_LOST``; 1 when frames are missing or counts are unknown."""
    if verdict.complete or accepted.covers(verdict):
        return 0
    exact = all(row.state in ("complete", "cut", "open", "lost") for row in verdict.rows if not accepted.reason(row))
    return EXIT_LOST if verdict.rows and exact and all(fault in accepted.faults for fault in verdict.faults) else 1


def accepted_of(directory: str, verdict: "Verdict", reason: str | None) -> "Accepted | None":
    """The accepted findings of a log; with a reason, those of ``verdict`` are accepted first. Returns None, after a message, when that fails."""
    import getpass

    from framegate.proxy.tap.acceptance import accept, read_accepted

    try:
        if reason is not None:
            found = accept(directory, verdict, reason, getpass.getuser(), time.time_ns())
            print_note(f"{counted(found, 'finding')} accepted" if found else "there is nothing to accept")
        return read_accepted(directory)
    except (OSError, KeyError) as error:
        print_note(f"the accepted findings of {directory} cannot be {'read' if reason is None else 'written'}: {error}")
        return None


def print_verdict(verdict: "Verdict", summary: bool | None, output: str, accepted: "Accepted") -> None:
    """Print faults, then windows, then the conclusion."""
    if output == "json":
        faults = {fault: accepted.faults[fault] for fault in verdict.faults if fault in accepted.faults}
        windows = verdict_rows(verdict, accepted)
        ends = dict(verdict.lost_ends)
        print_json({"complete": verdict.complete, "faults": verdict.faults, "accepted_faults": faults, "lost_ends": ends, "windows": windows})
        return
    for fault in verdict.faults:
        print_line(f"fault: {fault}" + (f" (accepted: {accepted.faults[fault]})" if fault in accepted.faults else ""))
    print_rows(verdict, summary, accepted)
    print_ends(verdict)
    print_line(_conclusion(verdict, accepted))


def verdict_rows(verdict: "Verdict", accepted: "Accepted") -> list[dict[str, Any]]:
    """The windows for JSON."""
    rows = []
    for row in verdict.rows:
        data = dataclasses.asdict(row)
        data["window"] = moment_text(data.pop("window_ns"))
        rows.append({**data, "reasons": sorted(row.reasons), "accepted": accepted.reason(row)})
    return rows


def print_rows(verdict: "Verdict", summary: bool | None, accepted: "Accepted") -> None:
    """Print the windows. ``summary``: only those that are not complete; None: when there are many, and a terminal."""
    if summary is None:
        summary = len(verdict.rows) > MANY_ROWS and sys.stdout is not None and sys.stdout.isatty()
    print_table(_COLUMNS, (_cells(row, accepted) for row in verdict.rows if not summary or row.state != "complete"))


def print_ends(verdict: "Verdict") -> None:
    """Print how many ends of connections are not in the log, if any."""
    if verdict.lost_ends:
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in sorted(verdict.lost_ends.items()))
        print_line(f"ends of connections that are not in the log: {verdict.lost_ends.total():,} ({reasons})")


def _conclusion(verdict: "Verdict", accepted: "Accepted") -> str:
    states: collections.Counter[str] = collections.Counter()
    for row in verdict.rows:
        states[row.state] += row.windows
    order = ["complete", *sorted(states.keys() - {"complete"})]
    windows = ", ".join(f"{states[state]:,} {state}" for state in order if states[state]) or "none, so completeness is not proved"
    faults = f"{counted(len(verdict.faults), 'fault')}; " if verdict.faults else ""
    word = "not complete" if not verdict.complete else "complete except for data that retention deleted" if states["cut"] else "complete"
    if accepted.covers(verdict):
        word = "not complete, but all findings are accepted"
    elif exit_code(verdict, accepted) == EXIT_LOST:
        word = "frames are lost, and the log says exactly how many"
    return f"{word}: {faults}windows: {windows}"


def _cells(row: "WindowRow", accepted: "Accepted") -> tuple[Any, ...]:
    state = row.state if row.state == "cut" or not row.cut else f"{row.state}, cut"
    reason = accepted.reason(row)
    window = " to ".join(moment_text(at_ns)[:16].replace("T", " ") for at_ns in dict.fromkeys((row.window_ns, row.last_window_ns)))
    return (
        row.stream or "-", row.listener or "-", row.direction, window, row.seen, row.stored, row.withheld, row.sampled, row.lost,
        row.at_most, row.unknown, row.shared, row.missing, f"{state} (accepted: {reason})" if reason else state,
    )  # fmt: skip
