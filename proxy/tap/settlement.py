"""Settlement of a stream after its processor ended: rows for missing frames, and totals for windows without totals.

``missing_entries`` compares the number of frames seen, or its bound, with the stream's own counts (``sums``). ``write_settlement`` writes the
difference to a stream of its own, ``<node>.recovery.<boot-id>``, because a stream has only one writer. It is one block, so it exists completely or
not at all, and a stream with a settlement is settled.
"""

import os
from collections.abc import Sequence
from typing import Final, NamedTuple

from framegate.proxy.tap import record
from framegate.proxy.tap.block_builder import BlockBuilder
from framegate.proxy.tap.gap import NO_CONNECTION, Gap
from framegate.proxy.tap.ledger import RECOVERY, Pair
from framegate.proxy.tap.log_reader import end_offset, segments
from framegate.proxy.tap.segment import SegmentFiles, SegmentLog
from framegate.proxy.tap.sums import PairSums

SEGMENT_SIZE: Final = 1 << 20
NEVER_NS: Final = 1 << 62


class Bound(NamedTuple):
    """How many frames a processor saw, as far as known."""

    frames: int | None  # of one listener and direction; None: not known
    exact: bool  # the number is exact; otherwise it is an upper bound
    reason: int  # code of ``record``, for missing frames
    # from_ns, until_ns: when the processor lived, wall clock
    from_ns: int
    until_ns: int


class Entry(NamedTuple):
    """A row of a settlement: a gap; or totals, with the reason ``REASON_NONE``."""

    # listener, direction: words
    listener: str
    direction: str
    reason: int  # code of ``record``
    flags: int  # FLAG_AT_MOST, FLAG_UNKNOWN or 0
    # frames, bytes: missing, or seen; bytes of missing frames are not known
    frames: int
    bytes: int
    # from_ns, until_ns: between these times; totals: in one window
    from_ns: int
    until_ns: int

    @property
    def is_gap(self) -> bool:
        return self.reason != record.REASON_NONE


def missing_entries(pair: Pair, sums: PairSums, bound: Bound) -> list[Entry]:
    """The entries for one listener and direction of a stream that has ended. Where totals count more frames in a window than the stream has, the
    difference is missing there. Further missing frames lie between the last certain time of the stream and the end.
    """
    entries: list[Entry] = []
    missing = None if bound.frames is None else max(0, bound.frames - sums.frames)
    short = 0
    for number, count in _short(sums, missing):
        entries.append(Entry(*pair, bound.reason, 0, count, 0, number * record.WINDOW_NS, (number + 1) * record.WINDOW_NS - 1))
        short += count
    from_ns, until_ns = sorted((_unsure_from(sums, bound), bound.until_ns))  # the clock may have been set back meanwhile
    rest = 0 if missing is None else missing - short
    if missing is None:
        entries.append(Entry(*pair, bound.reason, record.FLAG_UNKNOWN, 0, 0, from_ns, until_ns))
    elif rest:
        entries.append(Entry(*pair, bound.reason, 0 if bound.exact else record.FLAG_AT_MOST, rest, 0, from_ns, until_ns))
    return entries + _unstated(pair, sums, short, rest if bound.exact else 0, from_ns, bound.until_ns)


def _short(sums: PairSums, most: int | None) -> list[tuple[int, int]]:
    """Windows in which the stream has fewer frames than totals say, with the difference. None when gaps cover several windows: the difference may be
    in these gaps.
    """
    found: list[tuple[int, int]] = []
    for number, window in [] if sums.shared else sorted(sums.windows.items()):
        count = window.stated - window.frames
        count = count if most is None else min(count, most - sum(taken for _, taken in found))
        if count > 0:
            found.append((number, count))
    return found


def _unsure_from(sums: PairSums, bound: Bound) -> int:
    """The time from which frames may be missing: windows whose totals and frames are equal lack none."""
    unstated = [window.from_ns for window in sums.windows.values() if window.frames > window.stated]
    return min([*unstated, sums.last_ns]) if sums.last_ns else bound.from_ns


def _unstated(pair: Pair, sums: PairSums, short: int, lost: int, lost_from_ns: int, until_ns: int) -> list[Entry]:
    """Totals for frames that are in the log, or will be as an exact gap, and in no totals yet."""
    entries: list[Entry] = []
    left = sums.frames + short + lost - sums.stated
    for number, window in sorted(sums.windows.items()):
        count = min(left, window.frames - window.stated)
        if count > 0:
            size = max(0, window.bytes - window.stated_bytes)
            last_ns = max(window.from_ns, min((number + 1) * record.WINDOW_NS - 1, until_ns))
            entries.append(Entry(*pair, record.REASON_NONE, 0, count, size, window.from_ns, last_ns))
            left -= count
    if left > 0:
        at_ns = lost_from_ns if lost else sums.shared_until_ns
        entries.append(Entry(*pair, record.REASON_NONE, 0, left, 0, at_ns, at_ns))
    return entries


def recovery_stream(stream: str) -> str:
    """The stream in which another one is settled."""
    node, _, boot_id = stream.rsplit(".", 2)
    return record.stream_name(node, RECOVERY, boot_id)


def settled_end(directory: str, stream: str) -> int | None:
    """Where the settlement of a stream ends; None: it does not exist. Raises LogError when it cannot be read."""
    end = end_offset(directory, recovery_stream(stream))
    return end or None


def write_settlement(directory: str, stream: str, entries: Sequence[Entry], files: SegmentFiles | None = None) -> int:
    """Write the entries for a stream; nothing when that was done before. ``entries``: at least one. Returns where the recovery stream ends. Raises
    OSError: the write failed; to be called again; LogError: the result of an earlier call cannot be read.
    """
    end = settled_end(directory, stream)
    if end is not None:
        return end  # if it could not be renamed, ``recovery.seal_dead`` does that
    recovery = recovery_stream(stream)
    for left in segments(directory, recovery):
        os.unlink(left.path)
    node, slot, boot_id = recovery.rsplit(".", 2)
    facts: dict[str, str | int] = {"node": node, "slot": slot, "stream": recovery, "boot_id": boot_id}
    log = SegmentLog(os.path.join(directory, recovery), facts, SEGMENT_SIZE, NEVER_NS, files)
    builder = BlockBuilder()
    for entry in sorted(entries, key=lambda entry: not entry.is_gap):
        row = _row(entry)
        if entry.is_gap:
            builder.add_gap(row)
        else:
            builder.add_totals(row)
    log.append(builder.finish(), 0)
    log.seal(final=True)
    return int(log.offset)


def _row(entry: Entry) -> Gap:
    row = Gap(
        connection=NO_CONNECTION,
        direction=record.DIRECTIONS.index(entry.direction),
        reason=entry.reason,
        listener=entry.listener or None,
        from_ns=entry.from_ns,
    )
    row.add(entry.frames, entry.bytes, entry.until_ns)
    row.flags = entry.flags
    return row
