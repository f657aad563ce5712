"""The sockets between processors and handler processes: a pair for each two of them, an end to each, whenever one of the two is new.

Control keeps neither end, so that the death of one is an end of file for the other. What the hand-over sockets do not take now, or what there is
no descriptor for, is tried again shortly, for as long as both live.
"""

import asyncio
import socket
import time
from typing import Final

from control.fleet.child import Child
from proxy.server.link import HANDLER_PROCESS, Handover, send_handover

__all__ = ["Wiring"]

_AGAIN_S: Final = 0.05


class _Wire:
    """A pair that is to be made, or of which an end was not taken yet."""

    def __init__(self, one: Child, other: Child) -> None:
        self._sides = ((one, other), (other, one))
        self._ends: list[tuple[Child, Child, socket.socket]] | None = None

    def lay(self) -> bool:
        """Go on as far as that goes now; True when there is nothing left to do, for both have their ends or one of them is gone."""
        if any(child.ended.done() for child, _ in self._sides):
            self.drop()
            return True
        try:
            if self._ends is None:
                made = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
                self._ends = [(child, peer, end) for (child, peer), end in zip(self._sides, made, strict=True)]
            while self._ends:
                child, peer, end = self._ends[0]
                handover = Handover(time.monotonic_ns(), int(socket.AF_UNIX), HANDLER_PROCESS, f"{peer.slot}.{peer.generation}")
                if not send_handover(child.handover, handover, end.fileno()):
                    return False
                end.close()
                del self._ends[0]
        except OSError:  # no descriptor for it now, or a side that is about to be reaped
            return False
        return True

    def drop(self) -> None:
        """Give back what was not sent; who has the other end sees its end."""
        for _, _, end in self._ends or ():
            end.close()
        self._ends = []


class Wiring:
    """Event loop only."""

    def __init__(self) -> None:
        self._waiting: list[_Wire] = []
        self._again: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """Pairs that are not laid whole."""
        return len(self._waiting)

    def join(self, one: Child, other: Child) -> None:
        """Give each an end of a pair, now or as soon as it can be."""
        wire = _Wire(one, other)
        if not wire.lay():
            self._waiting.append(wire)
            self._later()

    def _later(self) -> None:
        if self._again is None:
            self._again = asyncio.get_running_loop().call_later(_AGAIN_S, self._go_on)

    def _go_on(self) -> None:
        self._again = None
        self._waiting = [wire for wire in self._waiting if not wire.lay()]
        if self._waiting:
            self._later()

    def close(self) -> None:
        """Give back what was not sent."""
        if self._again is not None:
            self._again.cancel()
            self._again = None
        for wire in self._waiting:
            wire.drop()
        self._waiting.clear()
