"""The sockets between processors and handler processes: a pair for each two, an end to each, whenever one of the two is new, or the pair broke.

Control keeps neither end, so that the death of one is an end of file for the other. What the hand-over sockets do not take now, or what there is
no descriptor for, is tried again shortly, for as long as both live.

A pair may break while both live: by a record that cannot be, by an error of ours, for want of a descriptor where an end arrives. Who notices says so
(``parted``), which may be both, and both are given another after a pause; the pauses grow when that happens again and again. The end of one looks
the same to the other, and says so, too: it is reaped within the pause, and nothing comes of it.
"""

import asyncio
import socket
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from framegate.control.fleet.child import Child
from framegate.control.fleet.process_slot import Backoff
from framegate.proxy.server.link import HANDLER_PROCESS, Handover, send_handovers

__all__ = ["Rejoined", "Wiring"]

_AGAIN_S: Final = 0.05


class Rejoined(NamedTuple):
    """Two that were parted have another pair.

    Attributes:
        error: why they were parted, as far as either knew.
        apart_s: for how long.
    """

    one: Child
    other: Child
    error: str
    apart_s: float


class _Wire:
    """What joins two: one pair after another.

    Attributes:
        number: of the pair that they have, or are being given.
        due_s: when there is something to do, of the loop's clock.
        laid_s: when both were given their ends.
        parted_s: since when they are apart; None while they are not, and before the first pair.
        broken: the pair is to be another.
    """

    def __init__(self, one: Child, other: Child) -> None:
        self.sides = (one, other)
        self.number = 0
        self.due_s = 0.0
        self.laid_s = 0.0
        self.parted_s: float | None = None
        self.broken = True
        self._backoff = Backoff()
        self._errors: list[str] = []
        self._ends: list[tuple[Child, Child, socket.socket]] | None = None

    @property
    def is_over(self) -> bool:
        """Whether one of the two has ended."""
        return any(child.ended.done() for child in self.sides)

    def renew(self, number: int) -> None:
        """The next pair is to be laid."""
        self.number = number
        self.broken = False
        self._ends = None

    def lay(self) -> bool:
        """Go on as far as that goes now; True when both have their ends."""
        try:
            if self._ends is None:
                one, other = self.sides
                ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
                self._ends = [(one, other, ours), (other, one, theirs)]
            while self._ends:
                child, peer, end = self._ends[0]
                handover = Handover(self.number, int(socket.AF_UNIX), HANDLER_PROCESS, f"{peer.slot}.{peer.generation}")
                if not send_handovers(child.handover, [handover], [end.fileno()]):
                    return False
                end.close()
                del self._ends[0]
        except OSError:  # no descriptor for it now, or a side that is about to be reaped
            return False
        return True

    def part(self, error: str, now_s: float) -> None:
        """One of the two says that it has not the pair any more, or never had it."""
        if error and error not in self._errors:
            self._errors.append(error)
        if self.broken:  # the other said so
            return
        self.drop()
        self.broken = True
        self.due_s = now_s + self._backoff.pause(now_s - self.laid_s if self.laid_s else 0.0)
        self.laid_s = 0.0
        if self.parted_s is None:
            self.parted_s = now_s

    def laid(self, now_s: float) -> Rejoined | None:
        """Both have their ends; gives what there is to say of that."""
        self.laid_s = now_s
        parted_s, self.parted_s = self.parted_s, None
        if parted_s is None:
            return None
        error = "; ".join(self._errors) or "its socket was closed"
        self._errors.clear()
        return Rejoined(*self.sides, error, now_s - parted_s)

    def drop(self) -> None:
        """Close the ends that were not sent; the other end sees the close."""
        for _, _, end in self._ends or ():
            end.close()
        self._ends = []


class Wiring:
    """Event loop only.

    Args:
        on_rejoined: called when two processes have another pair of sockets.
    """

    def __init__(self, on_rejoined: Callable[[Rejoined], None]) -> None:
        self._on_rejoined = on_rejoined
        self._wires: dict[int, _Wire] = {}  # by the number of the pair
        self._waiting: list[_Wire] = []
        self._again: asyncio.TimerHandle | None = None
        self._number = 0

    @property
    def waiting(self) -> int:
        """Pairs that are not laid whole."""
        return len(self._waiting)

    @property
    def joined(self) -> int:
        """Pairs that there are, or shall be."""
        return len(self._wires)

    def join(self, one: Child, other: Child) -> None:
        """Give each an end of a pair, now or as soon as it can be, and of another whenever that breaks."""
        for number in [number for number, wire in self._wires.items() if wire.is_over]:
            self._wires.pop(number).drop()
        wire = _Wire(one, other)
        if not self._go(wire, asyncio.get_running_loop().time()):
            self._waiting.append(wire)
            self._later()

    def parted(self, child: Child, number: int, error: str) -> None:
        """A process says that it has not its end of a pair any more, or never had it; empty ``error``: the other closed it. What is said of a pair
        that there is another for by now is known already.
        """
        wire = self._wires.get(number)
        if wire is None or child not in wire.sides:
            return
        wire.part(error, asyncio.get_running_loop().time())
        if wire not in self._waiting:
            self._waiting.append(wire)
        self._later()

    def _go(self, wire: _Wire, now_s: float) -> bool:
        """Do for a wire what can be done now; True when there is nothing left to do, for both have their ends or one of them is gone."""
        if wire.is_over:
            self._wires.pop(wire.number, None)
            wire.drop()
            return True
        if wire.broken:
            self._wires.pop(wire.number, None)
            self._number = max(self._number + 1, time.monotonic_ns())
            wire.renew(self._number)
            self._wires[wire.number] = wire
        if not wire.lay():
            wire.due_s = now_s + _AGAIN_S
            return False
        rejoined = wire.laid(now_s)
        if rejoined is not None:
            self._on_rejoined(rejoined)
        return True

    def _later(self) -> None:
        if self._again is not None:
            self._again.cancel()
            self._again = None
        if self._waiting:
            self._again = asyncio.get_running_loop().call_at(min(wire.due_s for wire in self._waiting), self._go_on)

    def _go_on(self) -> None:
        now_s = asyncio.get_running_loop().time()
        self._waiting = [wire for wire in self._waiting if wire.due_s > now_s or not self._go(wire, now_s)]
        self._later()

    def close(self) -> None:
        """Close the ends that were not sent."""
        for wire in self._wires.values():
            wire.drop()
        self._wires.clear()
        self._waiting.clear()
        self._later()
