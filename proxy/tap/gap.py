"""Frames that are missing from the log, and totals of frames seen, until they are written.

Frames that a rule matched and the log did not take are counted in one ``Gap`` for each connection, direction, reason and window of capture time. The
writer puts it into the next block. While the log refuses for long, connections come and go: beyond ``MAX_PENDING_GAPS`` the gaps of one listener,
direction, reason and window become one without a connection, and if that is not enough, those of all windows become one. So memory is bounded.

Totals (``tallies``) are a ``Gap`` without a reason: frames seen instead of frames lost. They wait in the same way. So do ends of connections, from
``from_ns`` to ``until_ns`` with their JSON as ``rule``; beyond ``MAX_PENDING_ENDS`` they are only counted.
"""

from typing import Final

from mypy_extensions import i64

from framegate.proxy.tap.record import CAPTURE_FULL, FRAMING_INT32, PROTOCOL_FRAMED, WINDOW_NS

MAX_PENDING_GAPS: Final = 4096
MAX_PENDING_ENDS: Final = 1024
NO_CONNECTION: Final = -1


class Gap:
    """Lost frames of one direction of one connection."""

    def __init__(
        self,
        *,
        connection: i64,
        direction: i64,
        reason: i64,
        from_ns: i64,
        framing: i64 = FRAMING_INT32,
        protocol: i64 = PROTOCOL_FRAMED,
        capture: i64 = CAPTURE_FULL,
        listener: str | None = None,
        principal: str | None = None,
        peer: str | None = None,
        rule: str | None = None,
        first_frame: i64 = -1,
    ) -> None:
        self.connection: i64 = connection  # id of the pair; ``NO_CONNECTION`` when folded
        # direction, reason, framing, protocol, capture: codes of ``record``
        self.direction: i64 = direction
        self.reason: i64 = reason
        self.framing: i64 = framing
        self.protocol: i64 = protocol
        self.capture: i64 = capture
        self.listener = listener  # name of the listener; None: not known
        self.principal = principal  # of the client; None: none, or folded
        self.peer = peer  # the client's address; None: not known, or folded
        self.rule = rule  # name of the rule that matched
        self.first_frame: i64 = first_frame  # number of the first lost frame on this connection and direction; -1 when folded
        # from_ns, until_ns: when the first and the last frame were lost, wall clock
        self.from_ns: i64 = from_ns
        self.until_ns: i64 = from_ns
        # frames, bytes: lost, headers included
        self.frames: i64 = 0
        self.bytes: i64 = 0
        self.flags: i64 = 0  # FLAG_AT_MOST, FLAG_UNKNOWN or 0
        self.written = False  # the gap is in a block, or added to another gap; later losses need a new one

    @property
    def window(self) -> i64:
        """Number of the window in which the first frame was lost."""
        return self.from_ns // WINDOW_NS

    def add(self, frames: i64, size: i64, until_ns: i64) -> None:
        """Count lost frames and their bytes; ``until_ns``: when the last of them was lost."""
        self.frames += frames
        self.bytes += size
        if until_ns > self.until_ns:
            self.until_ns = until_ns

    def merge(self, other: "Gap") -> None:
        """Add another gap of the same connection, direction and reason, and mark it written."""
        self.add(other.frames, other.bytes, other.until_ns)
        self.flags |= other.flags
        if other.from_ns < self.from_ns:
            self.from_ns = other.from_ns
        if other.first_frame < self.first_frame:
            self.first_frame = other.first_frame
        other.written = True


class PendingGaps:
    """Gaps to be written, in the order in which they began; at most ``MAX_PENDING_GAPS``."""

    def __init__(self) -> None:
        self._gaps: dict[tuple[int, int, int, str, str, int], Gap] = {}

    def __len__(self) -> int:
        return len(self._gaps)

    def remember(self, gap: Gap) -> Gap:
        """Keep a gap that is not written yet, or add it to the one of the same connection, direction and reason. Returns the gap that is kept, for
        further losses.
        """
        waiting = self._gaps.get(_key(gap))
        if waiting is not None:
            waiting.merge(gap)
            return waiting
        self._gaps[_key(gap)] = gap
        if len(self._gaps) > MAX_PENDING_GAPS:
            self._fold(False)
            if len(self._gaps) > MAX_PENDING_GAPS // 2:
                self._fold(True)
        return gap

    def take(self) -> list[Gap]:
        gaps = list(self._gaps.values())
        self._gaps.clear()
        return gaps

    def _fold(self, over_windows: bool) -> None:
        """Make one gap of the gaps of all connections, and of all windows if wanted."""
        for gap in self.take():
            key = (NO_CONNECTION, int(gap.direction), int(gap.reason), gap.listener or "", gap.rule or "", -1 if over_windows else int(gap.window))
            whole = self._gaps.get(key)
            if whole is None:
                whole = _without_connection(gap)
                self._gaps[key] = whole
            whole.merge(gap)


def _without_connection(gap: Gap) -> Gap:
    return Gap(
        connection=NO_CONNECTION,
        direction=gap.direction,
        reason=gap.reason,
        framing=gap.framing,
        protocol=gap.protocol,
        capture=gap.capture,
        listener=gap.listener,
        rule=gap.rule,
        from_ns=gap.from_ns,
    )


def _key(gap: Gap) -> tuple[int, int, int, str, str, int]:
    return (int(gap.connection), int(gap.direction), int(gap.reason), gap.listener or "", gap.rule or "", int(gap.window))
