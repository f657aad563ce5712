"""The slot of a processor: the state that outlives its processes."""

import asyncio
import time
from collections.abc import Sequence

from framegate.control.fleet.process_slot import ProcessSlot
from framegate.control.fleet.processor import Processor
from framegate.control.fleet.slot_cells import SlotCells
from framegate.control.status import ProcessorStatus
from framegate.proxy.cells import CellLayout

__all__ = ["Slot"]


class Slot(ProcessSlot):
    """A slot.

    Args:
        generation: the last one that this slot had, 0 when it had none.

    Attributes:
        leaving: what runs here is the last; it takes no more connections.
        drained: becomes the number of connections left, once a drain was asked for.

    Raises:
        OSError: see ``SlotCells``.
    """

    def __init__(self, number: int, layout: CellLayout, listeners: Sequence[str], generation: int = 0) -> None:
        super().__init__(number, generation)
        self.cells = SlotCells(number, layout, listeners)
        self.processor: Processor | None = None
        self.boot_id = ""
        self.drained: asyncio.Future[int] | None = None

    @property
    def child(self) -> Processor | None:
        return self.processor

    def begin(self) -> None:
        super().begin()
        self.drained = None

    @property
    def takes_connections(self) -> bool:
        """Whether the acceptor may pass connections to it."""
        return self.lives_on and self.state == "running" and self.drained is None

    def heartbeat_age_ms(self) -> int:
        """Since the loop's last sign of life; -1 without a process that has given one."""
        reader = self.cells.reader
        if self.processor is None or reader.generation != self.generation or reader.heartbeat_ns == 0:
            return -1
        return max(0, (time.monotonic_ns() - reader.heartbeat_ns) // 1_000_000)

    def status(self) -> ProcessorStatus:
        """What others may see."""
        processor = self.processor
        return ProcessorStatus(
            slot=self.number,
            pid=0 if processor is None else processor.pid,
            generation=self.generation,
            state=self.state,
            restarts=self.restarts,
            heartbeat_age_ms=self.heartbeat_age_ms(),
        )
