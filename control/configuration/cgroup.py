"""The container's limits and its use of CPUs, memory and tasks, from the cgroups of both versions; and the memory of a process and its descendants.

In a container ``/sys/fs/cgroup`` is usually its own cgroup, whatever ``/proc/self/cgroup`` says; where it is the node's, its own lies below. So each
folder from the one to the other is read, and the tightest limit holds, as in the kernel. All functions take ``root``, where the cgroups are mounted,
and ``own``, the file that says which of them the process is in, as ``/proc/self/cgroup``.
"""

import dataclasses
import math
import os
import pathlib
from collections.abc import Iterator
from typing import Final

_ROOT: Final = pathlib.Path("/sys/fs/cgroup")
_OWN: Final = pathlib.Path("/proc/self/cgroup")
_PROCESSES: Final = pathlib.Path("/proc")
_PRESSURE: Final = pathlib.Path("/proc/pressure")
_UNLIMITED: Final = 2**60  # the older cgroups show a number above this where there is no limit
_NONE: Final = ("max", "-1")


@dataclasses.dataclass(frozen=True, slots=True)
class Container:
    """The limits at one moment."""

    cpus: int  # whole CPUs that may be used, at least 1: the quota rounded up, bounded by the affinity
    memory: int | None  # the limit in bytes; None when there is none
    sources: int  # number of files that were understood, even if they say that there is no limit. If it falls, files could no longer be read.


def container(root: pathlib.Path = _ROOT, own: pathlib.Path = _OWN) -> Container:
    """The limits now."""
    available = len(os.sched_getaffinity(0))
    quotas, limits = list(_quotas(root, own)), list(_limits(root, own))
    cpus = min((math.ceil(quota) for quota in quotas if quota is not None), default=available)
    memory = min((limit for limit in limits if limit is not None), default=None)
    return Container(max(1, min(available, cpus)), memory, len(quotas) + len(limits))


def memory_limit(root: pathlib.Path = _ROOT, own: pathlib.Path = _OWN) -> int | None:
    """See ``Container.memory``."""
    return container(root, own).memory


def memory_usage(root: pathlib.Path = _ROOT, own: pathlib.Path = _OWN) -> int | None:
    """Bytes that the innermost cgroup uses, without cached files that the kernel can drop, as the kubelet counts. None when it is not known."""
    for folder, words in _read(root, own, ("", "memory.current"), ("memory", "memory.usage_in_bytes")):
        if words and words[0].isdigit():
            stat = _table(_words(folder / "memory.stat"))
            return max(0, int(words[0]) - stat.get("total_inactive_file", stat.get("inactive_file", 0)))
    return None


def process_memory(pid: int, processes: pathlib.Path = _PROCESSES) -> int:
    """Bytes of a process and all its descendants: proportional set sizes, or resident ones if the kernel has no others. 0 when it has ended."""
    folder = processes / str(pid)
    words = _words(folder / "smaps_rollup")
    own = int(words[words.index("Pss:") + 1]) * 1024 if "Pss:" in words else resident_memory(pid, processes)
    children = [child for path in (folder / "task").glob("*/children") for child in _words(path)]
    return own + sum(process_memory(int(child), processes) for child in children)


def resident_memory(pid: int, processes: pathlib.Path = _PROCESSES) -> int:
    """Bytes of one process in memory; 0 when it has ended."""
    pages = _words(processes / str(pid) / "statm")
    return int(pages[1]) * os.sysconf("SC_PAGE_SIZE") if pages else 0


@dataclasses.dataclass(frozen=True, slots=True)
class Throttling:
    """How often the group had used up its quota: ``throttled`` of ``periods``, for ``seconds`` together."""

    periods: int
    throttled: int
    seconds: float

    @property
    def percent(self) -> float:
        """Throttled periods of all periods."""
        return 100 * self.throttled / self.periods if self.periods else 0.0


def cpu_quota(root: pathlib.Path = _ROOT, own: pathlib.Path = _OWN) -> float | None:
    """CPUs that the group may use, with their fraction, the tightest of it and those around it; None when it has no quota."""
    return min((quota for quota in _quotas(root, own) if quota is not None), default=None)


def throttling(root: pathlib.Path = _ROOT, own: pathlib.Path = _OWN) -> Throttling | None:
    """Throttling of the innermost group that has a quota, since it was made; None when the kernel does not say."""
    for _, words in _read(root, own, ("", "cpu.stat"), ("cpu", "cpu.stat")):
        found = _table(words)
        if "nr_periods" in found and "nr_throttled" in found:
            seconds = found.get("throttled_usec", 0) / 1e6 + found.get("throttled_time", 0) / 1e9
            return Throttling(found["nr_periods"], found["nr_throttled"], seconds)
    return None


def killed_for_memory(root: pathlib.Path = _ROOT, own: pathlib.Path = _OWN) -> int | None:
    """Number of processes that the kernel killed for memory in the innermost group that counts them; None when none does."""
    tables = (_table(words) for _, words in _read(root, own, ("", "memory.events"), ("memory", "memory.oom_control")))
    return next((found["oom_kill"] for found in tables if "oom_kill" in found), None)


def pressure(resource: str, root: pathlib.Path = _ROOT, own: pathlib.Path = _OWN, machine: pathlib.Path = _PRESSURE) -> dict[str, float]:
    """Seconds for which ``some`` or all tasks (``full``) of the innermost group that says so, else of the machine, waited for a resource.
    ``resource``: ``cpu``, ``memory`` or ``io``.
    """
    told = [*(words for _, words in _read(root, own, ("", f"{resource}.pressure"))), _words(machine / resource)]
    for words in told:
        found = {line[0]: line[-1].removeprefix("total=") for line in (words[at : at + 5] for at in range(0, len(words), 5)) if len(line) == 5}
        if found:
            return {kind: int(total) / 1e6 for kind, total in found.items() if total.isdecimal()}
    return {}


def tasks(root: pathlib.Path = _ROOT, own: pathlib.Path = _OWN) -> tuple[int, int] | None:
    """Processes and threads in the group with the least room for more, and its limit; None when they are not limited."""
    found = []
    for folder, current in _read(root, own, ("", "pids.current"), ("pids", "pids.current")):
        most = _words(folder / "pids.max")
        if current and most and current[0].isdecimal() and most[0].isdecimal():
            found.append((int(current[0]), int(most[0])))
    return min(found, key=lambda item: item[1] - item[0], default=None)


def _quotas(root: pathlib.Path, own: pathlib.Path) -> Iterator[float | None]:
    found = [words for _, words in _read(root, own, ("", "cpu.max"))]
    found += [[*words, *_words(folder / "cpu.cfs_period_us")] for folder, words in _read(root, own, ("cpu", "cpu.cfs_quota_us"))]
    for words in found:
        if len(words) == 2 and words[0] in _NONE:
            yield None
        elif len(words) == 2 and all(map(str.isdecimal, words)) and int(words[1]) > 0:
            yield int(words[0]) / int(words[1])


def _limits(root: pathlib.Path, own: pathlib.Path) -> Iterator[int | None]:
    for _, words in _read(root, own, ("", "memory.max"), ("memory", "memory.limit_in_bytes")):
        word = next(iter(words), "")
        if word in _NONE or (word.isdigit() and int(word) >= _UNLIMITED):
            yield None
        elif word.isdigit():
            yield int(word)


def _read(root: pathlib.Path, own: pathlib.Path, *files: tuple[str, str]) -> Iterator[tuple[pathlib.Path, list[str]]]:
    """Each folder of each controller ("" for version 2) with the words of a file in it."""
    for controller, name in files:
        for folder in _folders(root, own, controller):
            yield folder, _words(folder / name)


def _folders(root: pathlib.Path, own: pathlib.Path, controller: str) -> Iterator[pathlib.Path]:
    """The process' own folder and those around it, innermost first. ``controller``: of the older cgroups; "" for version 2."""
    mounts = [root / controller] if controller else [root, root / "unified"]  # the second where both versions are mounted
    path = _own_path(own, controller)
    for mount in mounts:
        for folder in (mount / path, *(mount / parent for parent in path.parents)) if path.parts else (mount,):
            if folder.is_dir():
                yield folder


def _own_path(own: pathlib.Path, controller: str) -> pathlib.PurePosixPath:
    """The path of the process' group below the mount; empty if it is not known, or outside of what is mounted here."""
    for line in _lines(own):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(","):
            found = pathlib.PurePosixPath(path.lstrip("/"))
            return pathlib.PurePosixPath() if ".." in found.parts else found
    return pathlib.PurePosixPath()


def _table(words: list[str]) -> dict[str, int]:
    return {name: int(value) for name, value in zip(words[::2], words[1::2], strict=False) if value.isdecimal()}


def _words(path: pathlib.Path) -> list[str]:
    return " ".join(_lines(path)).split()


def _lines(path: pathlib.Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
