"""What this container may use: the CPUs and memory of its cgroup, and what follows for processors and the memory pool."""

import os
import pathlib
from collections.abc import Iterable
from typing import Final

from control.configuration.units import format_size
from proxy.config.model import KIB, MIB, ProxyConfig

__all__ = ["cpu_limit", "largest_frame", "memory_limit", "memory_warning", "processor_count"]

MAX_PROCESSORS: Final = 64
_ROOT: Final = pathlib.Path("/sys/fs/cgroup")
CONTROL_BASE: Final = 64 * MIB
PROCESSOR_BASE: Final = 25 * MIB
_MARGIN: Final = 0.15
_UNLIMITED: Final = 2**60


def cpu_limit(root: pathlib.Path = _ROOT) -> int:
    """Whole CPUs this process may use, at least 1: the cgroup's quota rounded up, bounded by its affinity."""
    available = len(os.sched_getaffinity(0))
    quota, period = _words(root / "cpu.max") or ("max", "100000")
    if quota == "max":
        quota = next(iter(_words(root / "cpu/cpu.cfs_quota_us")), "-1")
        period = next(iter(_words(root / "cpu/cpu.cfs_period_us")), "100000")
    if not quota.isdigit() or not period.isdigit() or int(period) == 0:
        return available
    return max(1, min(available, -(-int(quota) // int(period))))


def memory_limit(root: pathlib.Path = _ROOT) -> int | None:
    """Bytes of the cgroup's memory limit; None when there is none."""
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        words = _words(root / name)
        if words and words[0].isdigit() and int(words[0]) < _UNLIMITED:
            return int(words[0])
    return None


def _words(path: pathlib.Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").split()
    except OSError:
        return []


def largest_frame(limits: Iterable[int]) -> int:
    """The largest of the listeners' ``max_receive_size``, which each share of the pool must hold; 1 when there is none."""
    return max(limits, default=1)


def processor_count(configured: int, pool_size: int, largest: int, cpus: int) -> int:
    """How many processors to start: as configured, or for 0 as many as there are CPUs and shares of the pool that hold the largest frame."""
    if configured:
        return configured
    return max(1, min(cpus, MAX_PROCESSORS, pool_size // largest))


def memory_warning(config: ProxyConfig, processors: int, limit: int | None) -> str | None:
    """A sentence when the memory pool does not fit into the container, else None. Connections' own memory comes on top and is not counted."""
    if limit is None:
        return None
    tap_queues = config.tap.queue_size * processors if config.tap else 0
    base = CONTROL_BASE + processors * PROCESSOR_BASE + tap_queues
    usable = int(limit * (1 - _MARGIN)) - base
    if config.memory_pool.size <= usable:
        return None
    fits = max(0, usable) // KIB * KIB
    return (
        f"the memory pool of {format_size(config.memory_pool.size)} does not fit into the container's {format_size(limit)}: with {processors} "
        f"processors about {format_size(fits)} remain for it"
    )
