"""What the container allows: the CPUs and memory of the cgroup that this process is in, of both versions, and of all around it that can be seen; and
the memory that a process and its descendants use.

Seen from within a container ``/sys/fs/cgroup`` is, as a rule, its own cgroup, whatever ``/proc/self/cgroup`` says; where it is the node's, its own
lies below it. So each folder on the way from the one to the other is asked, and the tightest limit holds, as it does in the kernel.
"""

import dataclasses
import os
import pathlib
from collections.abc import Iterator
from typing import Final

__all__ = ["Container", "container", "cpu_limit", "folders", "memory_limit", "memory_usage", "process_memory"]

_ROOT: Final = pathlib.Path("/sys/fs/cgroup")
_OWN: Final = pathlib.Path("/proc/self/cgroup")
_PROCESSES: Final = pathlib.Path("/proc")
_UNLIMITED: Final = 2**60
"""What the older cgroups show where there is no limit is above this."""
_NONE: Final = ("max", "-1")


@dataclasses.dataclass(frozen=True, slots=True)
class Container:
    """What was seen at one look.

    Attributes:
        cpus: whole CPUs that may be used, at least 1: the quota rounded up, bounded by the affinity.
        memory: the limit in bytes; None when there is none.
        sources: files that said something, be it that there is no limit; fewer than before: the others cannot be read or understood now.
    """

    cpus: int
    memory: int | None
    sources: int


def container(root: pathlib.Path = _ROOT, own: pathlib.Path = _OWN) -> Container:
    """Look at the limits once.

    Args:
        root: where the cgroups are mounted.
        own: says which of them this process is in, as ``/proc/self/cgroup``.
    """
    available = len(os.sched_getaffinity(0))
    quotas, limits = list(_quotas(root, own)), list(_limits(root, own))
    cpus = min((quota for quota in quotas if quota is not None), default=available)
    memory = min((limit for limit in limits if limit is not None), default=None)
    return Container(max(1, min(available, cpus)), memory, len(quotas) + len(limits))


def cpu_limit(root: pathlib.Path = _ROOT, own: pathlib.Path = _OWN) -> int:
    """See ``Container.cpus``."""
    return container(root, own).cpus


def memory_limit(root: pathlib.Path = _ROOT, own: pathlib.Path = _OWN) -> int | None:
    """See ``Container.memory``."""
    return container(root, own).memory


def memory_usage(root: pathlib.Path = _ROOT, own: pathlib.Path = _OWN) -> int | None:
    """Bytes that the innermost cgroup uses now and could not give back at once: without the files that the kernel merely remembers, as the kubelet
    counts. None when it is not known.
    """
    for controller, current, inactive in (("", "memory.current", "inactive_file"), ("memory", "memory.usage_in_bytes", "total_inactive_file")):
        for folder in folders(root, own, controller):
            used = _words(folder / current)
            if used and used[0].isdigit():
                words = _words(folder / "memory.stat")
                remembered = words[words.index(inactive) + 1] if inactive in words[:-1] else "0"
                return max(0, int(used[0]) - int(remembered))
    return None


def process_memory(pid: int, processes: pathlib.Path = _PROCESSES) -> int:
    """Bytes that a process and all its descendants use: proportional set sizes, or resident ones where the kernel does not tell those. 0 when it is
    gone.
    """
    folder = processes / str(pid)
    words, pages = _words(folder / "smaps_rollup"), _words(folder / "statm")
    if "Pss:" in words:
        own = int(words[words.index("Pss:") + 1]) * 1024
    else:
        own = int(pages[1]) * os.sysconf("SC_PAGE_SIZE") if pages else 0
    children = [child for path in (folder / "task").glob("*/children") for child in _words(path)]
    return own + sum(process_memory(int(child), processes) for child in children)


def _quotas(root: pathlib.Path, own: pathlib.Path) -> Iterator[int | None]:
    """Of each folder that says it: whole CPUs, rounded up, or None for no limit."""
    for folder in folders(root, own, ""):
        words = _words(folder / "cpu.max")
        yield from _quota(words[0], words[1]) if len(words) == 2 else ()
    for folder in folders(root, own, "cpu"):
        quota, period = _words(folder / "cpu.cfs_quota_us"), _words(folder / "cpu.cfs_period_us")
        yield from _quota(quota[0], period[0]) if quota and period else ()


def _quota(quota: str, period: str) -> Iterator[int | None]:
    if quota in _NONE:
        yield None
    elif quota.isdigit() and period.isdigit() and int(period) > 0:
        yield -(-int(quota) // int(period))


def _limits(root: pathlib.Path, own: pathlib.Path) -> Iterator[int | None]:
    """Of each folder that says it: bytes, or None for no limit."""
    for controller, name in (("", "memory.max"), ("memory", "memory.limit_in_bytes")):
        for folder in folders(root, own, controller):
            word = next(iter(_words(folder / name)), "")
            if word in _NONE or (word.isdigit() and int(word) >= _UNLIMITED):
                yield None
            elif word.isdigit():
                yield int(word)


def folders(root: pathlib.Path, own: pathlib.Path, controller: str) -> Iterator[pathlib.Path]:
    """The process' own folder and those around it that there are, innermost first; ``controller``: of the older cgroups, "" for version 2."""
    mounts = [root / controller] if controller else [root, root / "unified"]  # the second where both versions are mounted
    path = _own_path(own, controller)
    for mount in mounts:
        for folder in (mount / path, *(mount / parent for parent in path.parents)) if path.parts else (mount,):
            if folder.is_dir():
                yield folder


def _own_path(own: pathlib.Path, controller: str) -> pathlib.PurePosixPath:
    """Where the process is, relative to the mount; the mount itself where that is not known, or outside of what is mounted here."""
    for line in _lines(own):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(","):
            found = pathlib.PurePosixPath(path.lstrip("/"))
            return pathlib.PurePosixPath() if ".." in found.parts else found
    return pathlib.PurePosixPath()


def _words(path: pathlib.Path) -> list[str]:
    return " ".join(_lines(path)).split()


def _lines(path: pathlib.Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
