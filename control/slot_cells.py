"""The shared counters of one processor slot, as the control process keeps them while processors come and go."""

import dataclasses
import mmap
import os
import struct

from proxy.cells import CELL_SIZE, HEADER_SIZE, CellLayout, CellReader, create

__all__ = ["Loss", "SlotCells"]


@dataclasses.dataclass(frozen=True, slots=True)
class Loss:
    """What went with a processor that died. ``connections`` by listener; ``frames`` matched by the tap whose way into the log is not proven."""

    connections: dict[str, int]
    frames: int


class SlotCells:
    """One memfd and its reader. Attributes: ``descriptor`` (for ``pass_fds``), ``reader``."""

    def __init__(self, slot: int, layout: CellLayout) -> None:
        self.layout = layout
        self.descriptor = create(layout, f"framegate-cells-{slot}")
        self.reader = CellReader(self.descriptor, layout)
        self._mapping = mmap.mmap(self.descriptor, layout.size)

    def bury(self, listeners: list[str]) -> Loss:
        """Take stock after the processor is dead and reaped, so that this process is the only writer: its open connections are counted as
        closed for ``processor_died``, frames matched but not flushed are settled (the caller writes them to the tap as a gap), gauges become 0.
        """
        connections: dict[str, int] = {}
        for listener in listeners:
            count = self._get("framegate.connection.active", "downstream", listener)
            if count > 0:
                connections[listener] = count
                self._add(count, "framegate.connection.closed", listener, "processor_died")
        frames = max(0, self._get("framegate.tap.matched") - self._get("framegate.tap.flushed"))
        self._add(frames, "framegate.tap.flushed")
        self.reader.zero_gauges()
        return Loss(connections, frames)

    def close(self) -> None:
        """Give the mapping and the descriptor back."""
        self.reader.close()
        self._mapping.close()
        os.close(self.descriptor)

    def _offset(self, name: str, *values: str) -> int:
        return HEADER_SIZE + self.layout.index(name, *values) * CELL_SIZE

    def _get(self, name: str, *values: str) -> int:
        value: int = struct.unpack_from("=q", self._mapping, self._offset(name, *values))[0]
        return value

    def _add(self, amount: int, name: str, *values: str) -> None:
        offset = self._offset(name, *values)
        struct.pack_into("=q", self._mapping, offset, self._get(name, *values) + amount)
