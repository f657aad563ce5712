"""The connections of a tap's log, for ``framegate tap replay`` and ``tap export``.

The log is read twice: first for the facts of each connection, because rows do not say which is a connection's last, and a gap may be written behind
what follows it; then for the frames. Both end at the same place, also when the log grows. Only the facts are kept in memory.
"""

import collections
import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from framegate.control.cli.tap_cat import cursors_of
from framegate.control.cli.tap_cursor import merged
from framegate.control.cli.tap_records import Entry, Frame, Trouble, Wanted, frames_of, is_whole, trouble_line
from framegate.proxy.network.framing import Framing
from framegate.proxy.network.framings import FRAMINGS
from framegate.proxy.tap import record

REQUEST: Final = record.DIRECTION_REQUEST
RESPONSE: Final = record.DIRECTION_RESPONSE


class Lost(NamedTuple):
    """Frames of one direction of a connection that a gap counts."""

    first_frame: int  # number of the first one; the others need not follow it without a break
    frames: int
    size: int  # bytes, headers included
    reason: str  # of ``record.REASONS``


@dataclasses.dataclass(slots=True, eq=False)
class Connection:
    """A captured connection, as far as the log has it. Lists have two elements: for requests and for responses."""

    stream: str
    id: int
    listener: str
    peer: str | None  # the client, host:port
    kafka: bool
    rows: int = 0  # of frames
    span: tuple[int, int] = (0, 0)  # place of its first and of its last row among all rows
    framings: list[str] = dataclasses.field(default_factory=lambda: ["", ""])  # on the wire; empty: there are no frames
    first: list[int] = dataclasses.field(default_factory=lambda: [-1, -1])  # number of the first stored frame
    after: list[int] = dataclasses.field(default_factory=lambda: [0, 0])  # number of the last stored frame, plus 1
    stored: list[int] = dataclasses.field(default_factory=lambda: [0, 0])  # number of frames
    lost: list[list[Lost]] = dataclasses.field(default_factory=lambda: [[], []])  # in order of ``first_frame``

    def unrecorded(self, direction: int, begin: int = 0) -> int:
        """Number of frames before the last stored one, from number ``begin`` on, that neither a row nor a gap of the log has."""
        after = self.after[direction]
        lost = sum(lost.frames for lost in self.lost[direction] if begin <= lost.first_frame < after)
        return max(0, after - begin - self.stored[direction] - lost)


class Capture:
    """The selected part of a log. Raises OSError: the store cannot be read. Exits with 3 when a pattern of streams matches none."""

    def __init__(self, roots: Sequence[str], patterns: Sequence[str], wanted: Wanted) -> None:
        """``wanted``: selects rows; its conditions on single frames are left to the caller."""
        self.connections: dict[tuple[str, int], Connection] = {}  # by stream and id
        self.troubles: list[str] = []  # a line for each part that cannot be read
        self.unplaced: collections.Counter[str] = collections.Counter()  # requests in gaps without a connection, by reason
        self._rows = 0
        self._source = (roots, patterns, wanted.since_ns)
        self._wanted = wanted
        cursors = cursors_of(*self._source)
        for item in merged(cursors, wanted):
            if isinstance(item, Trouble):
                if not item.taken:
                    self.troubles.append(trouble_line(item).removeprefix("-- "))
            elif item.row.kind == record.KIND_FRAMES:
                self._note_frames(self._connection(item), item.row)
                self._rows += 1
            elif item.row.kind == record.KIND_GAP:
                self._note_gap(item)
        for connection in self.connections.values():
            for lost in connection.lost:
                lost.sort()
        self._limits = {cursor.stream: cursor.offset for cursor in cursors}

    def _connection(self, entry: Entry) -> Connection:
        key = (entry.block.stream, entry.row.connection)
        found = self.connections.get(key)
        if found is None:
            word, row = entry.block.word, entry.row
            found = Connection(*key, word(row.listener) or "", word(row.peer), row.protocol == record.PROTOCOL_KAFKA)
            self.connections[key] = found
        return found

    def _note_frames(self, found: Connection, row: record.ChunkRow) -> None:
        found.span = found.span[0] if found.rows else self._rows, self._rows
        found.rows += 1
        if found.first[row.direction] < 0:
            found.first[row.direction] = row.first_frame
            found.framings[row.direction] = record.FRAMINGS[row.framing]
        found.after[row.direction] = max(found.after[row.direction], row.first_frame + row.frame_count)
        found.stored[row.direction] += row.frame_count

    def _note_gap(self, entry: Entry) -> None:
        row = entry.row
        if row.connection >= 0:
            lost = Lost(row.first_frame, row.lost_frames, row.lost_bytes, record.REASONS[row.reason])
            self._connection(entry).lost[row.direction].append(lost)
        elif row.direction == REQUEST:
            self.unplaced[record.REASONS[row.reason]] += row.lost_frames

    def most_open(self) -> int:
        """The greatest number of connections that were open at a time."""
        changes = sorted(change for found in self.connections.values() if found.rows for change in ((found.span[0], 1), (found.span[1] + 0.5, -1)))
        return max(itertools.accumulate(change for _, change in changes), default=0)

    def frames(self) -> Iterator[tuple[Connection, Frame | None]]:
        """The frames in order of time, each with its connection; None follows a connection's last frame. Raises OSError."""
        cursors = [cursor for cursor in cursors_of(*self._source) if cursor.stream in self._limits]
        left = {key: connection.rows for key, connection in self.connections.items() if connection.rows}
        every = Wanted()
        for item in merged(cursors, self._wanted, self._limits):
            if isinstance(item, Trouble) or item.row.kind != record.KIND_FRAMES:
                continue
            key = (item.block.stream, item.row.connection)
            for frame in frames_of(item.block, item.row, every):
                yield self.connections[key], frame
            left[key] -= 1
            if not left[key]:
                del left[key]
                yield self.connections[key], None
        for key in left:  # retention deleted the rest since the first time
            yield self.connections[key], None


def fault_of(frame: Frame) -> str:
    """Why the body in the log is not the one that passed; empty: it is."""
    row = frame.row
    if row.capture == record.CAPTURE_HASH:
        return "hash_only"
    if row.flags & record.FLAG_WITHHELD and not frame.kept and frame.size:
        return "withheld"
    if row.reason == record.REASON_PIECES_LOST:
        return "pieces_lost"
    if not is_whole(frame):
        return "lengths_only" if row.capture == record.CAPTURE_LENGTHS and frame.size else "cut" if frame.size else ""
    return "redacted" if row.flags & record.FLAG_REPLACED else ""


def framing_of(name: str) -> Framing | None:
    """A framing by its name; None for ``header``, whose layout the log does not have."""
    return FRAMINGS.get(name)


def header_of(source: Framing, target: Framing, size: int, kept: "bytes | memoryview") -> bytes:
    """The header of a frame on the wire. ``source``: the framing in which it was captured. ``size``, ``kept``: of the body in the log, which begins
    with the ``source.others`` bytes of the captured header that are not its size; those are kept if ``target`` has as many.
    """
    from librt.strings import BytesWriter

    others = bytes(kept[: source.others])
    writer = BytesWriter()
    target.write_header(writer, size - source.others, others if target.keeps and len(others) == target.others else target.fill)
    return writer.getvalue()
