"""The most memory that was seen: of a pretended pool, and of this very process."""

import mmap
import os
import threading
from collections.abc import Iterator
from typing import cast

import grpc
import pytest

from control.demo.peaks import Peaks, resident_bytes
from control.demo.steering import Steering
from control.gen.framegate.control.v1.pool_service_pb2 import MemoryPool

MIB = 1024 * 1024
WAIT_S = 10.0


class PretendedPool:
    """Tells one usage after the other, then the last one for good.

    Attributes:
        told: set when all have been told.
        failure: raised instead, once set.
    """

    def __init__(self, *usages: int) -> None:
        self.told = threading.Event()
        self.failure: Exception | None = None
        self._usages = usages
        self._next: Iterator[int] = iter(usages)

    def processor_pids(self) -> list[int]:
        return [os.getpid()]

    def pool(self) -> MemoryPool:
        if self.failure is not None:
            self.told.set()
            raise self.failure
        usage = next(self._next, None)
        if usage is None:
            self.told.set()
            usage = self._usages[-1]
        return MemoryPool(usage_bytes=usage)


def peaks_of(pool: PretendedPool) -> Peaks:
    return Peaks(cast("Steering", pool), every_s=0.001)


def test_the_most_in_use_is_kept() -> None:
    pool = PretendedPool(5, 30, 7)
    with peaks_of(pool) as peaks:
        assert pool.told.wait(WAIT_S)
    peak = peaks.result()
    assert peak.booked == 30
    assert peak.samples >= 3


def test_resident_memory_counts_from_where_it_was() -> None:
    pool = PretendedPool(0)
    with peaks_of(pool) as peaks:
        block = mmap.mmap(-1, 96 * MIB)  # fresh pages: an allocator may give again what it kept, and what it kept is resident already
        for at in range(0, len(block), mmap.PAGESIZE):
            block[at] = 1
        pool.told.clear()
        assert pool.told.wait(WAIT_S), "a look began"
        pool.told.clear()
        assert pool.told.wait(WAIT_S), "and that look ended before the next"
        block.close()
    peak = peaks.result()
    assert 80 * MIB <= peak.grown <= 200 * MIB
    assert peak.resident == peak.before + peak.grown


def test_a_look_that_fails_is_told() -> None:
    pool = PretendedPool(1)
    pool.failure = grpc.RpcError("gone")
    with peaks_of(pool) as peaks:
        assert pool.told.wait(WAIT_S)
    with pytest.raises(grpc.RpcError, match="gone"):
        peaks.result()


def test_leaving_the_block_ends_the_thread() -> None:
    with pytest.raises(KeyError), peaks_of(PretendedPool(1)):
        raise KeyError
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("peaks")]


def test_a_process_that_is_not_there_has_no_memory_to_tell() -> None:
    assert resident_bytes(os.getpid()) > MIB
    with pytest.raises(OSError, match=r"/proc/"):
        resident_bytes(2**22 + 1)
