"""The shared counters of one processor slot, as the control process keeps them while processors come and go."""

import dataclasses
import mmap
import os
import struct
from collections.abc import Sequence
from typing import Final

from proxy.cells import CELL_SIZE, HEADER_SIZE, CellLayout, CellReader, create

__all__ = ["Life", "SlotCells"]

_MATCHED: Final = "framegate.tap.matched"
_FLUSHED: Final = "framegate.tap.flushed"
_FRAMES: Final = "framegate.frame.count"
_SIDE_OF: Final = {"request": "downstream", "response": "upstream"}


@dataclasses.dataclass(frozen=True, slots=True)
class Life:
    """What one processor did between its start and its end, as its cells tell.

    Attributes:
        connections: open at its end, by listener.
        matched: frames that tap rules matched.
        unproven: of those, the frames that no count shows in the log: an upper bound of what is lost.
        frames: whole frames received, by direction.
    """

    connections: dict[str, int]
    matched: int
    unproven: int
    frames: dict[str, int]


class SlotCells:
    """One memfd and its reader. Attributes: ``descriptor`` (for ``pass_fds``), ``reader``.

    Raises:
        OSError: there is no descriptor, or no memory, to be had.
    """

    def __init__(self, slot: int, layout: CellLayout, listeners: Sequence[str]) -> None:
        self.layout = layout
        self.descriptor = create(layout, f"framegate-cells-{slot}")
        try:
            self.reader = CellReader(self.descriptor, layout)
            self._mapping = mmap.mmap(self.descriptor, layout.size)
        except OSError:
            os.close(self.descriptor)
            raise
        self._listeners = tuple(listeners)
        self._matched_before = 0
        self._flushed_before = 0
        self._frames_before = {"request": 0, "response": 0}

    def begin(self) -> None:
        """Note the counters before a processor starts in the slot."""
        self._matched_before = self._get(_MATCHED)
        self._flushed_before = self._get(_FLUSHED)
        self._frames_before = self._frames()

    def bury(self, cause: str = "processor_died") -> Life:
        """Take stock after the processor is dead and reaped, so that this process is the only writer: its open connections are counted as
        closed for ``cause``, its frames of unproven whereabouts as settled (the caller writes them to the tap as a gap), gauges become 0.
        """
        connections: dict[str, int] = {}
        for listener in self._listeners:
            count = self._get("framegate.connection.active", "downstream", listener)
            if count > 0:
                connections[listener] = count
                self._add(count, "framegate.connection.closed", listener, cause)
        matched = self._get(_MATCHED) - self._matched_before
        unproven = max(0, matched - (self._get(_FLUSHED) - self._flushed_before))
        self._add(unproven, _FLUSHED)
        self.reader.zero_gauges()
        frames = {direction: count - self._frames_before[direction] for direction, count in self._frames().items()}
        return Life(connections, matched, unproven, frames)

    def close(self) -> None:
        """Give the descriptor back, and the mapping of this end. That of ``reader`` goes with the last who holds it: another thread may just read."""
        self._mapping.close()
        os.close(self.descriptor)

    def _frames(self) -> dict[str, int]:
        return {direction: sum(self._get(_FRAMES, side, "receive", listener) for listener in self._listeners) for direction, side in _SIDE_OF.items()}

    def _offset(self, name: str, *values: str) -> int:
        return HEADER_SIZE + self.layout.index(name, *values) * CELL_SIZE

    def _get(self, name: str, *values: str) -> int:
        value: int = struct.unpack_from("=q", self._mapping, self._offset(name, *values))[0]
        return value

    def _add(self, amount: int, name: str, *values: str) -> None:
        offset = self._offset(name, *values)
        struct.pack_into("=q", self._mapping, offset, self._get(name, *values) + amount)
