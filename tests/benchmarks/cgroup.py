"""A group of processes with a memory limit, as a container has one: cgroup v2 where its memory controller is ours to give, else v1."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
NO_LIMIT_OF_SOCKETS = 1 << 50
"""Any limit makes v1 count the sockets' buffers; this one is never met."""
EMPTY_SECONDS = 5.0


class NoGroupError(Exception):
    """No group can be made here; the message says why."""


@dataclass(frozen=True, slots=True)
class Group:
    """One that exists.

    Attributes:
        path: its folder.
        limit: bytes.
        v2: whether the kernel's socket buffers count against the limit (v1 counts them apart).
    """

    path: Path
    limit: int
    v2: bool

    def command(self, words: list[str]) -> list[str]:
        """The same command, run in the group from its first instruction on."""
        return ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(self.path), *words]

    def killed(self) -> int:
        """How often the kernel killed a process of the group for want of memory."""
        return _row(self.path / ("memory.events" if self.v2 else "memory.oom_control"), "oom_kill")

    def highest(self) -> int:
        """Bytes: the most that was charged, with files that the kernel merely remembers, and on v2 with sockets; at most the limit.

        0 when the kernel is too old to tell.
        """
        file = self.path / ("memory.peak" if self.v2 else "memory.max_usage_in_bytes")
        return int(file.read_text()) if file.exists() else 0

    def sockets(self) -> int:
        """Bytes in the kernel's socket buffers: now on v2, the most on v1."""
        if self.v2:
            return _row(self.path / "memory.stat", "sock")
        return int((self.path / "memory.kmem.tcp.max_usage_in_bytes").read_text())


@contextmanager
def limited(limit: int, sockets: int = 0, root: Path = ROOT) -> Iterator[Group]:
    """A group with so many bytes and no swap; it must be empty when the block ends.

    Args:
        limit: bytes for everything but the kernel's socket buffers.
        sockets: bytes for those, which only v2 charges.
        root: where cgroups are mounted.

    Raises:
        NoGroupError: it cannot be made here.
    """
    parent, v2 = _parent(root)
    limit += sockets if v2 else 0
    path = parent / f"framegate-bench-{os.getpid()}"
    try:
        path.mkdir()
    except OSError as why:
        raise NoGroupError(f"no group below {parent}: {why.strerror}") from why
    try:
        try:
            _set(path, limit, v2=v2)
        except OSError as why:
            raise NoGroupError(f"{path} takes no limit: {why.strerror}") from why
        yield Group(path, limit, v2)
    finally:
        _remove(path)


def _parent(root: Path) -> tuple[Path, bool]:
    """Where our group can be, and whether that is v2."""
    own = dict(line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines())
    if (root / "memory" / "memory.limit_in_bytes").exists():
        below = root / "memory" / own.get("memory", "/").lstrip("/")
        return (below if below.is_dir() else root / "memory"), False
    below = root / own.get("", "/").lstrip("/")
    parent = below if below.is_dir() else root
    controllers = parent / "cgroup.controllers"
    if not controllers.exists():
        raise NoGroupError(f"{root} has no memory controller")
    if "memory" not in controllers.read_text().split():
        raise NoGroupError(f"{parent} was given no memory controller")
    try:
        (parent / "cgroup.subtree_control").write_text("+memory")
    except OSError as why:
        raise NoGroupError(f"{parent} gives its memory controller to no group below: {why.strerror}") from why
    return parent, True


def _set(path: Path, limit: int, *, v2: bool) -> None:
    if v2:
        (path / "memory.max").write_text(str(limit))
        swap = path / "memory.swap.max"
        if swap.exists():
            swap.write_text("0")
        return
    (path / "memory.limit_in_bytes").write_text(str(limit))
    (path / "memory.kmem.tcp.limit_in_bytes").write_text(str(NO_LIMIT_OF_SOCKETS))
    swap = path / "memory.memsw.limit_in_bytes"
    if swap.exists():
        swap.write_text(str(limit))


def _remove(path: Path) -> None:
    """A process that was ended leaves its group a moment later."""
    deadline = time.monotonic() + EMPTY_SECONDS
    while True:
        try:
            path.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return


def _row(file: Path, name: str) -> int:
    """The number behind a name in a file of rows; 0 when there is none."""
    words = file.read_text().split()
    return int(words[words.index(name) + 1]) if name in words[:-1] else 0
