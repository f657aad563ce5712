"""The most memory that was seen during a block: booked in the pool, as the API tells it, and resident in the processors, as Linux does."""

import dataclasses
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Final

from control.demo.steering import Steering

__all__ = ["Peak", "Peaks", "resident_bytes"]

_EVERY_S: Final = 0.01
_KIB: Final = 1024


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """What was seen.

    Attributes:
        booked: the most bytes in use of the whole pool.
        before: resident bytes of all processors together when the block began.
        resident: the most of these.
        samples: how many were taken.
    """

    booked: int
    before: int
    resident: int
    samples: int

    @property
    def grown(self) -> int:
        """Resident bytes above those before."""
        return self.resident - self.before


class Peaks:
    """Looks a hundred times a second at most, on a thread of its own, for the length of a block.

    A processor stores what it has booked once a millisecond while it works, so what lasts longer than a look and its call is seen.

    Args:
        steering: the proxy's control plane.
        every_s: between two looks.
    """

    def __init__(self, steering: Steering, every_s: float = _EVERY_S) -> None:
        self._steering = steering
        self._every_s = every_s
        self._pids = steering.processor_pids()
        self._ended = threading.Event()
        self._executor = ThreadPoolExecutor(1, "peaks")
        self._watching: Future[Peak] | None = None

    def __enter__(self) -> "Peaks":
        before = self._resident()
        self._watching = self._executor.submit(self._watch, before)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ended.set()
        self._executor.shutdown()

    def result(self) -> Peak:
        """What was seen, once the block has been left.

        Raises:
            grpc.RpcError: the proxy did not answer a look.
            OSError: a processor is gone.
        """
        assert self._watching is not None, "the block was entered"
        return self._watching.result()

    def _watch(self, before: int) -> Peak:
        booked, resident, samples = 0, before, 0
        while not self._ended.wait(self._every_s):
            booked = max(booked, self._steering.pool().usage_bytes)
            resident = max(resident, self._resident())
            samples += 1
        return Peak(booked=booked, before=before, resident=resident, samples=samples)

    def _resident(self) -> int:
        return sum(resident_bytes(pid) for pid in self._pids)


def resident_bytes(pid: int) -> int:
    """A process's resident memory.

    Raises:
        OSError: there is no such process.
    """
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(int(line.split()[1]) * _KIB for line in lines if line.startswith("VmRSS:"))
