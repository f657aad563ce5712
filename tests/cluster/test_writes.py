"""The privileges of framegate's processes, and what they write: their volumes and nothing else, whether or not the root file system is read-only.

Half a minute each: a broker and two clients start in pods.
"""

import re
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import processes
from tests.cluster.load import Load, Scene
from tests.cluster.room import Room

RUN, TAP = "/run/framegate", "/var/lib/framegate/tap"
VOLUMES = {"/etc/framegate", "/run/framegate/tls", "/var/run/framegate/tls", RUN, TAP}
OF_THE_RUN_FOLDER = {"admin.sock", "admin.sock.lock"}
OF_THE_TAP = {".framegate.lock", ".framegate.writers", "_ledger.jsonl", "_reserve"}
KERNELS = {"proc", "sysfs", "cgroup", "cgroup2", "devpts"}


def unprivileged(pid: int) -> None:
    """Check that a process has no privileges but those of its user and group."""
    status = processes.status(pid)
    assert status["Uid"].split() == status["Gid"].split() == ["10001"] * 4
    assert status["Groups"].split() in ([], ["10001"])
    assert {status[f"Cap{kind}"] for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {"0" * 16}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")


def mounts(pid: int) -> Iterator[tuple[str, str, set[str], dict[str, str]]]:
    """Each mount that a process sees: place, kind, options of the mount, options of the file system."""
    for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines():
        first, _, last = line.partition(" - ")
        kind, _, options = last.split(" ", 2)
        words = first.split()
        yield words[4], kind, set(words[5].split(",")), dict(item.partition("=")[::2] for item in options.split(","))


def written_to_the_root(pid: int) -> list[str]:
    """The files in the container's own layer, except the mount points that the runtime made."""
    seen = list(mounts(pid))
    (upper,) = [Path(options["upperdir"]) for at, kind, _, options in seen if at == "/" and kind == "overlay"]
    points = {Path(at) for at, *_ in seen}
    points |= {folder for point in points for folder in point.parents}
    found = [path for path in upper.rglob("*") if Path("/") / path.relative_to(upper) not in points or (path.is_file() and path.stat().st_size)]
    return [str(path.relative_to(upper)) for path in found]


def written_elsewhere(pid: int) -> list[str]:
    """Files with content on other writable mounts that are no volume: ``/dev/shm``, message queues, ``/dev`` itself, the kubelet's files."""
    root = Path(f"/proc/{pid}/root")
    found = []
    for at, kind, options, _ in mounts(pid):
        if at == "/" or at in VOLUMES or kind in KERNELS or "ro" in options:
            continue
        place = root / at.lstrip("/")
        for path in [place] if place.is_file() else [item for item in place.rglob("*") if not item.is_symlink()]:
            status = path.stat()
            if (stat.S_ISREG(status.st_mode) and status.st_uid == 10001) or (at == "/dev/termination-log" and status.st_size):
                found.append(str(path.relative_to(root)))
    return found


def writable_root(manifest: str) -> str:
    changed = re.sub(r'(readOnlyRootFilesystem"?: )true', r"\1false", manifest)
    assert changed != manifest
    return changed


def follow(room: Room, scene: Scene) -> "subprocess.Popen[bytes]":
    """A command that goes on running in the sidecar, like an operator's ``kubectl exec``."""
    command = room.kubectl_command("exec", scene.pod, "-c", "framegate", "--", "/opt/framegate/bin/framegate", "tap", "follow", TAP)
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout is not None
    assert process.stdout.readline()
    return process


@pytest.mark.parametrize("read_only", [True, False], ids=["read-only root", "root that could be written"])
def test_framegate_writes_its_volumes_and_nothing_else(room: Room, read_only: bool) -> None:
    scene = Scene(room, change=str if read_only else writable_root)
    Load(scene)
    life = scene.sidecar()
    for words in (
        ["status"],
        ["channels", "list"],
        ["pool", "get"],
        ["taps", "list"],
        ["tap", "verify", TAP],
        ["certificates", "list"],
        ["--version"],
    ):
        room.framegate(scene.pod, *words, check=words[0] != "tap")
    followed = follow(room, scene)
    running = processes.of_container(life.container)
    assert len(running) >= 3  # control, a processor, and the command line that follows the tap
    for pid in running:
        unprivileged(pid)
    followed.terminate()
    followed.communicate()
    assert ("ro" in next(options for at, _, options, _ in mounts(life.pid) if at == "/")) == read_only
    room.framegate(scene.pod, "drain", "--reason", "looking at what is written")
    assert written_to_the_root(life.pid) == []
    assert written_elsewhere(life.pid) == []
    run = {path.name for path in Path(f"/proc/{life.pid}/root{RUN}").iterdir()}
    assert run - {"tls"} == OF_THE_RUN_FOLDER  # tls: where the Secret is mounted
    tap = {path.name: path for path in scene.tap.iterdir()}
    streams = {name for name, path in tap.items() if path.is_dir()}
    assert tap.keys() - streams == OF_THE_TAP
    assert streams
    assert all(name.startswith("kafka.") for name in streams)
