"""The processes of containers in the node's view: their ids, their privileges, and their control groups."""

import dataclasses
from pathlib import Path
from typing import Any

from tests.cluster.room import Room

_PROC = Path("/proc")


@dataclasses.dataclass(frozen=True)
class Life:
    """One life of a container. Two are equal if the container did not end in between."""

    container: str  # its id; another one after each restart
    restarts: int  # as the kubelet counts
    started: str  # its start according to the kubelet
    pid: int  # of its first process, in the node's view
    clock: int  # the start of this process according to the kernel, in ticks since the machine's start


def life(room: Room, pod: str, container: str = "main") -> Life:
    """The present life of a container of a pod. Raises ValueError when it does not run."""
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
    """The process with id 1 within a container, whose end ends all others."""
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
