"""The resources of this machine that a node uses: namespaces of its own, a control group in each hierarchy, and some of the kernel's settings.

A command runs in new namespaces of mounts, network and processes, which end with it. What belongs to no namespace is restored here in any case.
"""

import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

FOLDER: Final = "FRAMEGATE_CLUSTER"  # the variable with the command's folder, whose name is its group's, too
LOCK: Final = "/run/lock/framegate-cluster"
SETTINGS: Final = ("kernel.panic", "kernel.panic_on_oops", "vm.overcommit_memory")  # the settings that the kubelet changes for the whole machine


def groups(name: str) -> Iterator[Path]:
    """A group in each hierarchy of control groups: the one of version 2, or each controller's of version 1."""
    root = Path("/sys/fs/cgroup")
    if (root / "cgroup.controllers").exists():
        yield root / name
    else:
        yield from (folder / name for folder in root.iterdir() if folder.is_dir() and not folder.is_symlink())


def run_apart(command: Sequence[str], environment: Mapping[str, str], folder: Path) -> int:
    """Run a command in namespaces of its own, and restore the machine's settings. One command runs at a time, because the second would take the first
    one's settings for the machine's.

    Args:
        command: to run.
        environment: its variables; the folder's is added.
        folder: for its files.

    Returns: Its exit code; 128 and the number when a signal ended it.
    """
    with open(LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _run_apart(command, environment, folder)


def _run_apart(command: Sequence[str], environment: Mapping[str, str], folder: Path) -> int:
    saved = {name: _setting(name).read_text() for name in SETTINGS}
    apart = ["unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc", "--kill-child"]
    before = signal.signal(signal.SIGINT, lambda *_: None)  # the command has it, too, and answers
    try:
        process = subprocess.Popen([*apart, *command], env={**environment, FOLDER: str(folder)})
        signal.signal(signal.SIGTERM, lambda *_: process.kill())
        code = process.wait()
    finally:
        signal.signal(signal.SIGINT, before)
        for name, value in saved.items():
            _setting(name).write_text(value)
        for group in groups(folder.name):
            _remove(group)
    return code if code >= 0 else 128 - code


def _setting(name: str) -> Path:
    return Path("/proc/sys", *name.split("."))


def _remove(group: Path) -> None:
    deadline = time.monotonic() + 5.0
    for folder, _, _ in os.walk(group, topdown=False):
        while time.monotonic() < deadline:
            try:
                os.rmdir(folder)
            except OSError:  # its last processes are ending
                time.sleep(0.1)
            else:
                break
