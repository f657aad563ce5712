"""The container's control group, of version 1 and 2: what is not limits, which ``control.configuration.capacity`` reads."""

import dataclasses
from pathlib import Path

__all__ = ["Throttling", "cpu_quota", "killed_for_memory", "own_memory_limit", "own_path", "tasks", "throttling"]


@dataclasses.dataclass(frozen=True, slots=True)
class Throttling:
    """How often the group had used up its quota. Attributes: ``periods``; ``throttled`` of them, for ``seconds`` together."""

    periods: int
    throttled: int
    seconds: float

    @property
    def percent(self) -> float:
        """Of the periods."""
        return 100 * self.throttled / self.periods if self.periods else 0.0


def cpu_quota(root: Path) -> float | None:
    """CPUs that the group may use; None when it has no quota."""
    words = _words(root / "cpu.max") or [*_words(root / "cpu/cpu.cfs_quota_us"), *_words(root / "cpu/cpu.cfs_period_us")]
    if len(words) < 2 or not words[0].isdecimal() or not words[1].isdecimal() or words[1] == "0":
        return None
    return int(words[0]) / int(words[1])


def throttling(root: Path) -> Throttling | None:
    """What the group's quota cost it since it was made; None when the kernel does not say."""
    for path, name, unit in (("cpu.stat", "throttled_usec", 1e6), ("cpu/cpu.stat", "throttled_time", 1e9)):
        found = _table(root / path)
        if "nr_periods" in found and "nr_throttled" in found:
            return Throttling(found["nr_periods"], found["nr_throttled"], found.get(name, 0) / unit)
    return None


def killed_for_memory(root: Path) -> int | None:
    """Processes of the group that the kernel killed for memory since it was made; None when it does not say."""
    for path in ("memory.events", "memory/memory.oom_control"):
        found = _table(root / path)
        if "oom_kill" in found:
            return found["oom_kill"]
    return None


def tasks(root: Path) -> tuple[int, int] | None:
    """Processes and threads in the group, and how many it may have; None when that is not limited."""
    for folder in ("", "pids/"):
        current, most = _words(root / f"{folder}pids.current"), _words(root / f"{folder}pids.max")
        if current and most and current[0].isdecimal() and most[0].isdecimal():
            return int(current[0]), int(most[0])
    return None


def own_path(process: Path, controller: str) -> str:
    """The group of a process by its folder in /proc: its path below the hierarchy's root, ``/`` at the root, and where that is not known."""
    try:
        lines = (process / "cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "/"
    rows = [line.split(":", 2) for line in lines if line.count(":") >= 2]
    for _, names, path in rows:
        if controller in names.split(","):
            return path
    return next((path for number, names, path in rows if number == "0" and not names), "/")


def own_memory_limit(root: Path, process: Path) -> tuple[str, int] | None:
    """The tightest memory limit of a process' own group and those above it, with that group's path, below the root; None when there is none."""
    path = own_path(process, "memory").strip("/")
    parts = path.split("/") if path else []
    found = []
    for depth in range(1, len(parts) + 1):
        group = "/".join(parts[:depth])
        for file in (root / group / "memory.max", root / "memory" / group / "memory.limit_in_bytes"):
            words = _words(file)
            if words and words[0].isdecimal() and int(words[0]) < 2**60:
                found.append((int(words[0]), f"/{group}"))
    return (min(found)[1], min(found)[0]) if found else None


def _words(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").split()
    except OSError:
        return []


def _table(path: Path) -> dict[str, int]:
    words = _words(path)
    return {name: int(value) for name, value in zip(words[::2], words[1::2], strict=False) if value.isdecimal()}
