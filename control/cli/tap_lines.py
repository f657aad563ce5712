"""Formats records of the tap's log as lines. Control characters in text from clients are escaped."""

import datetime
import functools
import json
from typing import Final

from framegate.control.cli.output import counted, shown, size_text
from framegate.control.cli.tap_records import Entry, Frame, Request, Trouble
from framegate.proxy.config.selection import KAFKA_APIS
from framegate.proxy.network.connection_id import format_connection_id
from framegate.proxy.tap.record import (
    CAPTURE_FULL,
    CAPTURE_HASH,
    DIRECTIONS,
    FLAG_WITHHELD,
    HASH_BYTES,
    KIND_CLOCK,
    KIND_GAP,
    KIND_TOTALS,
    REASON_PIECES_LOST,
    REASON_SAMPLED,
    REASONS,
    ChunkRow,
    certainty,
)

__all__ = ["api_text", "entry_line", "frame_line", "is_whole", "moment_text", "not_shown_line", "trouble_line"]

_SECOND: Final = 1_000_000_000
_PRINTABLE: Final = bytes(byte if 0x20 <= byte < 0x7F else 0x2E for byte in range(256))


def moment_text(ns: int) -> str:
    """Wall clock as RFC 3339, to the microsecond; ``--since`` takes this form."""
    second = _second_text(ns // _SECOND)
    return f"{second}.{ns % _SECOND // 1000:06d}Z" if second else f"{ns}ns"


@functools.lru_cache(64)
def _second_text(seconds: int) -> str:
    """Empty when the time is outside the calendar."""
    try:
        return f"{datetime.datetime.fromtimestamp(seconds, datetime.UTC):%Y-%m-%dT%H:%M:%S}"
    except (OverflowError, ValueError, OSError):
        return ""


def api_text(request: Request | None) -> str:
    """``Produce v9 #17 client``; ``-`` when the API is not known."""
    if request is None:
        return "-"
    words = [KAFKA_APIS.get(request.api, f"api-{request.api}"), f"v{request.version}"]
    if request.correlation is not None:
        words.append(f"#{request.correlation}")
    if request.client:
        words.append(request.client)
    return " ".join(words)


def frame_line(frame: Frame, payload: int) -> str:
    """Time, connection, direction, listener, size, API, latency, rule, and at most ``payload`` bytes of the body."""
    row, word = frame.row, frame.block.word
    latency = "-" if frame.latency_us is None else f"{frame.latency_us / 1000:.3f}ms"
    fields = (
        f"{moment_text(row.capture_ns)} {format_connection_id(row.connection):<10} {DIRECTIONS[row.direction]:<8} {word(row.listener) or '-':<8}"
        f" {frame.size:>8} {api_text(frame.request):<20} {latency:>9} {word(row.rule) or '-'}"
    )
    return shown(f"{fields}  {_body_text(frame, payload)}").rstrip()


def is_whole(frame: Frame) -> bool:
    """Whether the whole body is in the log."""
    return frame.row.capture == CAPTURE_FULL and len(frame.kept) == frame.size


def _body_text(frame: Frame, payload: int) -> str:
    row, kept = frame.row, frame.kept
    if row.flags & FLAG_WITHHELD and not kept:
        return "(withheld)" if frame.size else ""
    if row.capture == CAPTURE_HASH and len(kept) == HASH_BYTES:
        return f"(hash {kept.hex()})"
    first = bytes(kept[:payload])
    text = f"{first.hex(' ')} |{first.translate(_PRINTABLE).decode()}|" if first else ""
    if len(kept) == frame.size:
        return text
    why = ", pieces_lost" if row.reason == REASON_PIECES_LOST else ""
    return f"{text} ({len(kept)} of {frame.size} B kept{why})".lstrip()


def entry_line(entry: Entry) -> str:
    """The line of a gap, of totals, of a clock change or of new rules."""
    row = entry.row
    if row.kind == KIND_GAP:
        text = f"{_lost_text(row)}, {size_text(row.lost_bytes)}, {_span_text(row)}{_who(entry)}"
    elif row.kind == KIND_TOTALS:
        text = f"{counted(row.lost_frames, 'frame')} seen, {size_text(row.lost_bytes)}, {_span_text(row)}{_who(entry)}"
    elif row.kind == KIND_CLOCK:
        text = f"the clock was set back from {moment_text(row.lost_from_ns)} to {moment_text(row.capture_ns)}"
    else:
        text = f"{moment_text(row.capture_ns)} tap rules from here on: {_rule_names(entry.block.word(row.rule))}"
    return shown(f"-- {text}")


def _rule_names(text: str | None) -> str:
    """The names of the rules in force, from JSON; the text itself when it cannot be parsed."""
    try:
        return ", ".join(rule["name"] for rule in json.loads(text or "[]")) or "none"
    except (ValueError, TypeError, KeyError):
        return text or "none"


def _lost_text(row: ChunkRow) -> str:
    sure = certainty(row.flags)
    count = {"exact": counted(row.lost_frames, "frame"), "at_most": f"at most {counted(row.lost_frames, 'frame')}", "unknown": "unknown frames"}[sure]
    return f"{count} {'left out' if row.reason == REASON_SAMPLED else 'lost'}: {REASONS[row.reason]} ({sure})"


def _span_text(row: ChunkRow) -> str:
    """The first and last time of a row; logs before version 3 have the time of the row as the last."""
    start, end = row.lost_from_ns or row.capture_ns, row.original_bytes or row.capture_ns
    return moment_text(start) if start == end else f"{moment_text(start)} to {moment_text(end)}"


def _who(entry: Entry) -> str:
    row, word = entry.row, entry.block.word
    connection = f" {format_connection_id(row.connection)}" if row.connection >= 0 and row.kind == KIND_GAP else ""
    listener = word(row.listener)
    rule = word(row.rule)
    return f",{connection} {DIRECTIONS[row.direction]}{f' {listener}' if listener else ''}{f' {rule}' if rule else ''}"


def trouble_line(trouble: Trouble) -> str:
    """The line of a part of the log that cannot be read."""
    going = "nothing after it can be read" if trouble.available is None else f"the log continues at {trouble.available}"
    what = f"lost: {'vanished' if trouble.vanished else 'damaged'} (unknown)" if not trouble.taken else "not shown: retention deleted them"
    return shown(f"-- unknown frames {what}, {trouble.stream} at {trouble.offset}: {trouble.detail}; {going}")


def not_shown_line(frames: int, lost: int, *, bound: bool) -> str:
    """The line about frames that a slow reader left out.

    Args:
        frames: the number of frames left out.
        lost: the number of lost frames in the gap rows left out.
        bound: the frames were not checked against the filter, so ``frames`` is an upper bound.
    """
    besides = f", and gaps with {lost:,} lost" if lost else ""
    return f"-- {'at most ' if bound else ''}{counted(frames, 'frame')} not shown{besides}"
