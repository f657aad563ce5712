"""Looks at things side by side, each in a thread of its own and for a bounded time: what hangs costs its own finding and nothing else.

A thread that hangs is left behind; it cannot keep the process. What it found before it hung is kept.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from framegate.control.doctor.finding import Area, Finding

__all__ = ["MARGIN_S", "Deadline", "Probe", "look_at_all"]

MARGIN_S: Final = 0.5
"""A probe bounds itself, and says where it stood; so much later it is left behind."""
_SLICE_S: Final = 0.2
"""Of waiting: a signal that comes just before a wait does not interrupt it, and Ctrl-C is heard between two."""


class Deadline:
    """A moment until which something may take. ``clock``: seconds that only grow."""

    def __init__(self, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock: Final = clock
        self._end: Final = clock() + timeout_s

    def left(self) -> float:
        """Seconds until then. Raises TimeoutError when there are none."""
        left = self._end - self._clock()
        if left <= 0:
            raise TimeoutError("timed out")
        return left


class Probe(NamedTuple):
    """What is looked at, by whom."""

    area: Area
    subject: str
    look: Callable[[], Iterable[Finding]]


def look_at_all(probes: Sequence[Probe], timeout_s: float) -> list[Finding]:
    """Everything that was found, in the order of the probes; returns ``MARGIN_S`` after ``timeout_s`` at the latest."""
    told: queue.SimpleQueue[tuple[int, Finding | None]] = queue.SimpleQueue()
    found: list[list[Finding]] = [[] for _ in probes]
    open_: set[int] = set()
    for number, probe in enumerate(probes):
        try:
            threading.Thread(target=_look, args=(number, probe, told), name=f"framegate-{probe.area}", daemon=True).start()
            open_.add(number)
        except RuntimeError as error:
            found[number].append(Finding(probe.area, probe.subject, "unknown", f"could not be looked at: {error}"))
    deadline = Deadline(timeout_s + MARGIN_S)
    while open_:
        try:
            number, finding = told.get(timeout=min(deadline.left(), _SLICE_S))
        except queue.Empty:
            continue
        except TimeoutError:
            break
        if finding is None:
            open_.discard(number)
        else:
            found[number].append(finding)
    for number in open_:
        probe = probes[number]
        advice = "what hangs here would hold up framegate as well: find out why, or give it longer with --timeout"
        found[number].append(Finding(probe.area, probe.subject, "fault", f"did not answer within {timeout_s:g} s", advice))
    return [finding for each in found for finding in each]


def _look(number: int, probe: Probe, told: "queue.SimpleQueue[tuple[int, Finding | None]]") -> None:
    try:
        for finding in probe.look():
            told.put((number, finding))
    except Exception as error:  # of one probe; the others are told
        words = (
            f"{error.strerror or error}" if isinstance(error, OSError) else f"{type(error).__name__} (a fault of `framegate doctor` itself): {error}"
        )
        told.put((number, Finding(probe.area, probe.subject, "unknown", f"could not be looked at: {words}")))
    told.put((number, None))
