"""The processes of containers as the node sees them: who they are, what they may, and how they end without being asked."""

import dataclasses
from pathlib import Path
from typing import Any

from tests.cluster.room import Room

__all__ = ["Life", "cgroup", "first", "life", "of_container", "status"]

_PROC = Path("/proc")


@dataclasses.dataclass(frozen=True)
class Life:
    """One life of a container: two are equal if nothing ended in between.

    Attributes:
        container: its id; another one after each restart.
        restarts: as the kubelet counts.
        started: when the kubelet says that it began.
        pid: of its first process, in the node's view.
        clock: when the kernel says that this process began, in ticks since the machine's start.
    """

    container: str
    restarts: int
    started: str
    pid: int
    clock: int


def life(room: Room, pod: str, container: str = "main") -> Life:
    """The life that a container of a pod is in. Raises ValueError when it does not run."""
    status = room.get("pod", pod)["status"]
    (found,) = [item for item in [*status["containerStatuses"], *status.get("initContainerStatuses", [])] if item["name"] == container]
    if "running" not in found["state"]:
        raise ValueError(f"the container {container} of {pod} does not run: {found['state']}")
    name = _id(found)
    pid = first(name)
    clock = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[19]
    return Life(name, found["restartCount"], found["state"]["running"]["startedAt"], pid, int(clock))


def _id(status: dict[str, Any]) -> str:
    return str(status["containerID"]).rpartition("/")[2]


def of_container(name: str) -> list[int]:
    """All processes of a container, by its id: the name of its control group."""
    found = []
    for folder in _PROC.iterdir():
        if folder.name.isdigit():
            try:
                groups = (folder / "cgroup").read_text()
            except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
                continue
            if f"/{name}" in groups:
                found.append(int(folder.name))
    return sorted(found)


def first(name: str) -> int:
    """The process that is number 1 within a container: its end is the end of all others."""
    (found,) = [pid for pid in of_container(name) if status(pid).get("NSpid", "").split()[-1:] == ["1"]]
    return found


def status(pid: int) -> dict[str, str]:
    """``/proc/PID/status``; empty when the process has gone."""
    try:
        text = (_PROC / str(pid) / "status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}


def cgroup(pid: int, controller: str) -> Path:
    """The folder of a process's control group: of a controller of version 1, or the one of version 2."""
    for line in (_PROC / str(pid) / "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return Path("/sys/fs/cgroup", controllers, path.lstrip("/"))
    (path,) = [line.split("::", 1)[1] for line in (_PROC / str(pid) / "cgroup").read_text().splitlines() if line.startswith("0::")]
    return Path("/sys/fs/cgroup", path.lstrip("/"))
