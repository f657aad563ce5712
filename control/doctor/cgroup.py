"""What the container's control group, of version 1 or 2, says beside its limits, which ``control.configuration.cgroup`` reads."""

import dataclasses
from pathlib import Path

from control.configuration.cgroup import folders

__all__ = ["Throttling", "cpu_quota", "killed_for_memory", "tasks", "throttling"]


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


def cpu_quota(root: Path, own: Path) -> float | None:
    """CPUs that the group may use, with their fraction, the tightest of it and those around it; None when it has no quota. Arguments: as of
    ``control.configuration.cgroup.container``.
    """
    pairs = [_words(folder / "cpu.max") for folder in folders(root, own, "")]
    pairs += [[*_words(folder / "cpu.cfs_quota_us"), *_words(folder / "cpu.cfs_period_us")] for folder in folders(root, own, "cpu")]
    quotas = [words for words in pairs if len(words) == 2 and all(map(str.isdecimal, words)) and words[1] != "0"]
    return min((int(quota) / int(period) for quota, period in quotas), default=None)


def throttling(root: Path, own: Path) -> Throttling | None:
    """What the quota of the innermost group that has one cost since it was made; None when the kernel does not say."""
    for controller, name, unit in (("", "throttled_usec", 1e6), ("cpu", "throttled_time", 1e9)):
        for folder in folders(root, own, controller):
            found = _table(folder / "cpu.stat")
            if "nr_periods" in found and "nr_throttled" in found:
                return Throttling(found["nr_periods"], found["nr_throttled"], found.get(name, 0) / unit)
    return None


def killed_for_memory(root: Path, own: Path) -> int | None:
    """Processes of the innermost group that says it which the kernel killed for memory since it was made; None when none says it."""
    for controller, name in (("", "memory.events"), ("memory", "memory.oom_control")):
        for folder in folders(root, own, controller):
            found = _table(folder / name)
            if "oom_kill" in found:
                return found["oom_kill"]
    return None


def tasks(root: Path, own: Path) -> tuple[int, int] | None:
    """Processes and threads in the group with the least room for more, and how many it may have; None when they are not limited."""
    found = []
    for controller in ("", "pids"):
        for folder in folders(root, own, controller):
            current, most = _words(folder / "pids.current"), _words(folder / "pids.max")
            if current and most and current[0].isdecimal() and most[0].isdecimal():
                found.append((int(current[0]), int(most[0])))
    return min(found, key=lambda item: item[1] - item[0], default=None)


def _words(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").split()
    except OSError:
        return []


def _table(path: Path) -> dict[str, int]:
    words = _words(path)
    return {name: int(value) for name, value in zip(words[::2], words[1::2], strict=False) if value.isdecimal()}
