"""What of this machine a node uses: namespaces of its own, a group of processes in each hierarchy, and some of the kernel's settings.

A command runs in new namespaces of mounts, network and processes: whatever it leaves behind ends with it. What belongs to no namespace is put back here,
however the command ended.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Final

__all__ = ["GROUP", "groups", "run_apart"]

GROUP: Final = "framegate-cluster"
SETTINGS: Final = ("kernel.panic", "kernel.panic_on_oops", "vm.overcommit_memory")
"""What the kubelet sets for the whole machine."""


def groups() -> Iterator[Path]:
    """Our group in each hierarchy of control groups: the one of version 2, or each controller's of version 1."""
    root = Path("/sys/fs/cgroup")
    if (root / "cgroup.controllers").exists():
        yield root / GROUP
    else:
        yield from (folder / GROUP for folder in root.iterdir() if folder.is_dir() and not folder.is_symlink())


def run_apart(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a command in namespaces of its own, and put the machine back as it was.

    SIGINT reaches the command from the terminal; SIGTERM ends it, too.

    Returns:
        Its exit code; 128 and the number when a signal ended it.
    """
    saved = {name: _setting(name).read_text() for name in SETTINGS}
    apart = ["unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc", "--kill-child"]
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command's to answer
    try:
        process = subprocess.Popen([*apart, *command], env=dict(environment), preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL) and None)

        def end(_number: int, _frame: FrameType | None) -> None:
            process.terminate()

        signal.signal(signal.SIGTERM, end)
        code = process.wait()
    finally:
        signal.signal(signal.SIGINT, before)
        for name, value in saved.items():
            _setting(name).write_text(value)
        for group in groups():
            _remove(group)
    return code if code >= 0 else 128 - code


def _setting(name: str) -> Path:
    return Path("/proc/sys", *name.split("."))


def _remove(group: Path) -> None:
    for folder, _, _ in os.walk(group, topdown=False):
        deadline = time.monotonic() + 5.0
        while time.monotonic() < deadline:
            with contextlib.suppress(FileNotFoundError):
                try:
                    os.rmdir(folder)
                except FileNotFoundError:
                    raise
                except OSError:  # its last processes are ending
                    time.sleep(0.1)
                    continue
            break
