"""One place for a processor: what outlives the processes that come and go in it."""

import asyncio
import time
from collections.abc import Sequence
from typing import Final

from control.fleet.processor import Processor
from control.fleet.slot_cells import SlotCells
from control.plane import ProcessorState, ProcessorStatus
from proxy.cells import CellLayout
from proxy.network.connection_id import GENERATION_BITS

__all__ = ["Slot"]

_BACKOFF_FIRST_S: Final = 0.1
_BACKOFF_MOST_S: Final = 10.0
_HEALTHY_AFTER_S: Final = 10.0
_GENERATION_EPOCH_S: Final = 1_735_689_600
_GENERATION_MASK: Final = (1 << GENERATION_BITS) - 1


class Slot:
    """A slot.

    Args:
        generation: the last one that this slot had, 0 when it had none.

    Attributes:
        wanted: a processor shall run here.
        leaving: what runs here is the last; it takes no more connections.
        drained: becomes the number of connections left, once a drain was asked for.

    Raises:
        OSError: see ``SlotCells``.
    """

    def __init__(self, number: int, layout: CellLayout, listeners: Sequence[str], generation: int = 0) -> None:
        self.number = number
        self.cells = SlotCells(number, layout, listeners)
        self.generation = generation
        self.restarts = 0
        self.wanted = True
        self.leaving = False
        self.state: ProcessorState = "stopped"
        self.processor: Processor | None = None
        self.boot_id = ""
        self.started_ns = 0
        self.drained: asyncio.Future[int] | None = None
        self.task: asyncio.Task[None] | None = None
        self.backoff_s = _BACKOFF_FIRST_S

    def begin(self) -> None:
        """A processor shall run here, from a fresh start."""
        self.wanted = True
        self.leaving = False
        self.drained = None
        self.backoff_s = _BACKOFF_FIRST_S

    @property
    def lives_on(self) -> bool:
        """Whether a processor that ends here gets a successor."""
        return self.wanted and not self.leaving

    @property
    def takes_connections(self) -> bool:
        """Whether the acceptor may hand over to it."""
        return self.lives_on and self.state == "running" and self.drained is None

    def next_generation(self) -> int:
        """Tenths of a second since 2025 (28 bits, 310 days), or one more than the last: unique over restarts of control too, for no processor is up
        and gone again within a tenth. (In whole seconds a quick successor ran ahead of the clock, and the next control met its numbers.)
        """
        self.generation = max(self.generation + 1, int((time.time() - _GENERATION_EPOCH_S) * 10) & _GENERATION_MASK)
        return self.generation

    def next_pause(self, ran_s: float) -> float:
        """Seconds to wait before the next start, after a processor that ran for ``ran_s``; they double up to 10 s."""
        pause_s = _BACKOFF_FIRST_S if ran_s >= _HEALTHY_AFTER_S else self.backoff_s
        self.backoff_s = min(pause_s * 2, _BACKOFF_MOST_S)
        return pause_s

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
