"""What is missing from the log, and how much was seen at all, until the log can say so.

Frames that a rule matched and the log did not take are gathered in one ``Gap`` for each connection, direction, reason and window of capture time;
the writer puts them into the first block that the disk accepts. While the log refuses for long, connections come and go: past
``MAX_PENDING_GAPS`` the gaps of one listener, direction, reason and window are folded into one that names no connection, and when that is
not enough, those of all windows into one, so that memory stays bounded.

A statement of totals (``tallies``) is a ``Gap`` without a reason: what was seen, in place of what was lost. It waits in the same way.
"""

from typing import Final

from mypy_extensions import i64

from framegate.proxy.tap.record import CAPTURE_FULL, FRAMING_INT32, PROTOCOL_FRAMED, WINDOW_NS

MAX_PENDING_GAPS: Final = 4096
NO_CONNECTION: Final = -1


class Gap:
    """Frames of one direction of one connection that passed and are not in the log.

    Attributes:
        connection: id of the pair; ``NO_CONNECTION`` when folded.
        direction, reason, framing, protocol, capture: codes of ``record``.
        listener: name of the listener; None for unknown.
        principal: who the client is; None for nobody, or folded.
        peer: the client's address; None for unknown, or folded.
        rule: name of the rule that matched.
        first_frame: number of the first lost frame on this connection and direction; -1 when folded.
        from_ns, until_ns: when the first and the last frame were lost, wall clock.
        frames, bytes: how much was lost, headers included.
        flags: FLAG_AT_MOST, FLAG_UNKNOWN or 0.
        written: the gap is in a block, or counted into another gap; losses from now on need a new one.
    """

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
        self.connection: i64 = connection
        self.direction: i64 = direction
        self.reason: i64 = reason
        self.framing: i64 = framing
        self.protocol: i64 = protocol
        self.capture: i64 = capture
        self.listener = listener
        self.principal = principal
        self.peer = peer
        self.rule = rule
        self.first_frame: i64 = first_frame
        self.from_ns: i64 = from_ns
        self.until_ns: i64 = from_ns
        self.frames: i64 = 0
        self.bytes: i64 = 0
        self.flags: i64 = 0
        self.written = False

    @property
    def window(self) -> i64:
        """Number of the window in which the first frame was lost."""
        return self.from_ns // WINDOW_NS

    def add(self, frames: i64, size: i64, until_ns: i64) -> None:
        """Count frames, and their bytes, as lost at ``until_ns`` or before."""
        self.frames += frames
        self.bytes += size
        if until_ns > self.until_ns:
            self.until_ns = until_ns

    def merge(self, other: "Gap") -> None:
        """Count another gap of the same connection, direction and reason into this one; the other is done."""
        self.add(other.frames, other.bytes, other.until_ns)
        self.flags |= other.flags
        if other.from_ns < self.from_ns:
            self.from_ns = other.from_ns
        if other.first_frame < self.first_frame:
            self.first_frame = other.first_frame
        other.written = True


class PendingGaps:
    """Gaps that wait for the log to accept them, in the order they began; at most ``MAX_PENDING_GAPS``."""

    def __init__(self) -> None:
        self._gaps: dict[tuple[int, int, int, str, str, int], Gap] = {}

    def __len__(self) -> int:
        return len(self._gaps)

    def remember(self, gap: Gap) -> Gap:
        """Keep a gap, not written yet, or count it into the one that waits for the same connection, direction and reason.

        Returns:
            The gap that waits; further losses go there.
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
        """All that waits; none waits afterwards."""
        gaps = list(self._gaps.values())
        self._gaps.clear()
        return gaps

    def _fold(self, over_windows: bool) -> None:
        """Make one gap of those of all connections; and of all windows."""
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
