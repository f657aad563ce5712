"""The socket pairs between processors and handler processes. Each processor and each handler process get a pair, and another if it breaks.

Control keeps no end of a pair, so that the end of one process is an end of file for the other. If a hand-over socket is full, or no descriptor is
available, the hand-over is repeated after a short time, as long as both processes run.

A pair may break while both processes run: by an invalid record, by a defect, or because no descriptor is available where an end arrives. One or both
processes report that (``parted``), and get another pair after a pause, which grows with each break. The end of one process looks like a break to the
other; it is reaped within the pause, and no pair is made.
"""

import asyncio
import socket
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from framegate.control.fleet.child import Child
from framegate.control.fleet.process_slot import Backoff
from framegate.proxy.server.link import HANDLER_PROCESS, Handover, send_handovers

_AGAIN_S: Final = 0.05


class Rejoined(NamedTuple):
    """Two processes whose pair broke have another one."""

    one: Child
    other: Child
    error: str  # why it broke, as reported by either process
    apart_s: float  # how long they had none


class _Wire:
    """The connection of two processes, by one pair after another."""

    def __init__(self, one: Child, other: Child) -> None:
        self.sides = (one, other)
        self.number = 0  # that of the current pair
        self.due_s = 0.0  # the time of the next action, by the loop's clock
        self.laid_s = 0.0  # when both had their ends
        self.parted_s: float | None = None  # when the pair broke; None while they are connected, and before the first pair
        self.broken = True  # a new pair is needed
        self._backoff = Backoff()
        self._errors: list[str] = []
        self._ends: list[tuple[Child, Child, socket.socket]] | None = None

    @property
    def is_over(self) -> bool:
        """Whether one of the two has ended."""
        return any(child.ended.done() for child in self.sides)

    def renew(self, number: int) -> None:
        self.number = number
        self.broken = False
        self._ends = None

    def lay(self) -> bool:
        """Hand over the ends, as far as possible now. Returns whether both processes have theirs."""
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
        except OSError:  # no descriptor is available, or a process has ended and is not reaped yet
            return False
        return True

    def part(self, error: str, now_s: float) -> None:
        """One of the processes reports that it has no end of the pair."""
        if error and error not in self._errors:
            self._errors.append(error)
        if self.broken:  # the other process has reported it
            return
        self.drop()
        self.broken = True
        self.due_s = now_s + self._backoff.pause(now_s - self.laid_s if self.laid_s else 0.0)
        self.laid_s = 0.0
        if self.parted_s is None:
            self.parted_s = now_s

    def laid(self, now_s: float) -> Rejoined | None:
        """Note that both have their ends. Returns the report, if the pair before broke."""
        self.laid_s = now_s
        parted_s, self.parted_s = self.parted_s, None
        if parted_s is None:
            return None
        error = "; ".join(self._errors) or "its socket was closed"
        self._errors.clear()
        return Rejoined(*self.sides, error, now_s - parted_s)

    def drop(self) -> None:
        for _, _, end in self._ends or ():
            end.close()
        self._ends = []


class Wiring:
    """Event loop only. ``on_rejoined``: called when two processes have another pair of sockets."""

    def __init__(self, on_rejoined: Callable[[Rejoined], None]) -> None:
        self._on_rejoined = on_rejoined
        self._wires: dict[int, _Wire] = {}  # by the number of the pair
        self._waiting: list[_Wire] = []
        self._again: asyncio.TimerHandle | None = None
        self._number = 0

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def joined(self) -> int:
        return len(self._wires)

    def join(self, one: Child, other: Child) -> None:
        """Give each process an end of a pair, now or as soon as possible, and of another whenever it breaks."""
        for number in [number for number, wire in self._wires.items() if wire.is_over]:
            self._wires.pop(number).drop()
        wire = _Wire(one, other)
        if not self._go(wire, asyncio.get_running_loop().time()):
            self._waiting.append(wire)
            self._later()

    def parted(self, child: Child, number: int, error: str) -> None:
        """A process reports that it has no end of a pair; empty ``error``: the other process closed it. Reports about replaced pairs are ignored."""
        wire = self._wires.get(number)
        if wire is None or child not in wire.sides:
            return
        wire.part(error, asyncio.get_running_loop().time())
        if wire not in self._waiting:
            self._waiting.append(wire)
        self._later()

    def _go(self, wire: _Wire, now_s: float) -> bool:
        """Continue with a wire. Returns True if nothing is left to do: both processes have their ends, or one has ended."""
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
