"""A cgroup of a test's own, whose CPUs and memory it changes while something runs there, as the kubelet does when it resizes a pod in place."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
_PERIOD_US = 100_000
_EMPTY_S = 10.0


class Resizable:
    """It, of either version. Attributes: ``folders``, one or, of the older version, one for each controller."""

    def __init__(self, folders: list[Path]) -> None:
        self.folders = folders

    @property
    def prefix(self) -> tuple[str, ...]:
        """What goes before a command that is to run here from its first instruction on."""
        enter = " && ".join(f'echo $$ > "{folder}/cgroup.procs"' for folder in self.folders)
        return ("sh", "-c", f'{enter} && exec "$@"', "sh")

    def set(self, *, memory: int | None = None, millicpus: int | None = None) -> None:
        """New limits; what is None stays."""
        if memory is not None:
            self._write({"memory.max": str(memory), "memory.limit_in_bytes": str(memory)})
        if millicpus is not None:
            quota = str(millicpus * _PERIOD_US // 1000)
            self._write({"cpu.max": f"{quota} {_PERIOD_US}", "cpu.cfs_quota_us": quota})

    def killed(self) -> int:
        """How often the kernel killed something here for want of memory."""
        for folder in self.folders:
            for name in ("memory.events", "memory.oom_control"):
                words = (folder / name).read_text().split() if (folder / name).exists() else []
                if "oom_kill" in words:
                    return int(words[words.index("oom_kill") + 1])
        return 0

    def _write(self, values: dict[str, str]) -> None:
        for folder in self.folders:
            for name, value in values.items():
                if (folder / name).exists():
                    (folder / name).write_text(value)


@contextlib.contextmanager
def resizable() -> Iterator[Resizable | str]:
    """One for the length of the block; or why none can be made here."""
    made: list[Path] = []
    try:
        for parent in _parents():
            folder = parent / f"framegate-test-{os.getpid()}"
            folder.mkdir()
            made.append(folder)
        reason = "" if made else f"{ROOT} has no controllers for memory and CPUs"
    except OSError as error:
        reason = f"no cgroup can be made: {error}"
    try:
        yield reason or Resizable(made)
    finally:
        for folder in made:
            _remove(folder)


def _parents() -> list[Path]:
    """The folders, one or two, in which a group is made; none where there is no use of one."""
    own = dict(line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines())
    mounts = {name: ROOT / name for name in ("memory", "cpu")}
    if all(mount.is_dir() for mount in mounts.values()):
        paths = {name: next((path for names, path in own.items() if name in names.split(",")), "/") for name in mounts}
        below = [mount / paths[name].lstrip("/") for name, mount in mounts.items()]
        return [folder if folder.is_dir() else mount for folder, mount in zip(below, mounts.values(), strict=True)]
    below_v2 = ROOT / own.get("", "/").lstrip("/")
    parent = below_v2 if below_v2.is_dir() else ROOT
    controllers = parent / "cgroup.subtree_control"
    if not controllers.exists():
        return []
    controllers.write_text("+memory +cpu")
    return [parent]


def _remove(folder: Path) -> None:
    """A process that was ended leaves its group a moment later."""
    deadline = time.monotonic() + _EMPTY_S
    while True:
        try:
            folder.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return
