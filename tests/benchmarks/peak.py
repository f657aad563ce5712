"""The highest memory use of a candidate during a block, by the kernel's own mark, so that no peak is missed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from processes import Process

__all__ = ["Peak", "watched"]

SAMPLE_SECONDS = 0.05
KIB = 1024
FORGET_PEAK = "5"
"""Written to clear_refs: the kernel's own mark of the highest resident size begins anew."""


@dataclass(slots=True)
class Peak:
    """MiB of all processes of a candidate together; known when watching ends.

    Attributes:
        resident: the sum of the highest resident sizes by the kernel's own mark: at least what was resident at any moment.
        proportional: the highest of proportional sizes (what processes share counts once), looked at twenty times a second.
    """

    resident: float = 0.0
    proportional: float = 0.0


@contextmanager
def watched(process: Process) -> Iterator[Peak]:
    """Watch a candidate until the block ends; it neither starts nor ends processes meanwhile."""
    pids = process.tree()
    for pid in pids:
        Path(f"/proc/{pid}/clear_refs").write_text(FORGET_PEAK)
    peak = Peak(proportional=process.total_memory().pss)
    stop = threading.Event()

    def look() -> None:
        while not stop.wait(SAMPLE_SECONDS):
            peak.proportional = max(peak.proportional, process.total_memory().pss)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield peak
    finally:
        stop.set()
        thread.join()
    peak.resident = sum(_highest(pid) for pid in pids)


def _highest(pid: int) -> float:
    """MiB; 0 when the process has ended."""
    try:
        words = Path(f"/proc/{pid}/status").read_text().split()
    except OSError:
        return 0.0
    return int(words[words.index("VmHWM:") + 1]) / KIB
